"""The result as the user sees it at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.graph import Node
from tasks.runtime import records, report, stage


def table(nodes: Sequence[Node]) -> str:
    """Markdown: the comparison's table where the run makes one, or the figures of the evaluations on its way."""
    addresses = [node.address for node in nodes]
    made = Path("runs/comparison/table.md")
    if "comparison" in addresses and made.exists():
        return made.read_text(encoding="utf-8").strip()
    evaluated = {address.partition("@")[2]: stage.bind(address).metrics for address in addresses if "@" in address}
    summaries = {policy: records.read_json(path) for policy, path in evaluated.items() if path.exists()}
    return report.table(summaries).strip() if summaries else ""


def examples(nodes: Sequence[Node]) -> str:
    """Markdown: prompts with every policy's answer; "" where the run makes none."""
    made = Path("runs/comparison/examples.md")
    wanted = any(node.address == "comparison" for node in nodes)
    return made.read_text(encoding="utf-8").strip() if wanted and made.exists() else ""
