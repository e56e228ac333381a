"""The artefacts of a run, made from the notes and tables in its spool: always whole, so that one replaces another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def artefacts(events: Sequence[Mapping[str, Any]], params: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """Name -> text, and whether it is a table.

    What a stage that was started again says a second time is there once. params: those that the run cannot hold.
    """
    found: dict[str, tuple[str, bool]] = {}
    if notes := list(dict.fromkeys(event["text"] for event in events if event["kind"] == "note")):
        found["notes.txt"] = ("\n".join(notes) + "\n", False)
    if params:
        found["params.json"] = (json.dumps(params, indent=2, ensure_ascii=False) + "\n", False)
    for name, rows in _tables(events).items():
        columns = list(dict.fromkeys(key for row in rows for key in row))
        data = [[_finite(row.get(column)) for column in columns] for row in rows]
        found[f"{name}.json"] = (json.dumps({"columns": columns, "data": data}, ensure_ascii=False), True)
    return found


def _tables(events: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by name, in MLflow's manner: a table that is logged again grows."""
    seen: set[str] = set()
    found: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        key = json.dumps([event.get("name"), event.get("rows")])
        if event["kind"] == "table" and key not in seen:
            seen.add(key)
            found.setdefault(event["name"], []).extend(event["rows"])
    return found


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
