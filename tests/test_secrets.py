"""A whole run, and one that fails, with tokens and passwords around: none of them is written or shown anywhere."""

from __future__ import annotations

from pathlib import Path

from flows import workspace
from tests import planted


def test_a_whole_run_keeps_secrets_to_itself(tiny: Path) -> None:
    """Terminal (flow.log), records, metrics, artefacts, MLflow's and Prefect's stores, DVC's cache and lock."""
    for part in ("flow.log", "dvc.lock", "mlflow.db", "metrics/comparison.json", "runs/ppo", ".dvc/cache"):
        assert (tiny / part).exists(), part
    assert planted.found(tiny, but=(tiny / workspace.MARK, tiny / "tests/planted.py")) == []


def test_the_search_finds_them(tmp_path: Path) -> None:
    assert len(set(planted.VALUES)) == len(planted.VARIABLES) + 1
    (tmp_path / "a.bin").write_bytes(b"\x00" + planted.VALUES[9].encode() + b"\x00")
    (tmp_path / planted.PASSWORD).touch()
    assert planted.found(tmp_path) == [f"a.bin: {planted.VALUES[9]}", f"{planted.PASSWORD}: {planted.PASSWORD}"]
