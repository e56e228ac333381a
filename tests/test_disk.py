"""A disk that is full or read-only: one message, what was made before stays, the rerun works."""

from __future__ import annotations

import errno
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.errors import UserError
from tasks.runtime import disk
from tests import stubs
from tests.conftest import environment, run_in

LARGE = """
def run(shared, cfg, *, out, **inputs):
    (out / "large.bin").write_bytes(bytes(4_000_000))
    return {"share": 0.5}
"""


@pytest.fixture(scope="module", autouse=True)
def _namespaces():
    """A file system of one's own: root, or a user namespace."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("this machine gives no mount namespace (unshare -rm)")


def on(mount: Path, options: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m ...` in a workspace in which `mount` is a small file system of its own."""
    mount.mkdir(parents=True, exist_ok=True)
    command = shlex.join([sys.executable, "-m", *arguments])
    return subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            f"mount -t tmpfs -o {options} tmpfs {shlex.quote(str(mount))} && exec {command}",
        ],
        cwd=folder,
        env=environment(RLHF_TRACKING="off"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def repro(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_in(folder, "dvc", "repro", *arguments, RLHF_TRACKING="off")


@pytest.fixture
def made(stubbed):
    """`base` is made; `corpus` writes 4 MB."""
    assert repro(stubbed, "base").returncode == 0
    stubs.replace(stubbed, "corpus", LARGE)
    return stubbed


@pytest.mark.parametrize(
    ("mount", "options", "message"),
    [
        (".rlhf/partial", "size=1m", "error: the disk is full: free some space, then run the same command again"),
        (".rlhf/partial", "ro", ": the file system is read-only: mount it writable, then run the same command again"),
    ],
    ids=["full while writing", "read-only"],
)
def test_one_message_and_the_rerun_works(made, mount, options, message):
    before = (made / "runs/base/made.txt").read_bytes(), (made / "dvc.lock").read_bytes()
    done = on(made / mount, options, made, "dvc", "repro", "--single-item", "corpus")
    assert done.returncode != 0
    assert message in done.stdout
    assert "Traceback" not in done.stdout
    assert ((made / "runs/base/made.txt").read_bytes(), (made / "dvc.lock").read_bytes()) == before
    done = repro(made, "corpus")
    assert done.returncode == 0, done.stdout
    assert (made / "runs/corpus/large.bin").stat().st_size == 4_000_000


def test_a_full_cache_is_no_success(made):
    """DVC itself says that it is: it records the stage and exits with 0."""
    mount = made / ".dvc/cache"
    assert on(mount, "size=1m", made, "dvc", "repro", "--force", "--single-item", "corpus").returncode == 0
    (made / "dvc.lock").unlink()
    done = on(mount, "size=1m", made, "flows.pipeline", "corpus")
    assert done.returncode == 1
    assert "error: corpus failed: runs/corpus is recorded in dvc.lock, but DVC's cache lacks" in done.stdout
    done = run_in(made, "flows.pipeline", "corpus", RLHF_TRACKING="off")
    assert done.returncode == 0, done.stdout
    assert "corpus: done in" not in done.stdout
    sizes = [path.stat().st_size for path in (made / ".dvc/cache/files").rglob("*") if path.is_file()]
    assert 4_000_000 in sizes


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), r"^/a/b: the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), r"^/a/b: permission denied"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), r"^the disk quota is used up"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), r"^the disk is full"),
    ],
)
def test_every_library_s_way_to_say_it(error, message):
    with pytest.raises(UserError, match=message), disk.faults_named():
        raise error


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "No such file", "/a"), ValueError("x (os error 5)x")]
)
def test_what_is_no_fault_of_the_disk_stays_what_it_is(error):
    with pytest.raises(type(error)), disk.faults_named():
        raise FileNotFoundError(errno.ENOENT, "No such file", "/a") if isinstance(error, OSError) else ValueError("x")


def test_weights_on_a_full_disk(tmp_path):
    """safetensors writes in Rust and knows no errno."""
    (tmp_path / "code.py").write_text(f"""
import torch
from safetensors.torch import save_file
from tasks.errors import UserError
from tasks.runtime import disk
try:
    with disk.faults_named():
        save_file({{"w": torch.zeros(10**6)}}, {str(tmp_path / "small/w.safetensors")!r})
except UserError as error:
    print("said:", error)
""")
    (tmp_path / "small").mkdir()
    command = f"mount -t tmpfs -o size=1m tmpfs {tmp_path / 'small'} && exec {sys.executable} {tmp_path / 'code.py'}"
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command], env=environment(PYTHONPATH=root), capture_output=True, text=True
    )
    assert "said: the disk is full" in done.stdout, done.stderr
