"""The reward model: a scalar on the SFT trunk that orders answers as the preferences do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms import calibration, ranking
from tasks.errors import UserError
from tasks.language import groups, models, scoring, text
from tasks.language.activations import Reusing
from tasks.language.batches import Completion
from tasks.language.groups import Group, Ranking, Table
from tasks.language.master_weights import MasterWeights
from tasks.language.measurement import BINS, measured
from tasks.language.optimisation import fit
from tasks.language.trainable import TRAINABLE
from tasks.runtime import config, record, records, work

_REFERENCE_ANSWERS = 256
"""Answers of the SFT policy on which scores get mean 0 and standard deviation 1."""
Statistics = dict[str, Tensor]


def run(
    shared: config.Shared, cfg: config.Reward, *, sft: Path, samples: Path, preferences: Path, out: Path
) -> dict[str, Any]:
    """Train on the training split of `preferences`, measure on the held-out prompts, write the model to `out`."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(
        preferences / "pairs.jsonl", "prompt_tokens", "chosen_tokens", "rejected_tokens", "margin", "origin", "split"
    )
    training = _training(cfg, rows, preferences)
    generator = torch.Generator().manual_seed(shared.seed)
    model = models.new_scalar_model(sft, generator)
    TRAINABLE[cfg.trainable.kind](model, generator, **cfg.trainable.settings)
    master = MasterWeights(model, cfg.optimiser, precision=models.PRECISIONS[shared.precision])
    fill, size = tokenizer.pad_token_id, cfg.optimiser.micro_batch
    score = scoring.scorer(model, fill=fill)
    if cfg.reuse_activations:
        score = Reusing(model, [answer for group in training for answer in group.answers], fill=fill, size=size)
    objective = _OBJECTIVES[cfg.loss.kind](cfg.loss)

    def losses(indices: list[int]) -> Iterator[tuple[Tensor, Statistics]]:
        batch = [training[i] for i in indices]
        count = sum(len(group.rankings) for group in batch)
        for part in groups.packed(batch, size):
            chosen = [batch[i] for i in part]
            table = groups.table(chosen, score([answer for group in chosen for answer in group.answers]))
            loss, statistics = objective(table, count)
            centre = ranking.centring_penalty(table.scores, table.mask, count=count)
            yield loss + cfg.centre * centre, statistics | {"squared_mean": centre.detach()}

    def report(step: int, total: int, figures: dict[str, float]) -> None:
        record.log(step, total, {f"train/{name}": value for name, value in figures.items()})

    fit(
        master,
        losses,
        cfg.optimiser,
        rows=len(training),
        generator=generator,
        report=report,
        checkpoints=work.checkpoints(),
    )
    reference = scoring.all_raw_scores(score, _reference_answers(samples), size=size)
    if not reference.std() > 0:
        raise UserError(f"the reward model scores all {len(reference)} reference answers alike: it learned nothing")
    model.config.reward_mean, model.config.reward_std = float(reference.mean()), float(reference.std())
    models.save(model, tokenizer, out, master.weights(), merge=cfg.trainable.merge)
    return {
        "pairs": {o: sum(r.origin == o for g in training for r in g.rankings) for o in cfg.origins},
        "prompts": len(training),
        "held_out": _held_out(score, rows, training, out, size=size),
        "reward_mean": model.config.reward_mean,
        "reward_std": model.config.reward_std,
    }


def _training(cfg: config.Reward, rows: list[dict[str, Any]], preferences: Path) -> list[Group]:
    """What there is to learn from. Raises UserError where they do not fill a batch, or lack what the loss needs."""
    found = _RANKINGS[cfg.loss.kind](
        [r for r in rows if r["split"] == "train" and r["origin"] in cfg.origins], preferences
    )
    training = groups.grouped(found)
    if len(training) < cfg.optimiser.batch:
        raise UserError(
            f"{len(found)} pairs or rankings of origin {', '.join(cfg.origins)}, of {len(training)} prompts,"
            f" do not fill one batch (reward.optimiser.batch: {cfg.optimiser.batch} prompts)"
        )
    margin = getattr(cfg.loss, "margin", None)
    without = [r.origin for r in found if r.gap is None]
    if margin is not None and margin.kind != "none" and without:
        raise UserError(
            f"reward.loss.margin is {margin.kind}, which needs each pair's own gap: {len(without)} pairs have none"
            f" (origin {', '.join(sorted(set(without)))}); expected kind none, or other reward.origins"
        )
    # A group that fits into no forward pass is found before any work is done.
    list(groups.packed(training, cfg.optimiser.micro_batch))
    return training


