"""JSON lines of the user's, strictly: what two readers could take for two things is an error with its line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tasks.errors import UserError, shown

LONGEST = 8 << 20
"""Bytes of a line, characters of a text: far above any prompt, and what bounds the memory a row may take."""
_OTHERS = {
    b"\x1f\x8b": "compressed by gzip: unpack it",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"PAR1": "parquet: name it .parquet",
    b"\xff\xfe": "UTF-16: save it as UTF-8",
    b"\xfe\xff": "UTF-16: save it as UTF-8",
}
"""First bytes of files that often bear the wrong name."""
_MARK = b"\xef\xbb\xbf"
"""Editors on Windows put a byte order mark in front."""


def rows(path: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object with its place, `name:line`. Blank lines are passed over.

    Raises UserError that names the line, what stands there and what was expected. Expected is JSON as its standard
    has it: UTF-8, no NaN or Infinity, no key twice in one object (of two values one would be lost without a word).
    """
    with path.open("rb") as file:
        start = file.read(4)
        for mark, what in _OTHERS.items():
            if start.startswith(mark):
                raise UserError(f"{name}: is {what}; expected text with one JSON object per line")
        file.seek(len(_MARK) if start.startswith(_MARK) else 0)
        for number, line in enumerate(_lines(file, name), 1):
            if line.strip():
                yield f"{name}:{number}", _object(line, f"{name}:{number}")


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise UserError(
                f"{name}:{number}: begins with {shown(line[:200], 40)} and is longer than {LONGEST} bytes; "
                "expected one object per line: shorten it, or put the line ends in"
            )
        yield line


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where}: not UTF-8 (byte {error.start} is {line[error.start : error.start + 1]!r}): save it as UTF-8"
        ) from None
    try:
        row = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        found = shown(text.strip())
        raise UserError(f"{where}: not JSON ({error}); expected one object per line, found {found}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: is {shown(row)}, expected an object with the columns as keys")
    return row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {shown(next(key for key in keys if keys.count(key) > 1))} stands twice")
    return row


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number: write null")
