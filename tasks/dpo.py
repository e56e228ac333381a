"""Direct preference optimisation: the SFT policy moves towards the preferred answers, held by a pull to SFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms.masking import masked_sum
from tasks.algorithms.preference import LOSSES, answer_scores, kl_baseline, preference_statistics
from tasks.algorithms.supervised import negative_log_likelihood
from tasks.errors import UserError
from tasks.language import models, pairs, scoring, text
from tasks.language.batches import by_length, pad
from tasks.language.drift import sampled_log_ratios
from tasks.language.generation import Sampler
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import fit
from tasks.language.reference import reference_log_probs
from tasks.language.trainable import TRAINABLE
from tasks.runtime import config, record, records, work

CACHE = Path(".rlhf/cache/reference")
_KEPT = ("loss", "accuracy", "ties", "margin", "chosen_reward", "rejected_reward")
_KEPT += ("chosen_log_prob", "rejected_log_prob", "chosen_drift", "rejected_drift", "skipped")


def run(shared: config.Shared, cfg: config.DPO, *, sft: Path, preferences: Path, out: Path) -> dict[str, Any]:
    """Train on the training split of `preferences`, write the policy to `out`."""
    tokenizer = text.load_tokenizer(sft)
    rows = records.read_jsonl(preferences / "pairs.jsonl", "prompt_tokens", "chosen_tokens", "rejected_tokens")
    training = _training(rows, cfg)
    size = cfg.optimiser.micro_batch
    model = models.load_policy(sft)
    generator = torch.Generator().manual_seed(shared.seed)
    TRAINABLE[cfg.trainable.kind](model, generator, **cfg.trainable.settings)
    master = MasterWeights(model, cfg.optimiser, precision=models.PRECISIONS[shared.precision])
    scored = {"temperature": shared.temperature, "fill": tokenizer.pad_token_id, "size": size}

    def under_sft(completions: Sequence[Any]) -> Tensor:
        # Before the first step the policy is the reference, so it speaks for it, in the precision of the training.
        sums, kept = reference_log_probs(model, completions, policy=sft, cache=CACHE, **scored)
        record.note(f"SFT's log-probabilities of {len(sums)} answers: {'kept from before' if kept else 'computed'}")
        return sums.view(-1, 2)

    reference = under_sft(pairs.interleaved(training))
    others = pairs.mismatched(training) if cfg.loss.mismatched else []
    others_reference = under_sft(others) if others else torch.empty(0, 2)

    def baseline(indices: list[int]) -> list[Tensor]:
        answers = [others[2 * i + side] for i in indices for side in (0, 1)]
        own = scoring.all_log_probs(model, answers, **scored)
        return [kl_baseline(torch.stack([p.sum() for p in own]), others_reference[indices].flatten())]

    def losses(indices: list[int]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        batch = [training[i] for i in indices]
        extra = baseline(indices) if others else []
        counts = {"count": len(batch), "supervised": sum(len(pair.chosen.answer) for pair in batch)}
        for group in by_length(batch, max(1, size // 2)):
            sides = pairs.interleaved([batch[i] for i in group])
            part = pad(sides, fill=tokenizer.pad_token_id, device=model.device)
            log_probs = scoring.answer_log_probs(model, part, temperature=shared.temperature)
            fixed = reference[[indices[i] for i in group]].to(model.device).flatten()
            yield _loss(cfg, log_probs, part.mask, fixed, *(z.to(model.device) for z in extra), **counts)

    drifts: list[float] = []

    def report(step: int, total: int, figures: dict[str, float]) -> None:
        drifts.append(figures["chosen_drift"])
        _warn(drifts, cfg.drift_warning)
        record.log(step, total, {f"dpo/{name}": value for name, value in figures.items()})

    last = fit(
        master,
        losses,
        cfg.optimiser,
        rows=len(training),
        generator=generator,
        report=report,
        checkpoints=work.checkpoints(),
    )[-1]
    models.save(model, tokenizer, out, master.weights(), merge=cfg.trainable.merge)
    drift = _kl(model, sft, rows, tokenizer, shared, cfg)
    return {"pairs": len(training), "last_step": {name: last[name] for name in _KEPT}, "kl": drift}


def _training(rows: list[dict[str, Any]], cfg: config.DPO) -> list[pairs.Pair]:
    training = pairs.select(rows, split="train", origins=cfg.origins)
    if len(training) < cfg.optimiser.batch:
        raise UserError(
            f"{len(training)} pairs of origin {', '.join(cfg.origins)} do not fill one batch"
            f" (dpo.optimiser.batch: {cfg.optimiser.batch})"
        )
    if any(not pair.chosen.prompt for pair in training):
        raise UserError("dpo.origins holds pairs without a prompt (ratings): an answer to nothing has no probability")
    return training


def _loss(
    cfg: config.DPO, log_probs: Tensor, mask: Tensor, reference: Tensor, *extra: Tensor, count: int, supervised: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """A micro-batch's share of the loss and of the figures. Rows: chosen, rejected, chosen, ...; reference: sums."""
    row, policy = cfg.loss, masked_sum(log_probs, mask, dim=1)
    options = {"against_reference": row.against_reference, "per_token": row.per_token}
    scores = answer_scores(policy, reference, mask.sum(1), **options)
    chosen, rejected = scores[0::2], scores[1::2]
    preference = LOSSES[row.kind](chosen, rejected, *extra, **row.hyperparameters).sum() / count
    nll = negative_log_likelihood(log_probs[0::2], mask[0::2], count=supervised)
    own = policy.detach().view(-1, 2).sum(0) / count
    # How far each side's log-probability has moved from SFT's: a loss may lower both while the margin grows.
    drift = (policy.detach() - reference).view(-1, 2).sum(0) / count
    figures = preference_statistics(chosen, rejected, scale=row.scale, count=count)
    figures |= {"chosen_log_prob": own[0], "rejected_log_prob": own[1], "chosen_nll": nll.detach()}
    figures |= {"chosen_drift": drift[0], "rejected_drift": drift[1]}
    if extra:
        figures["kl_baseline"] = extra[0] * len(chosen) / count
    return preference + cfg.sft_weight * nll, figures


