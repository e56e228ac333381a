"""A stand-alone copy of the project with other params: the smoke run, the tests, and trials beside the main run.

`python -m flows.workspace FOLDER --overlay profiles/tiny.yaml`
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.errors import UserError, shown
from tasks.runtime import config, document

MADE = ("runs", "metrics", "dvc.lock")
"""What runs make: a workspace starts without the project's and keeps its own."""
NO_GIT = "[core]\n    no_scm = true\n"
MARK = Path(".dvc/config.local")
"""Marks a workspace; DVC reads it and leaves the surrounding git repository alone."""


def create(folder: Path, overlay: Mapping[str, Any] | None = None, source: Path = Path()) -> None:
    """Copy the project's files (tracked, or new and not ignored) to `folder` and lay `overlay` on its params.yaml.

    An existing workspace is brought up to date and keeps what its runs made. Raises UserError for any other folder.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise UserError(f"{folder} exists and is no workspace: expected a new folder")
    names = [name for name in _files(source) if Path(name).parts[0] not in MADE]
    for name in names:
        _copy(source / name, folder / name)
    for code in [*folder.glob("tasks/**/*.py"), *folder.glob("flows/**/*.py")]:
        if str(code.relative_to(folder)) not in names:
            code.unlink()
    (folder / MARK).write_text(NO_GIT, encoding="utf-8")
    document.write(folder / "params.yaml", merge(document.read(source / "params.yaml"), overlay or {}))


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid on `below`: mappings merge key by key, but one of another `kind` replaces what was there."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        alike = isinstance(value, Mapping) and isinstance(old, Mapping) and value.get("kind") in (None, old.get("kind"))
        merged[key] = merge(old, value) if alike else value  # type: ignore[arg-type]
    return merged


def laid(overlay: Path, source: Path = Path()) -> dict[str, Any]:
    """The overlay in a file. Raises UserError where params.yaml with it is not one that the stages accept."""
    found = document.read(overlay)
    if not isinstance(found, dict):
        raise UserError(f"{overlay}: is {shown(found)}, expected some of the sections of params.yaml")
    config.check(merge(document.read(source / "params.yaml"), found), f"{overlay} laid on params.yaml")
    return found


def _files(source: Path) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"a workspace is copied from a git checkout, and git failed in {source.resolve()}: {error}"
        ) from None
    return [name for name in listed.stdout.split("\0") if name and (source / name).is_file()]


def _copy(source: Path, target: Path) -> None:
    """Copy unless the bytes are the same, so that DVC's record of the file's time stays good."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or not filecmp.cmp(source, target, shallow=False):
        shutil.copy2(source, target)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.workspace", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--overlay", type=Path, help="YAML file laid on params.yaml, such as profiles/tiny.yaml")
    arguments = parser.parse_args()
    try:
        create(arguments.folder, laid(arguments.overlay) if arguments.overlay else {})
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
