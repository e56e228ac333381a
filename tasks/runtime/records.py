"""JSON and JSONL files of artefacts: written whole or not at all, the same bytes for the same rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.errors import UserError, shown


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """One row a line, keys in the row's order. Returns the number of rows. Raises ValueError for NaN and infinity."""
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows]
    write_text(path, "".join(lines))
    return len(lines)


def read_jsonl(path: Path, *fields: str) -> list[dict[str, Any]]:
    """The rows of an artefact; each must have `fields`. Raises UserError that names file and line."""
    rows = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not JSON ({error}): it was changed since a stage wrote it") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: is {shown(row)}, expected an object with {', '.join(fields) or 'keys'}")
        missing = [field for field in fields if field not in row]
        if missing:
            raise UserError(f"{path}:{number}: lacks {', '.join(missing)}")
        rows.append(row)
    return rows


def write_json(path: Path, value: Any) -> None:
    """One indented JSON document with sorted keys."""
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    """The document. Raises UserError that names the file."""
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}): it was changed since a stage wrote it") from None


def write_text(path: Path, text: str) -> None:
    """Write through a temporary name in the same folder: flush to disk, then rename.

    Raises UserError for a text that UTF-8 cannot hold, before anything is written.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        around = shown(text[max(0, error.start - 20) : error.end + 20])
        raise UserError(f"{path}: half a surrogate pair in {around}, expected whole characters") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} not found") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start}): it was changed since a stage wrote it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
