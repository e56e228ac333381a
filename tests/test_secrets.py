"""A whole run, and one that fails, with tokens and passwords around: none of them is written or shown anywhere."""

from __future__ import annotations

from pathlib import Path

from flows import workspace
from tests import planted, stubs
from tests.conftest import run_in

TELLING = """
import os, sys
from tasks.runtime import record
def run(shared, cfg, *, out):
    record.note("the token is " + os.environ["HF_TOKEN"])
    print(os.environ["OPENAI_API_KEY"], file=sys.stderr)
    raise RuntimeError("cannot reach " + os.environ["PIP_INDEX_URL"])
"""


def test_a_whole_run_keeps_secrets_to_itself(tiny: Path) -> None:
    """Terminal (flow.log), records, metrics, artefacts, MLflow's and Prefect's stores, DVC's cache and lock."""
    for part in ("flow.log", "dvc.lock", "mlflow.db", "metrics/comparison.json", "runs/ppo", ".dvc/cache"):
        assert (tiny / part).exists(), part
    assert planted.found(tiny, but=(tiny / workspace.MARK, tiny / "tests/planted.py")) == []


def test_a_stage_that_says_them_is_not_heard(stubbed: Path) -> None:
    """In a note, in what a library prints, and in the traceback of a defect."""
    stubs.replace(stubbed, "base", TELLING)
    done = run_in(stubbed, "tasks", "base", RLHF_TRACKING="off", **planted.VARIABLES)
    assert done.returncode == 1
    assert "the token is ***" in done.stdout
    assert "RuntimeError: cannot reach https://***@packages.invalid/simple" in done.stdout
    assert [value for value in planted.VALUES if value in done.stdout] == []
    assert planted.found(stubbed, but=(stubbed / "tests/planted.py",)) == []


def test_the_search_finds_them(tmp_path: Path) -> None:
    assert len(set(planted.VALUES)) == len(planted.VARIABLES) + 1
    (tmp_path / "a.bin").write_bytes(b"\x00" + planted.VALUES[9].encode() + b"\x00")
    (tmp_path / planted.PASSWORD).touch()
    assert planted.found(tmp_path) == [f"a.bin: {planted.VALUES[9]}", f"{planted.PASSWORD}: {planted.PASSWORD}"]
