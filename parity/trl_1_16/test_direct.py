"""Losses on preference pairs: DPOTrainer, KTOTrainer, and CPOTrainer and ORPOTrainer of trl.experimental."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference, DPOTrainer
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer

from parity import tiny
from parity.comparison import agree, agree_on, agree_on_models
from parity.trl_1_16.trainer import fused, trainer
from tasks import dpo
from tasks.algorithms.masking import masked_sum
from tasks.algorithms.preference import LOSSES, kl_baseline, orpo_loss
from tasks.algorithms.supervised import negative_log_likelihood
from tasks.language.batches import Completion, pad
from tasks.language.scoring import answer_log_probs
from tasks.runtime import config

CHOSEN = tiny.answers(6, seed=11)
REJECTED = tiny.other_answers(CHOSEN, seed=12)
POLICY, REFERENCE = tiny.policy(11), tiny.moved(tiny.policy(11), by=0.05, seed=11)
BETA = 0.3


def _ours(row, *extra, chosen=CHOSEN, rejected=REJECTED, sft_weight=0.0, policy=POLICY):
    """The stage's own loss of one batch."""
    sides = [c for pair in zip(chosen, rejected, strict=True) for c in pair]
    batch = pad(sides, fill=tiny.PAD, device=tiny.CPU)
    log_probs = answer_log_probs(policy, batch, temperature=1.0)
    with torch.no_grad():
        reference = masked_sum(answer_log_probs(REFERENCE, batch, temperature=1.0), batch.mask, dim=1)
    counts = {"count": len(chosen), "supervised": sum(len(c.answer) for c in chosen)}
    cfg = SimpleNamespace(loss=row, sft_weight=sft_weight)
    return dpo._loss(cfg, log_probs, batch.mask, reference, *extra, **counts)


def _dpo(model, *, kinds, weights=(1.0,), label_smoothing=0.0):
    rows = [
        {"prompt_ids": c.prompt, "chosen_ids": c.answer, "rejected_ids": r.answer}
        for c, r in zip(CHOSEN, REJECTED, strict=True)
    ]
    made = trainer(
        DPOTrainer,
        model,
        ref_model=fused(REFERENCE),
        ld_alpha=None,
        precompute_ref_logps=False,
        f_divergence_type="reverse_kl",
        loss_types=list(kinds),
        loss_weights=list(weights),
        beta=BETA,
        label_smoothing=label_smoothing,
        use_weighting=False,
    )
    return made._compute_loss(model, DataCollatorForPreference(pad_token_id=tiny.PAD)(rows), False), made


