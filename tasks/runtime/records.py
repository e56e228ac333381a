"""JSON and JSONL files of artefacts: written whole or not at all, the same bytes for the same rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.errors import UserError


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
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from None
        missing = [field for field in fields if not isinstance(row, dict) or field not in row]
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
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None


def write_text(path: Path, text: str) -> None:
    """Write through a temporary name in the same folder: flush to disk, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} not found") from None
