"""PPO: from the models' numbers to the two clipped losses. TRL 1.12 is the last release with a PPOTrainer."""

from __future__ import annotations

import copy

import pytest
import torch
from trl.experimental.ppo.ppo_trainer import masked_whiten

from parity import tiny
from parity.comparison import agree, agree_on
from parity.trl_1_12 import rollout
from parity.trl_1_12.rollout import COMPLETIONS, COUNTED, FINISHED, LENGTH, POLICY, REFERENCE, REWARD, VALUE
from tasks.algorithms.advantages import gae
from tasks.algorithms.kl import ESTIMATORS, k1
from tasks.algorithms.masking import masked_mean, masked_sum, whiten
from tasks.algorithms.ppo import clipped_policy_loss, clipped_value_loss
from tasks.algorithms.rewards import place_score, shaped_rewards, subtract_missing_eos
from tasks.language.batches import pad
from tasks.language.scoring import answer_log_probs, answer_values, last_scalars

BATCH = pad(COMPLETIONS, fill=tiny.PAD, device=tiny.CPU)
MASK = BATCH.mask
WHOLE = torch.tensor(COUNTED) == LENGTH
"""Answers of the full length: behind those there is no position where TRL could put the score."""
TEMPERATURE = rollout.T + 1e-7
"""TRL adds the 1e-7."""


@pytest.fixture(scope="module")
def monkey():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def plain(monkey):
    return rollout.update(monkey)


def _scores():
    with torch.no_grad():
        return subtract_missing_eos(last_scalars(REWARD, BATCH), FINISHED, value=rollout.MISSING_EOS)


def _log_probs(model):
    with torch.no_grad():
        return answer_log_probs(model, BATCH, temperature=TEMPERATURE)


def _values(model=VALUE):
    with torch.no_grad():
        return answer_values(model, BATCH)


def _rewards(estimator, score=None, coefficient=rollout.KL):
    log_ratio = _log_probs(POLICY) - _log_probs(REFERENCE)
    return shaped_rewards(
        _scores() if score is None else score,
        log_ratio,
        MASK,
        coefficient=coefficient,
        penalty=estimator,
        place=place_score,
    )


def test_what_the_models_say(plain):
    """Scores at the last real token less the penalty for a missing EOS, values before each token, log-probabilities."""
    first = plain[0][0]
    agree("PPO: scores with missing_eos_penalty", _scores(), first["scores"])
    agree("PPO: log-probabilities of the rollout", _log_probs(POLICY)[MASK], first["logprobs"][MASK])
    agree("PPO: log-probabilities of the reference", _log_probs(REFERENCE)[MASK], first["ref_logprobs"][MASK])
    agree("PPO: values", _values()[MASK], first["values"][MASK])
    assert torch.equal(~first["padding_mask"], MASK)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_kl_in_the_reward(plain, monkey, name):
    first = (plain if name == "k1" else rollout.update(monkey, kl_estimator=name))[0][0]
    log_ratio = _log_probs(POLICY) - _log_probs(REFERENCE)
    agree(f"PPO: KL estimator {name}", ESTIMATORS[name](log_ratio)[MASK], first["kl"][MASK])
    ours = _rewards(ESTIMATORS[name])
    agree(f"PPO: rewards with {name}, answers of the full length", ours[WHOLE], first["rewards"][WHOLE])


def test_gae(plain):
    """The recursion on TRL's own rewards, and from scores to returns for answers of the full length."""
    first = plain[0][0]
    theirs = first["returns"] - first["values"]
    advantages, returns = gae(
        first["rewards"],
        first["values"],
        ~first["padding_mask_p1"],
        discount=rollout.DISCOUNT,
        trace=rollout.TRACE,
    )
    agree("PPO: GAE on the same rewards", advantages, theirs)
    agree("PPO: returns on the same rewards", returns, first["returns"])
    ours, _ = gae(_rewards(k1), _values(), MASK, discount=rollout.DISCOUNT, trace=rollout.TRACE)
    agree("PPO: GAE from the scores, answers of the full length", ours[WHOLE], theirs[WHOLE])


def test_their_score_comes_one_token_late(monkey):
    """An answer that ends early has its score on the pad after its EOS: with V = 0 and no KL the EOS gets lambda R."""
    value = copy.deepcopy(VALUE)
    torch.nn.init.zeros_(value.score.weight)
    first = rollout.update(monkey, value=value, kl_coef=0.0, gamma=1.0)[0][0]
    theirs = first["returns"] - first["values"]
    rows, last = torch.arange(len(COUNTED)), torch.tensor(COUNTED) - 1
    assert (first["rewards"][~WHOLE, last[~WHOLE]] == 0).all()
    assert torch.equal(first["rewards"][~WHOLE, last[~WHOLE] + 1], first["scores"][~WHOLE])
    rewards = _rewards(k1, first["scores"], coefficient=0.0)
    ours, _ = gae(rewards, torch.zeros_like(rewards), MASK, discount=1.0, trace=rollout.TRACE)
    torch.testing.assert_close(ours[rows, last], first["scores"])
    torch.testing.assert_close(theirs[~WHOLE, last[~WHOLE]], rollout.TRACE * first["scores"][~WHOLE])
    torch.testing.assert_close(theirs[WHOLE, last[WHOLE]], first["scores"][WHOLE])
    agree(
        "PPO: TRL's EOS advantage over lambda",
        ours[MASK],
        torch.where(WHOLE[:, None], theirs, theirs / rollout.TRACE)[MASK],
    )