KINDS = {
    "sigmoid": (config.SigmoidLoss, {"label_smoothing": 0.0, "length_normalised": False}),
    "sigmoid_norm": (config.SigmoidLoss, {"label_smoothing": 0.0, "length_normalised": True}),
    "robust": (config.RobustLoss, {"label_smoothing": 0.2, "length_normalised": False}),
    "ipo": (config.IPOLoss, {}),
    "hinge": (config.HingeLoss, {"length_normalised": False}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_dpo(kind):
    section, options = KINDS[kind]
    row = section(kind=kind.removesuffix("_norm"), beta=BETA, **options)
    theirs = fused(POLICY)
    loss, figures = _ours(row)
    their_loss, made = _dpo(theirs, kinds=[kind], label_smoothing=options.get("label_smoothing", 0.0))
    agree_on_models(f"DPO loss, {kind}", loss, POLICY, their_loss, theirs)
    logged = {name: torch.tensor(values[-1]) for name, values in made._metrics["train"].items() if values}
    agree("DPO, mean log-probability of the chosen answers", figures["chosen_log_prob"], logged["logps/chosen"])
    if kind == "sigmoid":
        agree("DPO, mean margin of the implicit rewards", figures["margin"], logged["rewards/margins"])


def test_dpo_with_an_sft_term():
    row = config.SigmoidLoss(kind="sigmoid", beta=BETA, label_smoothing=0.0, length_normalised=False)
    theirs = fused(POLICY)
    their_loss, _ = _dpo(theirs, kinds=["sigmoid", "sft"], weights=[1.0, 0.5])
    agree_on_models("DPO loss with an SFT term", _ours(row, sft_weight=0.5)[0], POLICY, their_loss, theirs)


def test_cdpo():
    """TRL's CPO loss with the log-ratios in place of the log-probabilities: the one that smooths its labels."""
    generator = torch.Generator().manual_seed(13)
    chosen, rejected = (3 * torch.randn(9, generator=generator) for _ in range(2))
    made = trainer(CPOTrainer, None, beta=BETA, alpha=0.0, loss_type="sigmoid", label_smoothing=0.2)
    agree_on(
        "DPO loss with label smoothing",
        lambda won, lost: LOSSES["sigmoid"](won, lost, beta=BETA, label_smoothing=0.2),
        lambda won, lost: made.cpo_loss(won, lost)[0],
        [chosen, rejected],
    )


def test_their_dpo_ignores_the_label_smoothing():
    """DPOConfig takes label_smoothing for every kind; for sigmoid DPOTrainer leaves it out without a word."""
    plain, _ = _dpo(fused(POLICY), kinds=["sigmoid"])
    smoothed, _ = _dpo(fused(POLICY), kinds=["sigmoid"], label_smoothing=0.2)
    assert torch.equal(plain, smoothed)
    row = config.SigmoidLoss(kind="sigmoid", beta=BETA, label_smoothing=0.2, length_normalised=False)
    assert (_ours(row)[0] - plain).abs() > 1e-2


def _paired(rows):
    """A batch as CPOTrainer and ORPOTrainer take it."""
    batch = {}
    for side, completions in rows.items():
        padded = pad(completions, fill=tiny.PAD, device=tiny.CPU).tokens
        labels = torch.full_like(padded, -100)
        for i, c in enumerate(completions):
            labels[i, len(c.prompt) : len(c)] = torch.tensor(c.answer)
        batch |= {f"{side}_input_ids": padded, f"{side}_attention_mask": (padded != tiny.PAD).long()}
        batch[f"{side}_labels"] = labels
    return batch


def _reference_free(kind, model, *, chosen=CHOSEN, rejected=REJECTED, **settings):
    made = trainer(
        kind, model, is_encoder_decoder=False, pad_token_id=tiny.PAD, padding_value=tiny.PAD, beta=BETA, **settings
    )
    return made.get_batch_loss_metrics(model, _paired({"chosen": chosen, "rejected": rejected}))[0]


@pytest.mark.parametrize("sft_weight", [0.0, 0.5])
def test_simpo(sft_weight):
    """TRL's simpo_gamma is our target_margin, its cpo_alpha our sft_weight."""
    row = config.SimPOLoss(kind="simpo", beta=BETA, target_margin=0.4)
    theirs = fused(POLICY)
    options = {"alpha": 0.0, "label_smoothing": 0.0, "simpo_gamma": 0.4, "cpo_alpha": sft_weight}
    their_loss = _reference_free(CPOTrainer, theirs, loss_type="simpo", **options)
    loss, _ = _ours(row, sft_weight=sft_weight)
    agree_on_models(f"SimPO loss{' with an SFT term' if sft_weight else ''}", loss, POLICY, their_loss, theirs)


def test_orpo():
    """Prompts of one token, which nothing predicts: only then TRL's likelihood term is that of the answers."""
    chosen = tiny.answers(6, seed=14, prompt=(1, 1))
    rejected = tiny.other_answers(chosen, seed=15)
    row = config.ORPOLoss(kind="orpo", weight=BETA)
    theirs = fused(POLICY)
    their_loss = _reference_free(ORPOTrainer, theirs, chosen=chosen, rejected=rejected)
    loss, _ = _ours(row, chosen=chosen, rejected=rejected, sft_weight=1.0)
    agree_on_models("ORPO loss, prompts of one token", loss, POLICY, their_loss, theirs)


def test_their_orpo_supervises_the_prompt():
    """Its likelihood is over prompt and answer; the paper's, and ours, over the answer. The rest is the same."""
    theirs = fused(POLICY)
    odds = _ours(config.ORPOLoss(kind="orpo", weight=BETA))[0]
    whole = pad([Completion(c.prompt[:1], c.prompt[1:] + c.answer) for c in CHOSEN], fill=tiny.PAD, device=tiny.CPU)
    likelihood = negative_log_likelihood(answer_log_probs(POLICY, whole, temperature=1.0), whole.mask)
    their_loss = _reference_free(ORPOTrainer, theirs)
    agree_on_models("ORPO loss, the prompt supervised", odds + likelihood, POLICY, their_loss, theirs)
    ours, _ = _ours(config.ORPOLoss(kind="orpo", weight=BETA), sft_weight=1.0)
    assert (ours - their_loss).abs() > 1e-2


def test_their_orpo_has_no_gradient_where_an_answer_is_certain():
    made = trainer(ORPOTrainer, None, beta=BETA)
    ours, theirs = (torch.tensor([0.0]).requires_grad_() for _ in range(2))
    rejected = torch.tensor([-1.0])
    made.odds_ratio_loss(theirs, rejected)[0].sum().backward()
    orpo_loss(ours, rejected, weight=BETA).sum().backward()
    assert not theirs.grad.isfinite().all()
    assert ours.grad.isfinite().all()


ROW = config.KTOLoss(kind="kto", beta=BETA, desirable_weight=1.2, undesirable_weight=0.7)
SIDES = [*CHOSEN, *REJECTED]
OTHERS = [Completion(c.prompt, SIDES[(i + 1) % len(SIDES)].answer) for i, c in enumerate(SIDES)]
"""Each prompt with an answer to another one."""


def _kto(model, rows):
    rows = [
        {"prompt_ids": SIDES[i].prompt, "completion_ids": SIDES[i].answer, "KL_completion_ids": OTHERS[i].answer}
        | {"label": i < len(CHOSEN)}
        for i in rows
    ]
    made = trainer(
        KTOTrainer,
        model,
        ref_model=fused(REFERENCE),
        calculate_KL=True,
        precompute_ref_logps=False,
        loss_type="kto",
        beta=BETA,
        desirable_weight=ROW.desirable_weight,
        undesirable_weight=ROW.undesirable_weight,
    )
    return made._compute_loss(model, DataCollatorForUnpairedPreference(pad_token_id=tiny.PAD)(rows), False)


def _our_kto():
    batch = pad(OTHERS, fill=tiny.PAD, device=tiny.CPU)
    with torch.no_grad():
        sums = [masked_sum(answer_log_probs(m, batch, temperature=1.0), batch.mask, 1) for m in (POLICY, REFERENCE)]
    baseline = kl_baseline(*sums)
    assert baseline > 0, "a baseline of 0 would not be seen"
    return _ours(ROW, baseline)[0]


def test_kto():
    theirs = fused(POLICY)
    agree_on_models("KTO loss", _our_kto(), POLICY, _kto(theirs, range(len(SIDES))), theirs)


def test_their_kto_depends_on_the_split_into_micro_batches():
    """Its baseline is that of a micro-batch: two of equal size do not give the batch's loss, as ours do."""
    half, pairs = len(CHOSEN) // 2, range(len(CHOSEN))
    parts = [[*pairs[:half], *(i + len(CHOSEN) for i in pairs[:half])]]
    parts.append([i for i in range(len(SIDES)) if i not in parts[0]])
    theirs = fused(POLICY)
    assert (sum(_kto(theirs, part) for part in parts) / 2 - _our_kto()).abs() > 1e-4
