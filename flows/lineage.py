"""The pipeline's MLflow run: params, headline figures, and links to each stage's run, also where nothing was to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from flows.graph import Node
from tasks.runtime import document, fingerprint, provenance, record, stage
from tasks.runtime.reporter import Reporter

HEADLINES = (
    "sft/loss_last",
    "preferences/pairs/*",
    "preferences/agreement/*/krippendorff",
    "reward/held_out/*/accuracy",
    "reward/held_out/*/calibration_error",
    "dpo/kl/mean",
    "ppo/last/*/*",
    "evaluation/*/win_rate/rate",
    "evaluation/*/win_rate/low",
    "evaluation/*/win_rate/high",
    "evaluation/*/length_controlled/rate",
    "evaluation/*/kl/mean",
    "evaluation/*/gold/mean",
    "evaluation/*/answers/length",
    "evaluation/*/answers/finished",
    "evaluation/*/hacking/*/fired",
    "comparison/proxy/*",
    "comparison/win_rate/*/rate",
    "comparison/best_of/*/win_rate/rate",
)
"""Of the pipeline's run. Patterns of names, in which * stands for one part."""


def begin(target: str, nodes: Sequence[Node], say: Callable[[str], None]) -> Reporter:
    """Open the run. Its token is what the stages name as their parent."""
    params = document.read(Path("params.yaml"))
    words = {"shared", *(node.address.partition("@")[0] for node in nodes)}
    commit = provenance.git("rev-parse", "--short", "HEAD")
    start = {
        "address": "pipeline",
        "word": "pipeline",
        "fingerprint": "",
        "name": f"{target} {commit}".strip(),
        "params": {word: section for word, section in params.items() if word in words},
        "tags": {"target": target},
    }
    return Reporter(start, say, resident=False)


def finish(run: Reporter, nodes: Sequence[Node], status: str, fresh: Sequence[str]) -> str:
    """Close the run as FINISHED, FAILED or KILLED; returns its page. fresh: the stages that ran just now."""
    locked = fingerprint.locked()
    stages = []
    for node in nodes:
        entry = locked.get(node.address, {})
        stages.append(
            {
                "address": node.address,
                "fingerprint": fingerprint.of(entry) if entry else "",
                "outs": {out["path"]: out["md5"] for out in entry.get("outs", [])},
                "fresh": node.address in fresh,
            }
        )
    tags = {"state": state(nodes)} if status == "FINISHED" else {}
    run.end(status, _headlines(nodes), tags=tags, stages=stages)
    return run.page


def earlier(target: str, nodes: Sequence[Node]) -> str | None:
    """Page of the run of an earlier call that ended in the present state."""
    from tasks.runtime import tracking

    experiment = tracking.open_store()
    run = tracking.find(experiment, {"target": target, "state": state(nodes)})
    return tracking.page(experiment, run) if run else None


def linked(target: str, nodes: Sequence[Node], say: Callable[[str], None]) -> str:
    """Page of a run over stages that `dvc repro` made."""
    return finish(begin(target, nodes, say), nodes, "FINISHED", [])


def state(nodes: Sequence[Node]) -> str:
    """One hash over what all these stages were made from."""
    locked = fingerprint.locked()
    made_from = {node.address: fingerprint.of(locked[node.address]) for node in nodes if node.address in locked}
    return fingerprint.of(made_from)


def _headlines(nodes: Sequence[Node]) -> dict[str, float]:
    """Those figures of the stages' metrics files that runs are compared by; each stage's own run has all of its own."""
    values: dict[str, float] = {}
    for node in nodes:
        path = stage.bind(node.address).metrics
        if path.exists():
            metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            word, _, variant = node.address.partition("@")
            for name, value in record.figures(metrics, "").items():
                values["/".join(part for part in (word, variant, name.lstrip("/")) if part)] = value
    return {name: value for name, value in values.items() if any(PurePosixPath(name).match(h) for h in HEADLINES)}
