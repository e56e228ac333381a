"""The loss of supervised fine-tuning: SFTTrainer.compute_loss."""

from __future__ import annotations

from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from parity import tiny
from parity.comparison import agree_on_models
from parity.trl_1_16.trainer import fused, trainer
from tasks.algorithms.supervised import negative_log_likelihood
from tasks.language.batches import pad
from tasks.language.scoring import answer_log_probs

ROWS = tiny.answers(6, seed=3)


def _theirs(model, rows, supervised=None):
    rows = [{"input_ids": c.prompt + c.answer, "labels": [-100] * len(c.prompt) + c.answer} for c in rows]
    args = {"loss_type": "nll", "average_tokens_across_devices": False}
    made = trainer(SFTTrainer, model, args=args, compute_loss_func=None, label_smoother=None)
    batch = DataCollatorForLanguageModeling(pad_token_id=tiny.PAD)(rows)
    return made.compute_loss(model, batch, num_items_in_batch=supervised)


def _ours(model, rows, supervised=None):
    batch = pad(rows, fill=tiny.PAD, device=tiny.CPU)
    return negative_log_likelihood(answer_log_probs(model, batch, temperature=1.0), batch.mask, count=supervised)


def test_token_mean_of_a_batch():
    ours = tiny.policy(3)
    theirs = fused(ours)
    agree_on_models("SFT loss", _ours(ours, ROWS), ours, _theirs(theirs, ROWS), theirs)


def test_token_mean_over_micro_batches():
    """Both divide by the tokens of the whole batch, so that the parts' losses add up to the batch's."""
    ours = tiny.policy(3)
    theirs = fused(ours)
    supervised = sum(len(c.answer) for c in ROWS)
    parts = (ROWS[:1], ROWS[1:])
    whole = _ours(ours, ROWS)
    summed = sum(_theirs(theirs, part, supervised) for part in parts)
    agree_on_models("SFT loss over micro-batches", whole, ours, summed, theirs)
    summed = sum(_ours(ours, part, supervised) for part in parts)
    agree_on_models("SFT loss over micro-batches", summed, ours, _theirs(theirs, ROWS), theirs)
