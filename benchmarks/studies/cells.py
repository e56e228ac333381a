"""Cells: one setting of one study with one seed, each a JSON file, so that a run that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.runtime import records

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    study: str
    setting: str
    seed: int

    def path(self, folder: Path) -> Path:
        return folder / self.study / f"{self.setting}-{self.seed}.json"


def digest(params: Mapping[str, Any], files: Iterable[Path], root: Path) -> str:
    """Of everything that a cell's figures depend on: params, and the code with its place below `root`."""
    found = hashlib.sha256(json.dumps(params, sort_keys=True).encode())
    for path in sorted(files):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def fill(cell: Cell, folder: Path, key: str, compute: Callable[[], Figures]) -> bool:
    """Compute the cell and write it, unless it is there with the same `key`. Returns whether it was computed."""
    path = cell.path(folder)
    if path.exists() and records.read_json(path)["key"] == key:
        return False
    records.write_json(path, {"key": key, "figures": compute()})
    return True


def figures(folder: Path, study: str, setting: str, seeds: Iterable[int]) -> list[Figures]:
    """The figures of one setting, seed by seed. Raises UserError for a cell that is not there."""
    return [records.read_json(Cell(study, setting, seed).path(folder))["figures"] for seed in seeds]
