"""How far the delivery of a spool is: written by whoever delivers, read by the stage at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tasks.runtime import records
from tasks.runtime.spooled import STATE


@dataclass
class State:
    run: str | None = None
    experiment: str | None = None
    delivered: int = 0
    """Number of the last point that has arrived."""
    opened: int = 0
    """Number of the start whose tags and params have arrived."""
    closed: int = 0
    """Number of the start whose end has arrived."""
    described: int = 0
    """Number of the start that `tags` and `inputs` describe."""
    tags: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    """Those that the run cannot hold as they are."""
    artefacts: dict[str, str] = field(default_factory=dict)
    """Artefact -> digest of what was written."""
    artefacts_wait: bool = False
    refused: list[str] = field(default_factory=list)
    """Figures that the server does not take."""
    error: str = ""
    """Why the last try failed."""

    def forget_run(self) -> None:
        """The run is no more: everything goes to a new one."""
        self.run, self.delivered, self.opened, self.artefacts = None, 0, 0, {}

    def write(self, folder: Path) -> None:
        records.write_json(folder / STATE, asdict(self))

    @staticmethod
    def read(folder: Path) -> State:
        """The state; a new one where there is none or it cannot be read: then everything is sent again."""
        try:
            found = json.loads((folder / STATE).read_text(encoding="utf-8"))
            return State(**{each.name: found[each.name] for each in fields(State)})
        except (OSError, ValueError, KeyError, TypeError):
            return State()
