"""The loss of a reward model: RewardTrainer.compute_loss."""

from __future__ import annotations

import copy

import pytest
import torch
from trl.trainer.reward_trainer import DataCollatorForPreference, RewardTrainer

from parity import tiny
from parity.comparison import agree, agree_on_models
from parity.trl_1_16.trainer import trainer
from tasks.algorithms.ranking import bradley_terry_loss, centring_penalty
from tasks.language.batches import Completion, pad
from tasks.language.scoring import last_scalars

CHOSEN = tiny.answers(5, seed=5)
REJECTED = tiny.other_answers(CHOSEN, seed=6)
MARGINS = [0.0, 0.5, 1.0, 2.0, -1.0]


def _theirs(model, *, margins=None, centring=None):
    rows = [
        {"chosen_ids": c.prompt + c.answer, "rejected_ids": r.prompt + r.answer}
        | ({} if margins is None else {"margin": m})
        for c, r, m in zip(CHOSEN, REJECTED, MARGINS, strict=True)
    ]
    made = trainer(RewardTrainer, model, args={"center_rewards_coefficient": centring})
    return made.compute_loss(model, DataCollatorForPreference(pad_token_id=tiny.PAD)(rows))


def _scores(model):
    return [last_scalars(model, pad(side, fill=tiny.PAD, device=tiny.CPU)) for side in (CHOSEN, REJECTED)]


@pytest.mark.parametrize("margins", [None, MARGINS], ids=["plain", "margin"])
def test_bradley_terry(margins):
    ours = tiny.scalar_model(5)
    theirs = copy.deepcopy(ours).train()
    loss, _ = bradley_terry_loss(*_scores(ours), None if margins is None else torch.tensor(margins))
    quantity = f"reward loss{'' if margins is None else ' with margins'}"
    agree_on_models(quantity, loss, ours, _theirs(theirs, margins=margins), theirs)


def test_centring():
    """TRL squares the sum of a pair's two scores, we their mean (a ranking may have more): 4 times its coefficient."""
    ours = tiny.scalar_model(5)
    theirs = copy.deepcopy(ours).train()
    chosen, rejected = _scores(ours)
    both = torch.stack([chosen, rejected], 1)
    loss = bradley_terry_loss(chosen, rejected)[0] + 4 * 0.1 * centring_penalty(both, torch.ones_like(both).bool())
    agree_on_models("reward loss with centring", loss, ours, _theirs(theirs, centring=0.1), theirs)


def test_theirs_scores_the_token_before_the_eos_where_pad_is_eos():
    """The pooling of the classifier looks for the last token that is not the pad id. We count tokens: it is the EOS."""
    model = tiny.scalar_model(5)
    c = CHOSEN[0]
    batch = torch.tensor([c.prompt + c.answer])
    with torch.no_grad():
        ours = last_scalars(model, pad([c], fill=tiny.PAD, device=tiny.CPU))
        before = last_scalars(model, pad([Completion(c.prompt, c.answer[:-1])], fill=tiny.PAD, device=tiny.CPU))
        agree("score of an answer", ours, model(input_ids=batch).logits[:, 0])
        model.config.pad_token_id = tiny.EOS
        theirs = model(input_ids=batch).logits[:, 0]
    agree("score of an answer", before, theirs)
    assert (ours - theirs).abs() > 1e-2
