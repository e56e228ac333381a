"""Pushing: what is on the remote is asked of the remote."""

from __future__ import annotations

import json

import pytest

from tests.conftest import run_in


@pytest.fixture
def made(stubbed):
    """A workspace in which `base` is made."""
    done = run_in(stubbed, "dvc", "repro", "base", RLHF_TRACKING="off")
    assert done.returncode == 0, done.stdout
    return stubbed


def remote_files(folder):
    return sorted(path for path in (folder / ".dvc-remote").rglob("*") if path.is_file())


def test_every_file_is_asked_for(made):
    done = run_in(made, "flows.push")
    assert done.returncode == 0, done.stdout
    # runs/base: its list and made.txt.
    assert done.stdout.splitlines()[-1].startswith("2 files, ")
    assert len(remote_files(made)) == 2
    (listing,) = [path for path in remote_files(made) if path.name.endswith(".dir")]
    (content,) = [path for path in remote_files(made) if path != listing]
    assert [entry["relpath"] for entry in json.loads(listing.read_text())] == ["made.txt"]
    content.chmod(0o644)
    content.write_text("cut")
    done = run_in(made, "flows.push")
    assert done.returncode == 1
    assert f"{content} has 3 bytes, expected 64" in done.stdout
    content.unlink()
    # DVC itself takes the list for proof.
    assert "Everything is up to date" in run_in(made, "dvc", "push").stdout
    done = run_in(made, "flows.push")
    assert done.returncode == 1
    assert f"error: 1 of 2 files are not whole on the DVC remote after the push: {content} is missing" in done.stdout
    listing.unlink()
    assert run_in(made, "flows.push").returncode == 0


def test_a_remote_that_does_not_answer(made):
    for command in (
        ["remote", "add", "far", "s3://bucket/path"],
        ["remote", "modify", "far", "endpointurl", "http://127.0.0.1:9"],
        ["remote", "modify", "--local", "far", "access_key_id", "AKIAPLANTED"],
        ["remote", "modify", "--local", "far", "secret_access_key", "planted-secret"],
    ):
        assert run_in(made, "dvc", *command).returncode == 0
    lock, out = (made / "dvc.lock").read_bytes(), (made / "runs/base/made.txt").read_bytes()
    done = run_in(made, "flows.push", "--remote", "far")
    assert done.returncode == 1
    assert "error: DVC remote far: " in done.stdout
    assert "127.0.0.1:9" in done.stdout
    assert "Traceback" not in done.stdout
    assert "planted" not in done.stdout.lower()
    assert (made / "dvc.lock").read_bytes() == lock
    assert (made / "runs/base/made.txt").read_bytes() == out


def test_an_out_that_is_not_in_the_cache(made):
    for path in sorted((made / ".dvc/cache/files").rglob("*.dir")):
        path.unlink()
    done = run_in(made, "flows.push")
    assert done.returncode == 1
    assert "runs/base is recorded in dvc.lock, but DVC's cache lacks" in done.stdout
