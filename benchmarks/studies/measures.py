"""What a policy is worth in a world: gold and proxy reward, and KL to SFT, on held-out prompts."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.studies import gold
from benchmarks.studies.world import World, inside
from tasks import dpo, ppo
from tasks.language import models, scoring, text
from tasks.language.batches import Completion
from tasks.language.generation import Sampler, sample
from tasks.language.rollout import Rollout
from tasks.runtime import record, records

Figures = dict[str, float]
ANSWERS = 2
"""To each held-out prompt."""
_SIZE = 256


class Steps(record.History):
    """Keeps the figures of every update; with `stop`, ends the stage at that one as a kill would."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self._stop = stop

    def log(self, step: int, total: int, values: Mapping[str, float], timing: Mapping[str, float]) -> None:
        super().log(step, total, values, timing)
        if step == self._stop:
            raise KeyboardInterrupt


class Eyes:
    """SFT, reward model and gold reward of a world, to look at policies with."""

    def __init__(self, world: World, reward: Path | None = None) -> None:
        self._world, folder = world, world.folder
        self.tokenizer = text.load_tokenizer(folder / "sft")
        self.reference = models.load_policy(folder / "sft")
        self._reward = models.load_scalar_model(reward or folder / "reward")
        rows = records.read_jsonl(folder / "corpus/held_out.jsonl", "prompt")
        self.prompts = [text.prompt_tokens(self.tokenizer, row["prompt"], "plain") for row in rows]

    def sample(self, policy: Any, prompts: list[list[int]], answers: int, seed: int) -> list[list[Any]]:
        """Answers as in training, with random numbers of their own."""
        shared = self._world.params.shared
        ids = (self.tokenizer.eos_token_id, self.tokenizer.pad_token_id)
        generator = torch.Generator().manual_seed(1000 * shared.seed + seed)
        sampler = Sampler(shared.answer_tokens, shared.temperature, *ids, _SIZE)
        return sample(policy, prompts, sampler, answers=answers, generator=generator)

    def gold(self, answers: list[list[int]]) -> list[float]:
        return [gold.reward(text.text_of(self.tokenizer, tokens)) for tokens in answers]

    def proxy(self, completions: list[Completion]) -> list[float]:
        return scoring.all_scores(self._reward, completions, fill=self.tokenizer.pad_token_id, size=_SIZE).tolist()

    def look(self, policy: Path) -> Figures:
        """Means over answers to the held-out prompts; KL is the mean summed log-ratio to SFT, nats per answer."""
        model = models.load_policy(policy)
        found = self.sample(model, self.prompts, ANSWERS, seed=1)
        answers = [a for row in found for a in row]
        completions = [Completion(p, a.tokens) for p, row in zip(self.prompts, found, strict=True) for a in row]
        options = {"temperature": self._world.params.shared.temperature, "fill": self.tokenizer.pad_token_id}
        own, under = (scoring.all_log_probs(m, completions, size=_SIZE, **options) for m in (model, self.reference))
        return {
            "gold": _mean(self.gold([a.tokens for a in answers])),
            "proxy": _mean(self.proxy(completions)),
            "kl": _mean([float((p - q).sum()) for p, q in zip(own, under, strict=True)]),
            "length": _mean([len(a.tokens) for a in answers]),
            "finished": _mean([a.finished for a in answers]),
        }


def train_ppo(
    world: World, section: Any, out: Path, *, sft: Path | None = None, listener: Steps | None = None
) -> tuple[Steps, list[Rollout], dict[str, Any]]:
    """The stage's figures of every update, its rollouts, and its metrics."""
    listener = listener or Steps()
    inputs = world.inputs("sft", "reward", "corpus") | ({"sft": sft} if sft else {})
    with inside(world.folder), _rollouts() as seen, record.listening(listener):
        metrics = ppo.run(world.params.shared, section, **inputs, out=out)
    return listener, seen, metrics


def train_dpo(world: World, section: Any, out: Path, preferences: Path | None = None) -> None:
    """The stage `dpo` on the world's pairs, or on others."""
    inputs = world.inputs("sft", "preferences") | ({"preferences": preferences} if preferences else {})
    with inside(world.folder):
        dpo.run(world.params.shared, section, **inputs, out=out)


@contextlib.contextmanager
def scratch(world: World) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="scratch-", dir=world.folder))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _rollouts() -> Iterator[list[Rollout]]:
    """Watch the rollouts that the stage collects, and change nothing."""
    seen: list[Rollout] = []
    collect = ppo.collect

    def watched(*arguments: Any, **options: Any) -> Rollout:
        seen.append(collect(*arguments, **options))
        return seen[-1]

    ppo.collect = watched
    try:
        yield seen
    finally:
        ppo.collect = collect


def _mean(values: list[Any]) -> float:
    return float(sum(values)) / len(values)