def _ranked(rows: list[dict[str, Any]], preferences: Path) -> list[Ranking]:
    """The judge's rankings of sampled answers, in place of the pairs made of them; other pairs as they are."""
    ranked = records.read_jsonl(preferences / "ranked.jsonl", "prompt_tokens", "answers", "origin", "split")
    return groups.answer_rankings([r for r in ranked if r["split"] == "train"]) + groups.pair_rankings(
        [r for r in rows if r["origin"] != "sampled"]
    )


_RANKINGS: dict[str, Callable[[list[dict[str, Any]], Path], list[Ranking]]] = {
    "pairwise": lambda rows, _: groups.pair_rankings(rows),
    "listwise": _ranked,
}
_MARGINS: dict[str, Callable[[Any, Tensor], Tensor | None]] = {
    "none": lambda margin, gap: None,
    "graded": lambda m, gap: ranking.graded_margin(gap, thresholds=m.thresholds, margins=m.margins),
    "scaled": lambda m, gap: ranking.scaled_margin(gap, scale=m.scale),
}
Objective = Callable[[Table, float], tuple[Tensor, Statistics]]
"""(rankings of a micro-batch, rankings in the whole batch) -> share of the batch's loss and of its statistics."""


def _pairwise(loss: config.PairwiseLoss) -> Objective:
    def objective(table: Table, count: float) -> tuple[Tensor, Statistics]:
        return ranking.bradley_terry_loss(
            table.scores[:, 0],
            table.scores[:, 1],
            _MARGINS[loss.margin.kind](loss.margin, table.gap),
            label_smoothing=loss.label_smoothing,
            count=count,
        )

    return objective


def _listwise(_: config.ListwiseLoss) -> Objective:
    return lambda table, count: ranking.plackett_luce_loss(table.scores, table.gold, table.mask, count=count)


_OBJECTIVES: dict[str, Callable[[Any], Objective]] = {"pairwise": _pairwise, "listwise": _listwise}


def _reference_answers(samples: Path) -> list[Completion]:
    rows = records.read_jsonl(samples / "samples.jsonl", "prompt_tokens", "answers")
    answers = [Completion(row["prompt_tokens"], answer["tokens"]) for row in rows for answer in row["answers"]]
    return answers[:_REFERENCE_ANSWERS]


def _held_out(
    score: scoring.Scorer, rows: list[dict[str, Any]], training: Sequence[Group], out: Path, *, size: int
) -> dict[str, Any]:
    """Figures by origin, of pairs whose prompt (without one: whose answers) no training pair has; the diagrams."""
    figures: dict[str, Any] = {}
    before: list[float] = []
    after: list[float] = []
    for origin in sorted({row["origin"] for row in rows}):
        found = groups.grouped(
            groups.pair_rankings([r for r in rows if r["split"] == "held_out" and r["origin"] == origin])
        )
        kept = groups.unseen(found, training)
        if not kept:
            raise UserError(
                f"none of the {len(found)} held-out prompts of origin {origin} is new to the reward model: more pairs,"
                " or another preferences.held_out"
            )
        result = measured(score, kept, size=size)
        figures[origin] = result.figures | {"seen_in_training": len(found) - len(kept)}
        before += result.margins
        after += result.scaled
    for name, margins in (("before", before), ("after", after)):
        lines = [f"{b.confidence},{b.accuracy},{b.pairs}" for b in calibration.reliability(margins, bins=BINS)]
        records.write_text(out / f"reliability_{name}.csv", "\n".join(["confidence,accuracy,pairs", *lines]) + "\n")
    return figures
