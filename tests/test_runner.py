"""`python -m tasks STAGE`: what it refuses, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import stubs
from tests.conftest import change_params, environment, run_in

SLEEPING = """
import time
from pathlib import Path
def run(shared, cfg, *, out, **inputs):
    (out / "part.bin").write_text("half")
    Path("started").touch()
    time.sleep(120)
"""


DEEP = """
import hashlib
from pathlib import Path
def run(shared, cfg, *, out, **inputs):
    Path("started").touch()
    # One call into C, minutes long, without the interpreter's lock: as a backward pass of a large model.
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2**31 - 1)
"""


def stage(folder: Path, address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_in(folder, "tasks", address, **{"RLHF_TRACKING": "off", **variables})


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.05)


def start_sleeping(folder: Path, *command: str, code: str = SLEEPING) -> subprocess.Popen[str]:
    stubs.replace(folder, "base", code)
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment(RLHF_TRACKING="off"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: (folder / "started").exists() or child.poll() is not None)
    assert child.poll() is None, child.stdout.read()
    return child


def holder(folder: Path) -> int:
    return int((folder / ".rlhf/locks/base.lock").read_text())


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_it_writes_the_artefact_the_metrics_and_the_history(stubbed):
    done = stage(stubbed, "base")
    assert done.returncode == 0, done.stdout
    assert [path.name for path in (stubbed / "runs/base").iterdir()] == ["made.txt"]
    text = (stubbed / "metrics/base.json").read_text()
    assert list(json.loads(text)) == ["share"]
    assert text.startswith('{\n  "share"')
    assert text.endswith("\n}\n")
    history = (stubbed / "metrics/base.csv").read_bytes()
    assert history == b"step,train/loss,kl/kl\n1,1.0,0.125\n2,0.5,0.25\n3,0.3333333333333333,0.375\n"
    for part in ("base: start -> runs/base\n", "base 3/3", "base: dropped 2 rows: too long\n", "base: done in"):
        assert part in done.stdout


def test_a_variant_has_its_own_files(stubbed):
    for word in ("sft", "corpus", "dpo", "baseline"):
        (stubbed / "runs" / word).mkdir(parents=True)
    assert stage(stubbed, "evaluation@dpo").returncode == 0
    assert (stubbed / "runs/evaluation/dpo/made.txt").exists()
    assert (stubbed / "metrics/evaluation/dpo.json").exists()


def test_what_stood_in_the_out_is_gone(stubbed):
    (stubbed / "runs/base").mkdir(parents=True)
    (stubbed / "runs/base/old.txt").write_text("old")
    assert stage(stubbed, "base").returncode == 0
    assert not (stubbed / "runs/base/old.txt").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("evaluation", "unknown stage 'evaluation': expected one of base, corpus,"),
        ("evaluation@nobody", "unknown stage 'evaluation@nobody'"),
        ("errors", "unknown stage 'errors'"),
        ("samples", "runs/sft is missing: run `dvc repro sft` or `make align`"),
        ("comparison", "runs/evaluation is missing: run `dvc repro evaluation@sft` or `make align`"),
        ("--help", "usage: python -m tasks STAGE"),
    ],
)
def test_a_mistake_gives_one_message(stubbed, address, message):
    done = stage(stubbed, address)
    assert done.returncode == 1
    assert done.stdout.startswith(f"error: {message}")
    assert done.stdout.count("\n") == 1


def test_bad_params_fail_before_torch_is_imported(tiny, tmp_path):
    # The real stages, whose modules import torch.
    text = (tiny / "params.yaml").read_text().replace("beta:", "betta:")
    (tmp_path / "params.yaml").write_text(text)
    program = f"""
import sys; sys.path.insert(0, {str(tiny)!r})
from tasks.__main__ import main
status = main(["dpo"])
heavy = [name for name in ("torch", "transformers", "mlflow", "dvc") if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else status)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "dpo.loss.betta: unknown key, expected beta?" in done.stderr
    assert "dpo.loss.beta: missing" in done.stderr
    assert "imported" not in done.stderr
    assert "Traceback" not in done.stderr


def test_outside_the_repository_root(stubbed):
    done = stage(stubbed / "data", "base", PYTHONPATH=str(stubbed))
    assert (done.returncode, done.stdout) == (1, "error: params.yaml not found: run this from the repository root\n")


