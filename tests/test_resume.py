"""A stage that is stopped and started again: the same bytes as one that never was."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tasks import dpo, ppo, reward, samples, sft
from tasks.runtime import record, work

INPUTS = {
    "sft": (sft, ("base", "corpus")),
    "samples": (samples, ("sft", "corpus")),
    "reward": (reward, ("sft", "samples", "preferences")),
    "dpo": (dpo, ("sft", "preferences")),
    "ppo": (ppo, ("sft", "reward", "corpus")),
}


class Interrupter(record.History):
    """Keeps the figures, and interrupts the stage at a step."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at
        self.steps: list[int] = []
        self.notes: list[str] = []

    def log(self, step, total, values, timing) -> None:
        super().log(step, total, values, timing)
        self.steps.append(step)
        if step == self.at:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("word", INPUTS)
def test_resuming_at_any_step_gives_the_same_bytes(word, precision, runs, params, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module, names = INPUTS[word]
    shared = params.shared.model_copy(update={"precision": precision})
    section = getattr(params, word)
    if word == "samples":
        section = section.model_copy(update={"batch": 16})  # several groups

    def run(out: str, listener: Interrupter):
        with record.listening(listener), work.using(word, "print"):
            return module.run(shared, section, **{name: runs / name for name in names}, out=tmp_path / out)

    whole = Interrupter()
    monkeypatch.setenv(work.INTERVAL, "1e9")
    metrics = run("whole", whole)
    assert len(whole.steps) > 2
    monkeypatch.setenv(work.INTERVAL, "0")
    # Each checkpoint is of the step before the interruption; the third start has no interruption left.
    for at in (whole.steps[1], whole.steps[-1]):
        with pytest.raises(KeyboardInterrupt):
            run("resumed", Interrupter(at))
    resumed = Interrupter()
    assert run("resumed", resumed) == metrics
    assert digests(tmp_path / "resumed") == digests(tmp_path / "whole")
    assert resumed.rows == whole.rows
    if word == "samples":
        assert resumed.steps == whole.steps[-1:]  # the earlier groups are not sampled again
    assert any(f"goes on after step {len(whole.steps) - 1} " in note for note in resumed.notes)
