"""What a running stage says of itself: figures per step, notes and tables, to terminal, history CSV and MLflow.

A stage calls `log`, `note` and `table` here and knows nothing of who listens. Outside a runner (a unit test that calls
`run`) they do nothing.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import UserError
from tasks.runtime import records
from tasks.runtime.redaction import redacted


class Listener(Protocol):
    """Someone who is told everything that is recorded. Must return at once: the training step waits for it."""

    def log(self, step: int, total: int, values: Mapping[str, float], timing: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None: ...


class History:
    """The deterministic figures, one row per step: what DVC plots."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, step: int, total: int, values: Mapping[str, float], timing: Mapping[str, float]) -> None:
        """Append a row; figures of the same step that come in a second call join its row."""
        if not values:
            return
        last = self.rows[-1] if self.rows else {}
        if last.get("step") == step and not last.keys() & values.keys():
            last.update(values)
        else:
            self.rows.append({"step": step, **values})

    def note(self, text: str) -> None: ...

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def write(self, path: Path) -> None:
        """Write the rows as CSV with the union of their columns; without rows, see that no old file stays.

        A figure that is not finite leaves its cell empty, as a plot would otherwise take the column for text.
        """
        if not self.rows:
            path.unlink(missing_ok=True)
            return
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in self.rows:
            writer.writerow([row[c] if math.isfinite(row.get(c, math.nan)) else "" for c in columns])
        records.write_text(path, text.getvalue())


_listeners: list[Listener] = []
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]", re.ASCII)
_LONGEST_NAME = 250
"""Of a figure, in MLflow."""


@contextlib.contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Send what is recorded inside the `with` block to these listeners."""
    _listeners.extend(listeners)
    try:
        yield
    finally:
        for listener in listeners:
            _listeners.remove(listener)


def log(step: int, total: int, values: Mapping[str, float], timing: Mapping[str, float] | None = None) -> None:
    """Record the figures of one step.

    step: 1 to total. values: deterministic figures named "group/name". timing: volatile ones (tokens per second),
    which reach the terminal and MLflow but never a tracked file.
    """
    if _listeners:
        plain = {name: float(value) for name, value in values.items()}
        volatile = {name: float(value) for name, value in (timing or {}).items()}
        for listener in _listeners:
            listener.log(step, total, plain, volatile)


def note(text: str) -> None:
    """Say one line to whoever watches, such as "dropped 12 rows: too long"; secrets in it are taken out."""
    for listener in _listeners:
        listener.note(redacted(text))


def table(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Record a table of samples under `name`; rows share their keys."""
    for listener in _listeners:
        listener.table(name, rows)


def write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """Write a stage's final figures as JSON. Raises UserError that names a figure that is not finite."""
    for name, value in flat(metrics).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{path}: {name} is {value}, expected a finite number: the run diverged or had no data")
    records.write_json(path, metrics)


def flat(tree: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level: {"kl": {"kind": "fixed"}} gives {"kl.kind": "fixed"}. Lists stay values."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= flat(value, separator, f"{prefix}{key}{separator}")
        else:
            found[f"{prefix}{key}"] = value
    return found


def figures(metrics: Mapping[str, Any], group: str) -> dict[str, float]:
    """The numbers among nested metrics, named "group/name": MLflow groups its charts by what is before the slash."""
    numbers = {
        name: float(value)
        for name, value in flat(metrics, "/").items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {allowed(name if "/" in name else f"{group}/{name}"): value for name, value in numbers.items()}


def allowed(name: str) -> str:
    """The name of a figure as MLflow takes it."""
    return _NOT_ALLOWED.sub("", name)[:_LONGEST_NAME]
