"""Tables of the user's: JSONL, parquet or a hub data set, as plain rows that know where they stand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import UserError, shown
from tasks.language import jsonl

_Found = tuple[str, dict[str, Any]]
_JSONL = (".jsonl", ".json", ".ndjson")
_FORMATS = (*_JSONL, ".parquet")
_SHOWN = 20
"""Names in a message that lists what there is."""


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
    column that no row of a file has (it lists those found). An empty file gives no rows.
    """
    if table.hub:
        return _renamed(table, table.path, list(_hub(table)))
    rows: list[Row] = []
    for path in _paths(root, table.path):
        name = _name(path)
        try:
            found = jsonl.rows(path, name) if path.suffix.lower() in _JSONL else _parquet(path, name, table)
            rows += _renamed(table, name, list(found))
        except OSError as error:
            raise UserError(f"{name}: cannot be read: {_said(error)}") from None
    return rows


def _name(path: Path) -> str:
    """A path for messages: file names may hold bytes that are no UTF-8, and control characters."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _said(error: Exception) -> str:
    """Without the path, which the message has already."""
    return getattr(error, "strerror", None) or str(error)


def _renamed(table: Table, name: str, found: Sequence[_Found]) -> list[Row]:
    if found:
        _require(table, name, dict.fromkeys(key for _, raw in found for key in raw))
    return [Row(where, {ours: raw.get(theirs) for ours, theirs in table.columns.items()}) for where, raw in found]


def _require(table: Table, name: str, columns: Iterable[str]) -> None:
    known = list(columns)
    for ours, theirs in table.columns.items():
        if theirs not in known:
            listed = ", ".join(key if key.isprintable() else shown(key) for key in known[:_SHOWN])
            raise UserError(f"{name}: no column {theirs!r} (for {ours}); it has: {shown(listed, 300)[1:-1]}")


def _paths(root: Path, pattern: str) -> list[Path]:
    """The files that a path or glob names, in order of their names."""
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        raise UserError(f"{pattern}: expected a path below corpus.data ({root})")
    if not root.is_dir():
        raise UserError(f"corpus.data: {root} is not a folder")
    try:
        exact = root / pattern
        # A folder that a glob such as ** goes through is none of its files.
        globbed = (p for p in root.glob(pattern) if not p.is_dir() or p.suffix.lower() in _FORMATS)
        paths = [exact] if os.path.lexists(exact) else sorted(globbed)
        if not paths:
            here = ", ".join(sorted(_name(Path(p.name)) for p in root.iterdir())[:_SHOWN]) or "nothing"
            raise UserError(f"{root / pattern} not found; {root} holds: {here}")
        for path in paths:
            _require_file(path, root)
    except (OSError, ValueError, NotImplementedError) as error:
        raise UserError(f"{shown(pattern)}: is no path or glob below corpus.data ({root}): {_said(error)}") from None
    return paths


def _require_file(path: Path, root: Path) -> None:
    """Raise UserError for whatever is no regular file of a known format in `root`."""
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a link that leads to itself
        raise UserError(f"{_name(path)} is a link that leads nowhere, expected a file") from None
    if not target.is_relative_to(root.resolve()):
        raise UserError(f"{_name(path)} is a link out of corpus.data ({root}), where no change of it would be noticed")
    if path.is_dir():
        raise UserError(f"{_name(path)} is a folder, expected a file (or a glob, such as {path.name}/*.jsonl)")
    if not path.is_file():
        raise UserError(f"{_name(path)} is no regular file (a pipe, a socket or a device), expected one")
    if path.suffix.lower() not in _FORMATS:
        raise UserError(f"{_name(path)}: expected .jsonl or .parquet")


def _parquet(path: Path, name: str, table: Table) -> Iterator[_Found]:
    """The wanted columns of the rows; what the others hold, no one needs to be able to read."""
    import pyarrow
    import pyarrow.parquet

    wanted = list(dict.fromkeys(table.columns.values()))
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            _require(table, name, columns)
            if twice := [column for column in wanted if columns.count(column) > 1]:
                raise UserError(f"{name}: has column {twice[0]!r} {columns.count(twice[0])} times, expected once")
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for row in batch.to_pylist():
                    yield f"{name} row {number}", row
                    number += 1
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{name}: cannot be read as parquet: {said}") from None


def _hub(table: Table) -> Iterator[_Found]:
    """Rows of a hub data set, `id` or `id@revision`."""
    if table.split is None:
        raise UserError(f"{table.path}: a hub data set needs its split, such as train")
    import datasets

    name, _, revision = table.path.partition("@")
    if Path(name).exists():  # datasets would read it in place of the hub's, unversioned
        raise UserError(f"{table.path}: is a path on this machine, expected a hub data set id (or hub: false)")
    try:
        rows = datasets.load_dataset(name, split=table.split, revision=revision or None)
        found = [(f"{table.path} {table.split} row {number}", dict(row)) for number, row in enumerate(rows)]
    except Exception as error:  # connection, missing data set, missing split: each its own class, some private
        raise UserError(f"{table.path}: cannot be read from the hub: {type(error).__name__}: {error}") from error
    yield from found