@pytest.mark.parametrize("centre", [True, False], ids=["advantages", "rewards"])
def test_whitening(centre):
    """TRL divides by the sample deviation, we by that of the population (as Ziegler's code does): sqrt(1 - 1/n)."""
    generator = torch.Generator().manual_seed(36)
    x = torch.randn(8, LENGTH, generator=generator)
    n = int(MASK.sum())

    def theirs(values):
        found = masked_whiten(values, MASK, shift_mean=centre)
        mean = 0.0 if centre else masked_mean(values, MASK)
        return ((found - mean) * (n / (n - 1)) ** 0.5 + mean)[MASK]

    quantity = f"PPO: whitening {'with' if centre else 'without'} centring, times sqrt(n / (n - 1))"
    agree_on(quantity, lambda values: whiten(values, MASK, centre=centre)[MASK], theirs, [x])
    gap = (whiten(x, MASK, centre=centre) - masked_whiten(x, MASK, shift_mean=centre))[MASK].abs().max()
    assert 1e-3 < gap < 0.1


def test_their_whitening_of_one_token_or_of_garbage_is_not_a_number():
    x = torch.tensor([[3.0, 1.0]])
    one = torch.tensor([[True, False]])
    assert masked_whiten(x, one).isnan().all()
    assert torch.equal(whiten(x, one, centre=True), torch.zeros(1, 2))
    spoiled = torch.tensor([[1.0, 2.0, torch.nan]])
    two = torch.tensor([[True, True, False]])
    assert masked_whiten(spoiled, two).isnan().all()
    assert whiten(spoiled, two, centre=True).isfinite().all()


def test_whitened_advantages_and_rewards_of_a_rollout(plain, monkey):
    first = plain[0][0]
    n = int(MASK.sum())
    raw = first["returns"] - first["values"]
    agree(
        "PPO: advantages of a rollout, whitened",
        whiten(raw, MASK, centre=True)[MASK],
        first["advantages"][MASK] * (n / (n - 1)) ** 0.5,
    )
    whitened = rollout.update(monkey, whiten_rewards=True)[0][0]["rewards"]
    counted = ~first["padding_mask_p1"]
    n, mean = int(counted.sum()), masked_mean(first["rewards"], counted)
    ours = whiten(first["rewards"], counted, centre=False)
    agree(
        "PPO: rewards of a rollout, whitened", ours[counted], ((whitened - mean) * (n / (n - 1)) ** 0.5 + mean)[counted]
    )


def test_clipped_policy_loss(plain):
    steps, logged = plain
    fractions = []
    for step in steps:
        mask = ~step["padding_mask"][step["rows"]]
        log_probs = step["new_logprobs"].clone().requires_grad_()
        loss, statistics = clipped_policy_loss(
            log_probs, step["mb_logprobs"], step["mb_advantage"], mask, clip=rollout.CLIP
        )
        loss.backward()
        agree("PPO: clipped policy loss", loss, step["pg_loss"])
        agree("PPO: clipped policy loss, gradient", log_probs.grad, step["policy_slope"])
        fractions.append(statistics["clip_fraction"])
    mean = torch.stack(fractions).mean()
    assert mean > 0, "nothing is clipped"
    agree("PPO: clip fraction of the policy", mean, torch.tensor(logged["policy/clipfrac_avg"]))


def test_clipped_value_loss(plain):
    """On TRL's mask, which has one token more than the answer: that of the score behind the EOS."""
    steps, logged = plain
    fractions = []
    for step in steps:
        mask = ~step["padding_mask_p1"][step["rows"]]
        values = step["vpred"].clone().requires_grad_()
        loss, statistics = clipped_value_loss(
            values, step["mb_values"], step["mb_return"], mask, clip=rollout.VALUE_CLIP
        )
        loss.backward()
        agree("PPO: clipped value loss", loss, step["vf_loss"])
        agree("PPO: clipped value loss, gradient", values.grad, step["value_slope"])
        fractions.append(statistics["clip_fraction"])
    mean = torch.stack(fractions).mean()
    assert mean > 0, "nothing is clipped"
    agree("PPO: clip fraction of the value", mean, torch.tensor(logged["val/clipfrac_avg"]))


def test_the_first_minibatch_has_ratio_one(plain):
    first = plain[0][0]
    mask = ~first["padding_mask"][first["rows"]]
    assert (first["new_logprobs"] - first["mb_logprobs"])[mask].abs().max() < 1e-5
    agree(
        "PPO: loss at ratio 1 is minus the mean advantage", -masked_mean(first["mb_advantage"], mask), first["pg_loss"]
    )


def test_their_loss_depends_on_the_split_into_micro_batches(monkey):
    """A mean per micro-batch, then their mean: a token counts more where the answers beside it are short."""
    steps, _ = rollout.update(
        monkey, gradient_accumulation_steps=2, per_device_train_batch_size=2, local_mini_batch_size=4, num_ppo_epochs=1
    )
    pair = steps[:2]
    masks = [~step["padding_mask"][step["rows"]] for step in pair]
    tokens = sum(int(mask.sum()) for mask in masks)
    assert masks[0].sum() != masks[1].sum()
    theirs = sum(step["pg_loss"] for step in pair) / 2
    ours = sum(
        clipped_policy_loss(s["new_logprobs"], s["mb_logprobs"], s["mb_advantage"], m, clip=rollout.CLIP, count=tokens)[
            0
        ]
        for s, m in zip(pair, masks, strict=True)
    )
    whole = -sum(masked_sum(s["mb_advantage"], m) for s, m in zip(pair, masks, strict=True)) / tokens
    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-6)
    assert (theirs - whole).abs() > 1e-3
