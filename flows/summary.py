"""The result as the user sees it at the end of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flows.graph import Node
from tasks.runtime import record, stage


def table(nodes: Sequence[Node]) -> str:
    """Markdown: the comparison's table where the run makes one, or the figures of the evaluations on its way."""
    addresses = [node.address for node in nodes]
    made = Path("runs/comparison/table.md")
    if "comparison" in addresses and made.exists():
        return made.read_text(encoding="utf-8").strip()
    rows = {}
    for address in addresses:
        path = stage.bind(address).metrics
        if address.startswith("evaluation@") and path.exists():
            figures = record.flat(json.loads(path.read_text(encoding="utf-8")))
            numbers = {k: v for k, v in figures.items() if isinstance(v, int | float) and not isinstance(v, bool)}
            rows[address.partition("@")[2]] = numbers
    if not rows:
        return ""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [f"| policy | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for policy, row in rows.items():
        cells = (f"{row[c]:.4g}" if c in row else "" for c in columns)
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    return "\n".join(lines)


def examples(nodes: Sequence[Node]) -> str:
    """Markdown: prompts with every policy's answer; "" where the run makes none."""
    made = Path("runs/comparison/examples.md")
    wanted = any(node.address == "comparison" for node in nodes)
    return made.read_text(encoding="utf-8").strip() if wanted and made.exists() else ""
