"""Workspaces for the tests: stand-alone copies of the project, run by real processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import workspace
from tests import stubs

ROOT = Path(__file__).parents[1]
LIMIT = 900
"""Seconds for one command: only what hangs takes that long."""
FOREIGN = ("PREFECT_", "MLFLOW_", "RLHF_", "DVC_", "PYTEST_")
"""Variables of the caller that must not reach a workspace."""


def environment(**variables: str) -> dict[str, str]:
    """The caller's environment without its servers, one thread, `python` being this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    # A home without profiles: a developer's own Prefect or DVC settings stay out.
    home = {"HOME": str(ROOT / ".pytest_cache")}
    return {**kept, **threads, **home, "PATH": path, "DVC_NO_ANALYTICS": "1", **variables}


def run_in(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m ...` in a workspace; stdout and stderr together, as a terminal shows them."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the flow on the tiny profile with the real stages. Shared: leave it as it was.

    With pytest-xdist one process makes it while the others wait, and each has its own copy.
    """
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    origin = shared / "tiny-origin"
    with (shared / "tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (origin / "flow.log").exists():
            shutil.rmtree(origin, ignore_errors=True)
            workspace.create(origin, _overlay(), ROOT)
            done = run_in(origin, "flows.pipeline")
            assert done.returncode == 0, done.stdout
            (origin / "flow.log").write_text(done.stdout, encoding="utf-8")
    return shutil.copytree(origin, tmp_path_factory.mktemp("tiny") / "project")


@pytest.fixture(scope="session")
def _stubbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubbed") / "project"
    workspace.create(folder, _overlay(), ROOT)
    stubs.install(folder)
    # Prefect makes its tables once for all copies; that takes longer than a stage.
    home = folder / ".rlhf/prefect"
    home.mkdir(parents=True)
    made = run_in(folder, "prefect", "server", "database", "upgrade", "--yes", PREFECT_HOME=str(home))
    assert made.returncode == 0, made.stdout
    return folder


@pytest.fixture
def stubbed(_stubbed: Path, tmp_path: Path) -> Path:
    """A workspace of one's own in which nothing has run and every stage is a stand-in without a model."""
    return shutil.copytree(_stubbed, tmp_path / "project")


def _overlay() -> dict[str, Any]:
    overlay: dict[str, Any] = yaml.safe_load((ROOT / "profiles/tiny.yaml").read_text(encoding="utf-8"))
    return overlay


def change_params(folder: Path, overlay: Mapping[str, object]) -> None:
    """Lay `overlay` on the workspace's params.yaml."""
    path = folder / "params.yaml"
    params = yaml.safe_load(path.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump(workspace.merge(params, overlay), sort_keys=False), encoding="utf-8")
