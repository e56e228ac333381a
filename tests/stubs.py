"""Stand-ins for the stages: no model, the same graph, arguments and records. They make the wiring quick to test."""

from __future__ import annotations

from pathlib import Path

from tasks.runtime import stage

STUB = '''\
"""Stand-in stage: its out is a function of its params and inputs."""
import hashlib
import json

from tasks.runtime import record


def run(shared, cfg, *, out, **inputs):
    text = json.dumps([shared.model_dump(mode="json"), cfg.model_dump(mode="json")])
    for name, folder in sorted(inputs.items()):
        for path in sorted(folder.rglob("*")):
            text += name + path.name + (path.read_text() if path.is_file() else "")
    digest = hashlib.sha256(text.encode()).hexdigest()
    (out / "made.txt").write_text(digest)
    for step in range(1, 4):
        record.log(step, 3, {"train/loss": 1 / step, "kl/kl": step / 8}, {"tokens_per_second": 1000.0})
    record.note("dropped 2 rows: too long")
    record.table("answers", [{"prompt": "the film is", "answer": " a delight"}])
    return {"share": int(digest[:4], 16) / 65536}
'''

EVALUATION = STUB.replace(
    '    return {"share": int(digest[:4], 16) / 65536}',
    """    rate = int(digest[:4], 16) / 65536
    interval = {"rate": rate, "low": rate / 2, "high": (1 + rate) / 2}
    return {"win_rate": interval, "kl": {"mean": 2.5}, "gold": {"mean": 0.5}, "answers": {"length": 14.0}}""",
)


def install(workspace: Path) -> None:
    """Put a stand-in in the place of every stage module."""
    for word in {address.partition("@")[0] for address in stage.addresses(workspace / "dvc.yaml")}:
        replace(workspace, word, EVALUATION if word == "evaluation" else STUB)


def replace(workspace: Path, word: str, text: str) -> None:
    """Make `text` the stage module `word`."""
    (workspace / "tasks" / f"{word}.py").write_text(text, encoding="utf-8")
