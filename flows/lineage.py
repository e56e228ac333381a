"""The pipeline's MLflow run: params, headline figures, and links to each stage's run, also where nothing was to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flows.graph import Node
from tasks.runtime import fingerprint, stage, tracking


def begin(target: str, nodes: Sequence[Node]) -> str:
    """Open the run; returns its id."""
    params = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    words = {"shared", *(node.address.partition("@")[0] for node in nodes)}
    commit = tracking.git("rev-parse", "--short", "HEAD")
    shown = {word: section for word, section in params.items() if word in words}
    return tracking.start_pipeline(f"{target} {commit}".strip(), shown, {"target": target})


def finish(run: str, nodes: Sequence[Node], status: str, fresh: Sequence[str]) -> None:
    """Close the run as FINISHED, FAILED or KILLED. fresh: the stages that ran just now."""
    locked = fingerprint.locked()
    links = {}
    for node in nodes:
        entry = locked.get(node.address)
        made = entry and tracking.find({"stage": node.address, "fingerprint": fingerprint.of(entry)})
        if entry and made:
            links[node.address] = made
            if node.address in fresh:
                tracking.tag(made, {f"dvc.out.{out['path']}": out["md5"] for out in entry["outs"]})
    tags = {f"run.{address.replace('@', '.')}": made for address, made in links.items()}
    tags["mlflow.note.content"] = _note(nodes, links, fresh)
    if status == "FINISHED":
        tags["state"] = state(nodes)
    tracking.end_pipeline(run, status, _headlines(nodes), tags)


def earlier(target: str, nodes: Sequence[Node]) -> str | None:
    """The run of an earlier call that ended in the present state."""
    return tracking.find({"target": target, "state": state(nodes)})


def linked(target: str, nodes: Sequence[Node]) -> str:
    """A run over stages that `dvc repro` made."""
    run = begin(target, nodes)
    finish(run, nodes, "FINISHED", [])
    return run


def page(run: str) -> str:
    """Where the tracking server shows this run, from the server's address on."""
    return tracking.page(run)


def state(nodes: Sequence[Node]) -> str:
    """One hash over what all these stages were made from."""
    locked = fingerprint.locked()
    made_from = {node.address: fingerprint.of(locked[node.address]) for node in nodes if node.address in locked}
    return fingerprint.of(made_from)


def _headlines(nodes: Sequence[Node]) -> dict[str, float]:
    """The figures of every stage's metrics file, grouped by stage."""
    values: dict[str, float] = {}
    for node in nodes:
        path = stage.bind(node.address).metrics
        if path.exists():
            metrics: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            word, _, variant = node.address.partition("@")
            for name, value in tracking.figures(metrics, "").items():
                values["/".join(part for part in (word, variant, name.lstrip("/")) if part)] = value
    return values


def _note(nodes: Sequence[Node], links: Mapping[str, str], fresh: Sequence[str]) -> str:
    lines = ["| stage | run | |", "|---|---|---|"]
    for node in nodes:
        run = links.get(node.address)
        linked = f"[{run[:8]}]({tracking.page(run)[1:]})" if run else "none"
        lines.append(f"| {node.address} | {linked} | {'made now' if node.address in fresh else 'as before'} |")
    return "\n".join(lines)
