"""Workspaces (stand-alone copies of the project) for real processes, and a tiny run for tests within this process."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows import workspace
from tasks.runtime import config
from tests import planted, stubs

# Whoever starts the tests in the background may have SIGINT ignored, and every process below would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
ROOT = Path(__file__).parents[1]
WORDS = ["good", "bad", "fine", "dull", "warm", "cold", "new", "old"]
LIMIT = 900
"""Seconds for one command: only what hangs takes that long."""
FIRST = ("test_storm.py", "test_concurrency.py", "test_delivery.py", "test_dvc.py", "test_flow.py", "test_tracking.py")
"""Files that start whole pipelines or wait for servers: begun first, so that no process is left with one at the end,
and in an order in which one does not wait for what the other makes."""
FOREIGN = ("PREFECT_", "MLFLOW_", "RLHF_", "DVC_", "PYTEST_")
"""Variables of the caller that must not reach a workspace."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


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


def start_in(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """The same, left running in a process group of its own, as a terminal gives one to a command."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the flow on the tiny profile with the real stages. Shared: leave it as it was.

    It ran with secrets around, which must be nowhere in it (tests/test_secrets.py).
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
            with (origin / workspace.MARK).open("a", encoding="utf-8") as config_local:
                config_local.write(planted.REMOTE)
            done = run_in(origin, "flows.pipeline", **planted.VARIABLES)
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


@pytest.fixture(scope="session")
def params() -> config.Params:
    """params.yaml with the tiny profile on it."""
    read = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    return config.Params.model_validate(workspace.merge(read, _overlay()))


@pytest.fixture(scope="session")
def runs(tmp_path_factory, params) -> Path:
    """base, corpus, sft, samples, preferences and reward, made by the stages from rows written here. Read only."""
    # Imported here: most tests need no torch.
    from tasks import preferences, reward, samples, sft
    from tasks.language import models, pretrained
    from tasks.runtime import records

    folder = tmp_path_factory.mktemp("runs")
    model, tokenizer = pretrained.random_llama(1)
    models.save(model, tokenizer, folder / "base")
    answers = [f" it is {a} and {b}" for a in WORDS for b in WORDS]
    prompts = [f"film {n}" for n in range(64)]
    rows = [{"id": str(n), "prompt": p, "answer": a} for n, (p, a) in enumerate(zip(prompts, answers, strict=True))]
    corpus = folder / "corpus"
    records.write_jsonl(corpus / "demonstrations.jsonl", rows)
    records.write_jsonl(corpus / "prompts.jsonl", rows)
    records.write_jsonl(corpus / "held_out.jsonl", [{"id": f"h{n}", "prompt": f"book {n}"} for n in range(16)])
    pair = {"chosen": " it is good", "rejected": " it is bad", "origin": "file", "margin": None}
    records.write_jsonl(corpus / "pairs.jsonl", [{"id": f"p{n}", "prompt": f"song {n}", **pair} for n in range(40)])
    (corpus / "judge").mkdir()
    (corpus / "judge" / "judge.py").write_text(
        "def score(prompts, answers):\n    return [float(len(a)) for a in answers]\n"
    )
    settings = {"kind": "callable", "function": "judge.py:score"}
    records.write_json(corpus / "judge" / "judge.json", settings)
    made = {"base": folder / "base", "corpus": corpus}
    for stage, section, inputs in [
        (sft, params.sft, ("base", "corpus")),
        (samples, params.samples, ("sft", "corpus")),
        (preferences, params.preferences, ("samples", "corpus", "base")),
        (reward, params.reward, ("sft", "samples", "preferences")),
    ]:
        word = stage.__name__.rpartition(".")[2]
        made[word] = folder / word
        stage.run(params.shared, section, **{name: made[name] for name in inputs}, out=made[word])
    return folder
