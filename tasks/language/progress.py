"""Where a long computation got to: what it needs of checkpoints, and their small state as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol


class Checkpoints(Protocol):
    """Kept by the runner (`tasks.runtime.work`); each is written whole or not at all."""

    def newest(self) -> Path | None:
        """Folder of the newest whole one; None: start from the beginning."""

    def due(self, size: int) -> bool:
        """Whether it is time to write one of about `size` bytes."""

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Have `write(folder)` fill one."""

    def kept(self) -> Path | None:
        """The newest, for a message."""


def write_state(state: Mapping[str, Any], folder: Path) -> None:
    """Numbers come back to the bit: Python writes the shortest text that reads back the same; NaN and infinity too."""
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")


def read_state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return state
