"""Faults of the disk as one message: full, read-only, not permitted."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from tasks.errors import UserError

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the file system is read-only: mount it writable",
    errno.EACCES: "permission denied: give this user access",
    errno.EPERM: "not permitted: give this user access",
    errno.EIO: "the disk failed: check it",
}


@contextlib.contextmanager
def faults_named() -> Iterator[None]:
    """Turn such a fault, whichever library met it, into a UserError that names the file and the way out."""
    try:
        yield
    except Exception as error:
        found = number(error)
        if found is None:
            raise
        where = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        raise UserError(
            f"{where}{_ADVICE[found]}, then run the same command again; finished stages and checkpoints are kept"
        ) from error


def number(error: BaseException) -> int | None:
    """The errno of such a fault; None for any other error. Rust libraries (safetensors) give it only in their text."""
    if isinstance(error, OSError) and error.errno in _ADVICE:
        return error.errno
    text = str(error)
    return next((each for each in _ADVICE if f"(os error {each})" in text or f"[Errno {each}]" in text), None)
