"""Tables of the user's: JSONL, parquet or a hub data set, as plain rows that know where they stand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import UserError, shown


class Table(Protocol):
    """What is read; `tasks.runtime.config.Table` is one."""

    @property
    def path(self) -> str: ...
    @property
    def hub(self) -> bool: ...
    @property
    def split(self) -> str | None: ...
    @property
    def columns(self) -> Mapping[Any, str]: ...


@dataclass(frozen=True)
class Row:
    """One row under our column names; a column that the row lacks is None."""

    where: str
    """File and line, for messages."""
    values: dict[str, Any]


def read(root: Path, table: Table) -> list[Row]:
    """All rows of `table`, whose files lie below `root`.

    Raises UserError for a path that leads out of `root` or matches nothing, for a file that cannot be read, and for a
    column that no row has (it lists those found). An empty file gives no rows.
    """
    found = list(_hub(table) if table.hub else _files(root, table.path))
    columns = dict.fromkeys(name for _, raw in found for name in raw)
    for ours, theirs in table.columns.items():
        if found and theirs not in columns:
            raise UserError(f"{table.path}: no column {theirs!r} (for {ours}); it has: {', '.join(map(str, columns))}")
    return [Row(where, {ours: raw.get(theirs) for ours, theirs in table.columns.items()}) for where, raw in found]


def _files(root: Path, pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UserError(f"{pattern}: expected a path below corpus.data ({root})")
    if not root.is_dir():
        raise UserError(f"corpus.data: {root} is not a folder")
    paths = [root / pattern] if (root / pattern).is_file() else sorted(p for p in root.glob(pattern) if p.is_file())
    if not paths:
        here = ", ".join(sorted(p.name for p in root.iterdir())[:20]) or "nothing"
        raise UserError(f"{root / pattern} not found; {root} holds: {here}")
    for path in paths:
        if not path.resolve().is_relative_to(root.resolve()):
            raise UserError(f"{path} is a link out of corpus.data ({root}), where no change of it would be noticed")
        if path.suffix == ".parquet":
            yield from _parquet(path)
        elif path.suffix in (".jsonl", ".json", ".ndjson"):
            yield from _jsonl(path)
        else:
            raise UserError(f"{path}: expected .jsonl or .parquet")


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")  # editors on Windows put a byte order mark in front
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start}): save it as UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not JSON ({error}); expected one object per line, found {shown(line)}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: is {shown(row)}, expected an object with the columns as keys")
        yield where, row


def _parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.ParquetFile(path).read().to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as parquet: {error}") from None
    for number, row in enumerate(rows):
        yield f"{path} row {number}", row


def _hub(table: Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a hub data set, `id` or `id@revision`."""
    if table.split is None:
        raise UserError(f"{table.path}: a hub data set needs its split, such as train")
    import datasets

    name, _, revision = table.path.partition("@")
    try:
        rows = datasets.load_dataset(name, split=table.split, revision=revision or None)
    except Exception as error:  # connection, missing data set, missing split: each its own class, some private
        raise UserError(f"{table.path}: cannot be read from the hub: {type(error).__name__}: {error}") from error
    for number, row in enumerate(rows):
        yield f"{table.path} {table.split} row {number}", row
