"""The cells of `make results` as numbers by method and setting, and rows of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.studies import cells
from benchmarks.studies.curves import Points, shown
from benchmarks.studies.studies import STUDIES

COLUMNS = ("KL to SFT", "gold gain", "proxy gain", "length", "ended")


def whole_seeds(folder: Path, studies: Iterable[str], seeds: Sequence[int], *, quick: bool) -> list[int]:
    """The seeds of which every cell of `studies` is there."""
    wanted = [(s, setting) for s in studies for setting in (STUDIES[s].quick if quick else STUDIES[s].settings)]
    return [seed for seed in seeds if all(cells.Cell(*names, seed).path(folder).exists() for names in wanted)]


class Results:
    """The cells of every seed."""

    def __init__(self, folder: Path, seeds: Sequence[int], *, quick: bool) -> None:
        self._folder, self.seeds, self._quick = folder, seeds, quick
        self._sft = self.of("sft", "sft")

    def settings(self, study: str) -> list[str]:
        found = STUDIES[study]
        return list(found.quick if self._quick else found.settings)

    def of(self, study: str, setting: str) -> list[cells.Figures]:
        return cells.figures(self._folder, study, setting, self.seeds)

    def gains(self, found: Sequence[cells.Figures], name: str) -> list[float]:
        return [f[name] - sft[name] for f, sft in zip(found, self._sft, strict=True)]

    def row(self, *names: str, found: Sequence[cells.Figures]) -> str:
        values = [
            shown([f["kl"] for f in found]),
            shown(self.gains(found, "gold"), sign=True),
            shown(self.gains(found, "proxy"), sign=True),
            shown([f["length"] for f in found], digits=1),
            shown([f["finished"] for f in found]),
        ]
        return line(*names, *values)

    def curves(self, study: str) -> list[list[tuple[float, float]]]:
        """Each seed's points (sqrt(KL), gold gain), setting by setting."""
        found = [self.of(study, setting) for setting in self.settings(study)]
        gains = [self.gains(f, "gold") for f in found]
        return [
            [(math.sqrt(max(f[i]["kl"], 0.0)), g[i]) for f, g in zip(found, gains, strict=True)]
            for i in range(len(self.seeds))
        ]

    def best_of_n(self) -> list[list[tuple[float, float]]]:
        return [
            [(math.sqrt(kl), gold - f["gold"][0]) for kl, gold in zip(f["kl"], f["gold"], strict=True)][1:]
            for f in self.of("best_of_n", "best_of_n")
        ]


def along(run: cells.Figures) -> list[tuple[float, float]]:
    """(sqrt(KL), gold gain) of every rollout; the first is SFT's."""
    return [(math.sqrt(max(k, 0.0)), g - run["gold"][0]) for k, g in zip(run["kl"], run["gold"], strict=True)]


def table(*names: str) -> list[str]:
    """The head of a table."""
    return [line(*names), line(*("---" for _ in names))]


def line(*values: str) -> str:
    """A row of one."""
    return "| " + " | ".join(values) + " |"


def within(curves: Sequence[Points], limit: float) -> str:
    """How many points of each seed's curve lie up to `limit`."""
    return ", ".join(str(sum(d <= limit for d, _ in points)) for points in curves)


def minus(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """Differences, seed by seed."""
    return [x - y for x, y in zip(a, b, strict=True)]


def columns(points: Points) -> tuple[list[float], list[float]]:
    """Distances and gains."""
    return [d for d, _ in points], [gain for _, gain in points]