def test_an_old_python_is_named(monkeypatch, capsys):
    from tasks.__main__ import main

    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert main(["base"]) == 1
    assert capsys.readouterr().err.startswith("error: Python 3.11 or newer is needed; this is ")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("return {}", 1, "error: stage base wrote nothing"),
        ("(out / 'a').touch(); return {'kl': {'mean': float('nan')}}", 1, "metrics/base.json: kl.mean is nan"),
        (
            "from tasks.errors import UserError; raise UserError('data/x.jsonl:3: bad')",
            1,
            "error: data/x.jsonl:3: bad\n",
        ),
        ("from tasks.errors import Unreachable; raise Unreachable('no index')", 75, "error: no index\n"),
        ("raise KeyboardInterrupt", 130, "error: base interrupted"),
        ("return {}['lost']", 1, "KeyError: 'lost'"),
    ],
)
def test_how_a_stage_fails(stubbed, body, status, message):
    stubs.replace(stubbed, "base", f"def run(shared, cfg, *, out):\n    {body}\n")
    done = stage(stubbed, "base")
    assert done.returncode == status
    assert message in done.stdout
    # A defect keeps its traceback, a mistake of the user's has none.
    assert ("Traceback" in done.stdout) == ("lost" in body)
    assert not (stubbed / "runs/base").exists()
    assert not (stubbed / "metrics/base.json").exists()


def test_a_second_process_is_told_who_holds_the_stage(stubbed):
    first = start_sleeping(stubbed, "tasks", "base")
    try:
        second = stage(stubbed, "base")
        assert second.returncode == 1
        assert second.stdout == (
            f"error: stage base is in use by process {first.pid} (.rlhf/locks/base.lock): wait for it, or end it\n"
        )
    finally:
        first.kill()
        first.wait()
    # The kernel has freed the lock of the killed process.
    stubs.replace(stubbed, "base", stubs.STUB)
    assert stage(stubbed, "base").returncode == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_leaves_no_half_artefact(stubbed, number, status):
    child = start_sleeping(stubbed, "tasks", "base")
    child.send_signal(number)
    assert child.wait(60) == status
    assert not (stubbed / "runs/base").exists()


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_it_dies_with_dvc(stubbed, monkeypatch, shell):
    if not Path(shell).exists():
        pytest.skip(f"no {shell}")
    monkeypatch.setenv("SHELL", shell)
    dvc = start_sleeping(stubbed, "dvc", "repro", "base")
    trainer = holder(stubbed)
    os.kill(dvc.pid, signal.SIGKILL)
    dvc.wait()
    wait_for(lambda: gone(trainer), 20)


def test_gpus_are_named_without_torch(monkeypatch):
    from tasks.runtime import process

    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia1"), Path("/dev/nvidia0")]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert process.gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, MIG-GPU/0")
    assert process.gpus() == ["1", "MIG-GPU_0"]
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert process.gpus() == []
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert process.gpus() == []


def test_params_of_a_test_change_what_dvc_tracks(stubbed):
    stage(stubbed, "base")
    before = (stubbed / "runs/base/made.txt").read_text()
    change_params(stubbed, {"shared": {"seed": 18}})
    stage(stubbed, "base")
    assert (stubbed / "runs/base/made.txt").read_text() != before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_long_computation_does_not_keep_it_from_ending(stubbed, number, status):
    child = start_sleeping(stubbed, "tasks", "base", code=DEEP)
    child.send_signal(number)
    assert child.wait(60) == status
    assert "error: base interrupted: the same command starts it again" in child.stdout.read()


def test_a_processor_without_bfloat16_is_told_so(stubbed):
    """The note depends on this machine's processor; what decides is the list of its features."""
    features = set(Path("/proc/cpuinfo").read_text().split()) if Path("/proc/cpuinfo").exists() else {"bf16"}
    for word in ("base", "corpus"):
        (stubbed / "runs" / word).mkdir(parents=True)
    change_params(stubbed, {"shared": {"precision": "bfloat16"}})
    said = stage(stubbed, "sft").stdout
    assert ("has no bfloat16 units" in said) is not bool({"avx512_bf16", "amx_bf16", "bf16"} & features)
    assert "bfloat16 units" not in stage(stubbed, "corpus").stdout
    change_params(stubbed, {"shared": {"precision": "float32"}})
    assert "bfloat16 units" not in stage(stubbed, "sft").stdout
