"""`make results`: run every cell that is not there yet, then write docs/studies.md and its plots.

`python -m benchmarks.studies [--quick] [--tables]`. Cells stand in .rlhf/results/; one is computed again when params or
code changed. --quick: one seed and fewer settings, page and plots beside the cells. --tables: write the page from the
cells that are there, whatever code made them.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.studies import cells, page, world
from benchmarks.studies.studies import STUDIES
from tasks.errors import UserError
from tasks.runtime.process import prepare_environment

SEEDS = (1, 2, 3, 4, 5)
RESULTS = Path(".rlhf/results")
_AFTERWARDS = {"page", "plots", "curves", "reading", "sections"}
"""Modules that only read cells."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tables", action="store_true")
    arguments = parser.parse_args()
    folder = (RESULTS / ("quick" if arguments.quick else "full")).resolve()
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    prepare_environment()
    try:
        if not arguments.tables:
            run(folder, seeds, quick=arguments.quick)
        page.write(folder, folder / "page" if arguments.quick else world.ROOT / "docs", seeds, quick=arguments.quick)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(folder: Path, seeds: tuple[int, ...], *, quick: bool) -> None:
    """Every cell that is not there yet."""
    files = (p for part in ("tasks", "benchmarks/studies") for p in (world.ROOT / part).rglob("*.py"))
    code = [p for p in files if p.stem not in _AFTERWARDS]
    # Read once: whoever edits params.yaml meanwhile changes the next run.
    params = {seed: world.params(seed, quick=quick) for seed in seeds}
    keys = {seed: cells.digest(found.model_dump(mode="json"), code, world.ROOT) for seed, found in params.items()}
    for study, setting in chosen(quick=quick):
        for seed, key in keys.items():
            begun, cell = time.process_time(), cells.Cell(study, setting, seed)
            planned = world.World(folder / "worlds" / str(seed), params[seed], quick)
            compute = partial(_computed, cell, planned, key)
            if cells.fill(cell, folder, key, compute):
                print(f"{study:16} {setting:12} seed {seed} {time.process_time() - begun:6.1f} s of CPU", flush=True)


def _computed(cell: cells.Cell, planned: world.World, key: str) -> cells.Figures:
    world.make(planned, key)
    return STUDIES[cell.study].settings[cell.setting](planned)


def chosen(*, quick: bool) -> list[tuple[str, str]]:
    """(study, setting) of every cell of a seed."""
    return [(name, s) for name, study in STUDIES.items() for s in (study.quick if quick else study.settings)]


if __name__ == "__main__":
    sys.exit(main())
