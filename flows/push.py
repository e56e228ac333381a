"""Pushes what dvc.lock records to the DVC remote, and then asks the remote for every file.

`python -m flows.push`. `dvc push` takes a folder's list on the remote for proof that its files are there; here each
file's presence and size are checked at the remote itself, before anything is promoted on the word of a cache.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dvc.repo import Repo

from flows import cache
from tasks.errors import UserError
from tasks.runtime.redaction import redacted

_SHOWN = 3
"""Missing files named in the message."""


def push(remote: str | None = None) -> tuple[int, int]:
    """Push all recorded outs; returns the number of files that are now on the remote, and their bytes.

    Raises UserError when an out is not in the local cache, when the remote cannot be reached or written, and when a
    file is missing on the remote afterwards or has another size there.
    """
    with Repo() as repo:
        files = {oid: path.stat().st_size for out in repo.index.outs for oid, path in cache.files(out)}
        try:
            repo.push(remote=remote)
            there = repo.cloud.get_remote_odb(name=remote, hash_name="md5")
            faults = [fault for oid, size in files.items() if (fault := _fault(there, oid, size))]
        except Exception as error:
            # Every storage library has its own exceptions.
            raise UserError(
                f"DVC remote {remote or 'in .dvc/config'}: {_reason(error)}. Nothing local was changed; push again"
            ) from error
    if faults:
        raise UserError(
            f"{len(faults)} of {len(files)} files are not whole on the DVC remote after the push:"
            f" {'; '.join(faults[:_SHOWN])}. Remove them and their folders' lists (*.dir) there, and push again"
        )
    return len(files), sum(files.values())


def _fault(remote: Any, oid: str, size: int) -> str:
    path = remote.oid_to_path(oid)
    try:
        found = remote.fs.info(path).get("size")
    except FileNotFoundError:
        return f"{path} is missing"
    return "" if found == size else f"{path} has {found} bytes, expected {size}"


def _reason(error: Exception) -> str:
    """What the innermost library says, on one line."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    # An address may hold a password.
    return redacted(f"{str(inner) or str(error) or type(inner).__name__}".replace("\n", " ").rstrip("."))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.push", description=__doc__.splitlines()[0])
    parser.add_argument("--remote", help="a remote of .dvc/config; the default one otherwise")
    arguments = parser.parse_args()
    try:
        files, size = push(arguments.remote)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{files} files, {size / 1e6:.1f} MB, are on the remote")
    return 0


if __name__ == "__main__":
    sys.exit(main())
