"""docs/studies.md and its plots, from the cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.studies.reading import whole_seeds
from benchmarks.studies.sections import Page
from tasks.errors import UserError
from tasks.runtime import records

INTRODUCTION = """# Studies

Made by `make results` (`make results QUICK=1`: one seed, fewer settings, in minutes); code in
[benchmarks/studies](../benchmarks/studies). The model is a random Llama of .1 million parameters that speaks letters,
and the gold reward a function that is known exactly ([gold.py](../benchmarks/studies/gold.py)): these tables show how
the algorithms behave, not how good a model gets. Every seed has its own data, base model, SFT policy, pairs and reward
model, made by the product's stages with `params.yaml`, `profiles/tiny.yaml` and the studies' own
[params.yaml](../benchmarks/studies/params.yaml). Brackets are Student's 95 % intervals over the seeds ({seeds}). Gains
are over SFT on the same held-out prompts, KL is in nats per answer, the proxy is the reward model's score (SFT's own
samples: mean 0, standard deviation 1).

What was tuned, on seed 1 alone and before these runs: the gold reward and the amounts of data, until the reward model
follows the gold reward on SFT's own answers; learning rates, numbers of updates, betas and coefficients, so that a run
takes seconds and the settings lie apart. The seeds were not chosen.
"""

_SECTIONS: tuple[tuple[Callable[[Page, Path], str], tuple[str, ...]], ...] = (
    (Page.frontier, ("dpo", "ppo", "best_of_n")),
    (Page.overoptimisation, ("overoptimisation", "best_of_n")),
    (Page.coefficient, ("coefficient",)),
    (Page.switches, ("coefficient", "eos", "dropout")),
    (Page.pairing, ("pairing",)),
    (Page.resume, ("resume",)),
)
"""With the studies that each reads."""


def write(folder: Path, out: Path, seeds: Sequence[int], *, quick: bool) -> None:
    """The page and its plots in `out`. A section whose seeds are not all there says which it has."""
    out.mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION.format(seeds=", ".join(map(str, seeds))).rstrip()]
    for section, needed in _SECTIONS:
        ready = whole_seeds(folder, ("sft", *needed), seeds, quick=quick)
        if not ready:
            raise UserError(f"{folder}: no seed has all cells of {', '.join(needed)}: run `make results`")
        parts.append(section(Page(folder, ready, quick=quick), out))
        if len(ready) < len(seeds):
            parts.append(
                f"This section has seed {', '.join(map(str, ready))} alone: the run was stopped before the rest."
            )
    records.write_text(out / "studies.md", "\n\n".join(parts) + "\n")
