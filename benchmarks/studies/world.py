"""A world: one seed's data, gold reward, base, SFT policy, pairs and reward model, made by the product's stages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies import gold
from flows.workspace import merge
from tasks import preferences, reward, samples, sft
from tasks.language import judge, models, pretrained
from tasks.runtime import config, document, records

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CONSONANTS = "lmnrstdk"
VOWEL_RATE, END_RATE, SHORTEST, LONGEST = 0.15, 0.2, 12, 23
"""Of the demonstrations: letters are drawn apart, and from 12 on an answer ends after each with probability .2."""
PROMPTS, HELD_OUT = 1024, 256
REWARD_PAIRS = ("sft", "samples", "preferences")


@dataclass(frozen=True)
class World:
    """The artefacts of one seed, each in `folder / <stage>`."""

    folder: Path
    params: config.Params
    quick: bool

    def inputs(self, *names: str) -> dict[str, Path]:
        return {name: self.folder / name for name in names}


def params(seed: int, *, quick: bool) -> config.Params:
    """params.yaml, on it the tiny profile and this folder's overlays."""
    found = document.read(ROOT / "params.yaml")
    overlays = [ROOT / "profiles/tiny.yaml", HERE / "params.yaml", *([HERE / "quick.yaml"] if quick else [])]
    for overlay in overlays:
        found = merge(found, document.read(overlay))
    return config.check(merge(found, {"shared": {"seed": seed}}), "the studies' params")


def changed(section: config.Section, changes: Mapping[str, Any]) -> Any:
    """A section with `changes` laid on it, checked as params.yaml is."""
    return type(section).model_validate(merge(section.model_dump(), changes))


def make(world: World, digest: str) -> None:
    """Run the stages of a world, unless it is there, whole and of the same `digest`."""
    folder, seed = world.folder, world.params.shared.seed
    mark = folder / "whole.json"
    if mark.exists() and records.read_json(mark) == digest:
        return
    shutil.rmtree(folder, ignore_errors=True)
    model, tokenizer = pretrained.random_llama(seed)
    models.save(model, tokenizer, folder / "base")
    write_corpus(folder / "corpus", seed, world.params.sft.demonstrations)
    with inside(folder):
        for module, section, names in (
            (sft, world.params.sft, ("base", "corpus")),
            (samples, world.params.samples, ("sft", "corpus")),
            (preferences, world.params.preferences, ("samples", "corpus", "base")),
            (reward, world.params.reward, REWARD_PAIRS),
        ):
            word = module.__name__.rpartition(".")[2]
            module.run(world.params.shared, section, **world.inputs(*names), out=folder / word)
    records.write_json(mark, digest)


def write_corpus(out: Path, seed: int, demonstrations: int) -> None:
    """Prompts of three consonants, answers of letters, and the gold reward as judge."""
    rng = np.random.default_rng(seed)

    def prompt() -> str:
        return "".join(rng.choice(list(CONSONANTS), size=3)) + ":"

    def answer() -> str:
        length = min(SHORTEST + int(rng.geometric(END_RATE)) - 1, LONGEST)
        vowels, others = rng.choice(sorted(gold.VOWELS), size=length), rng.choice(list(CONSONANTS), size=length)
        return "".join(np.where(rng.random(length) < VOWEL_RATE, vowels, others))

    def rows(name: str, count: int, **more: Any) -> None:
        found = [{"id": f"{name}{n}", "prompt": prompt(), **{k: v() for k, v in more.items()}} for n in range(count)]
        records.write_jsonl(out / f"{name}.jsonl", found)

    rows("demonstrations", demonstrations, answer=answer)
    rows("prompts", PROMPTS)
    rows("held_out", HELD_OUT)
    records.write_jsonl(out / "pairs.jsonl", [])
    judge.keep_function("gold.py:score", HERE, out / "judge")


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Caches and checkpoints of the stages, whose places are relative, stay in the world."""
    with contextlib.chdir(folder):
        yield