def _warn(drifts: Sequence[float], threshold: float) -> None:
    """Say it once, when the chosen answers first become far less likely than under SFT. drifts: of all steps so far."""
    if drifts[-1] < -threshold <= min(drifts[:-1], default=0.0):
        record.note(
            f"step {len(drifts)}: the chosen answers are {-drifts[-1]:.1f} nats less likely than under SFT"
            f" (dpo.drift_warning: {threshold:g}); a lower learning rate, a larger beta or dpo.sft_weight holds them"
        )


def _kl(
    model: Any, sft: Path, rows: list[dict[str, Any]], tokenizer: Any, shared: config.Shared, cfg: config.DPO
) -> dict[str, float]:
    """KL(policy || SFT) per answer, in nats: the mean log-ratio of one sampled answer to each of a few prompts.

    Held-out prompts before those it learned from. The estimator has no bias; `standard_error` says how far it scatters.
    """
    offered = sorted((row for row in rows if row["origin"] in cfg.origins), key=lambda row: row["split"] == "train")
    prompts = list(dict.fromkeys(tuple(row["prompt_tokens"]) for row in offered))[: cfg.kl_prompts]
    reference = models.load_policy(sft, shared.precision)
    ids = (tokenizer.eos_token_id, tokenizer.pad_token_id)
    sampler = Sampler(shared.answer_tokens, shared.temperature, *ids, cfg.optimiser.micro_batch)
    generator = torch.Generator().manual_seed(shared.seed + 5)
    ratios = sampled_log_ratios(model, reference, [list(p) for p in prompts], sampler, generator=generator)
    spread = {"standard_error": float(ratios.std() / len(ratios) ** 0.5)} if len(ratios) > 1 else {}
    return {"mean": float(ratios.mean()), "answers": len(ratios), **spread}
