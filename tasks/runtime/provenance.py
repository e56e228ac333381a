"""Where a run's figures come from: code version, libraries, machine, and the artefacts that the stage reads."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import subprocess
from pathlib import Path

from tasks.runtime import fingerprint, surroundings

LIBRARIES = ("torch", "transformers", "mlflow", "dvc", "prefect", "numpy")


def environment() -> dict[str, str]:
    """Tags of code version and libraries. The environment's variables, which may hold secrets, are not read."""
    tags = {"python": platform.python_version(), "platform": platform.platform(), "processor": surroundings.processor()}
    for library in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            tags[f"version.{library}"] = importlib.metadata.version(library)
    if commit := git("rev-parse", "HEAD"):
        tags["mlflow.source.git.commit"] = commit
        # What runs write is no change of the code.
        changed = git("status", "--porcelain", "--", ".", ":!metrics", ":!dvc.lock")
        tags["git.dirty"] = str(bool(changed)).lower()
    return tags


def git(*arguments: str) -> str:
    """Output of a git command here, or "" where there is no repository or no git."""
    with contextlib.suppress(OSError):
        return subprocess.run(["git", *arguments], check=False, capture_output=True, text=True).stdout.strip()
    return ""


def inputs(address: str) -> dict[str, str]:
    """Path -> DVC's hash of each artefact that the stage reads; {} outside a DVC repository."""
    if not Path(".dvc").is_dir():
        return {}
    read = fingerprint.entry(address).get("deps", [])
    return {dep["path"]: dep.get("md5", "") for dep in read if not dep["path"].endswith(".py")}
