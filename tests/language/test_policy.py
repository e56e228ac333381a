"""A policy's step on a minibatch, against torch's own distributions, and split into micro-batches in every way."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from tasks.algorithms.kl import k2, k3
from tasks.language import models, policy, pretraining
from tasks.language.batches import Completion
from tasks.language.critic import NoCritic
from tasks.language.generation import Sampler, sample
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import Guard
from tasks.language.rollout import Actors, collect, minibatch
from tests.language.conftest import EOS, PAD

PROMPTS = [[5, 9, 12], [3], [20, 21, 22, 23], [11, 4]]
SAMPLER = Sampler(6, 0.7, EOS, PAD, 8)
SETTINGS = SimpleNamespace(max_grad_norm=1e9, weight_decay=0.0, max_skipped=3)
NONE = SimpleNamespace(newest=lambda: None, kept=lambda: None)
DEMONSTRATIONS = [Completion([1, 2], [3, 4, 7]), Completion([5], [7]), Completion([6, 8], [9, 9]), Completion([4], [4])]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def learner(model, terms, *, limit=math.inf, mixed=pretraining.no_demonstrations, rate=1e-3):
    return policy.Policy(
        model,
        MasterWeights(model, SETTINGS, precision=torch.float32),
        Guard(SETTINGS, NONE),
        terms,
        mixed=mixed,
        learning_rate=rate,
        update_kl_limit=limit,
        temperature=SAMPLER.temperature,
        fill=PAD,
    )


@pytest.fixture
def rollout(llama, tmp_path):
    """Eight answers; the reference is another model, so that the KL is not 0."""
    llama.save_pretrained(tmp_path)
    reward = models.new_scalar_model(tmp_path, seeded(1))
    reference = copy.deepcopy(llama)
    with torch.no_grad():
        reference.model.norm.weight.mul_(1.1)
    actors = Actors(llama, NoCritic().values, reference, reward)
    return collect(actors, PROMPTS, SAMPLER, group=2, generator=seeded(), size=3)


def clipped():
    return policy.surrogate(clip=0.2, dual_clip=None)


TERMS = {
    "surrogate": lambda: [clipped()],
    "dual clip": lambda: [policy.surrogate(clip=0.2, dual_clip=1.5)],
    "k2": lambda: [clipped(), policy.kl_to_reference(estimator=k2)],
    "k3": lambda: [clipped(), policy.kl_to_reference(estimator=k3)],
    "entropy": lambda: [clipped(), policy.entropy_bonus(coefficient=0.1)],
}


def moved(model, start):
    return torch.cat([(a - b).flatten() for a, b in zip(model.parameters(), start.parameters(), strict=True)])


def test_the_answers_of_a_prompt_stand_next_to_each_other(llama, rollout):
    assert [c.prompt for c in rollout.completions] == [p for p in PROMPTS for _ in range(2)]
    found = sample(llama, PROMPTS, SAMPLER, answers=2, generator=seeded())
    assert [c.answer for c in rollout.completions] == [a.tokens for answers in found for a in answers]


def test_the_kl_is_the_mean_over_answers_of_the_sum_over_tokens(rollout):
    sums = [
        sum(float(p - q) for p, q in zip(row, other, strict=True))
        for row, other in zip(rollout.log_probs, rollout.reference, strict=True)
    ]
    assert rollout.kl == pytest.approx(sum(sums) / 8, rel=1e-5)
    assert rollout.kl != 0


@pytest.mark.parametrize("name", TERMS)
def test_micro_batches_change_neither_the_step_nor_its_figures(llama, rollout, name):
    advantages = torch.where(rollout.mask, torch.randn(rollout.mask.shape, generator=seeded(2)), 0)
    start, results = copy.deepcopy(llama), []
    for size in (8, 3, 1):
        model = copy.deepcopy(llama)
        mixed = pretraining.Demonstrations(
            model, DEMONSTRATIONS, coefficient=0.5, batch=4, size=size, fill=PAD, seed=0
        ).losses
        trained = learner(model, TERMS[name](), mixed=mixed)
        for _ in range(2):  # at the second the ratio is not 1
            batch = minibatch(rollout, list(range(8)), size=size)
            figures, _ = trained.step(rollout, advantages, batch, scale=1.0, kl_coefficient=0.1)
        results.append((figures, moved(model, start)))
    for figures, change in results[1:]:
        assert figures == pytest.approx(results[0][0], rel=1e-3, abs=1e-6)
        torch.testing.assert_close(change, results[0][1], rtol=1e-2, atol=1e-5)


def test_the_ratio_is_1_before_the_first_step_whatever_the_advantages(llama, rollout):
    batch = minibatch(rollout, list(range(8)), size=3)
    advantages = torch.where(rollout.mask, torch.randn(rollout.mask.shape, generator=seeded(2)), 0)
    figures, _ = learner(llama, [clipped()]).step(rollout, advantages, batch, scale=0.0, kl_coefficient=0.0)
    assert max(abs(math.log(figures[name])) for name in ("ratio_min", "ratio_max")) < 1e-5
    assert figures["loss"] == pytest.approx(-float(advantages[rollout.mask].mean()), rel=1e-4)
    assert figures["clip_fraction"] == 0


def test_the_bonus_is_the_entropy_at_the_temperature_that_sampled(llama, rollout):
    """Against torch's Categorical, one answer at a time, and the same as the rollout's own."""
    entropies = []
    for c in rollout.completions:
        with torch.no_grad():
            logits = llama(torch.tensor([c.prompt + c.answer])).logits[0, len(c.prompt) - 1 : -1] / 0.7
        entropies.append(torch.distributions.Categorical(logits=logits).entropy())
    expected = float(torch.cat(entropies).mean())
    batch = minibatch(rollout, list(range(8)), size=3)
    zero = torch.zeros(rollout.mask.shape)
    trained = learner(llama, [clipped(), policy.entropy_bonus(coefficient=0.1)])
    figures, _ = trained.step(rollout, zero, batch, scale=0.0, kl_coefficient=0.0)
    assert figures["update_entropy"] == pytest.approx(expected, rel=1e-5)
    assert figures["loss"] == pytest.approx(-0.1 * expected, rel=1e-5)
    assert float(rollout.entropies[rollout.mask].mean()) == pytest.approx(expected, rel=1e-5)


def test_the_kl_term_is_the_coefficient_times_the_token_mean(llama, rollout):
    ratios = [
        float(p - q) for p, q in zip(rollout.log_probs[rollout.mask], rollout.reference[rollout.mask], strict=True)
    ]
    expected = sum(x * x / 2 for x in ratios) / len(ratios)
    batch = minibatch(rollout, list(range(8)), size=3)
    trained = learner(llama, [clipped(), policy.kl_to_reference(estimator=k2)])
    zero = torch.zeros(rollout.mask.shape)
    figures, _ = trained.step(rollout, zero, batch, scale=0.0, kl_coefficient=0.25)
    assert figures["kl_loss"] == pytest.approx(expected, rel=1e-4)
    assert figures["loss"] == pytest.approx(0.25 * expected, rel=1e-4)


def test_the_bonus_raises_entropy_and_the_kl_term_lowers_the_kl(llama, rollout):
    batch = minibatch(rollout, list(range(8)), size=8)
    zero = torch.zeros(rollout.mask.shape)
    for term, name, sign in [
        (policy.entropy_bonus(coefficient=1.0), "update_entropy", 1),
        (policy.kl_to_reference(estimator=k2), "kl_loss", -1),
    ]:
        trained = learner(copy.deepcopy(llama), [clipped(), term], rate=1e-4)
        seen = [trained.step(rollout, zero, batch, scale=1.0, kl_coefficient=1.0)[0][name] for _ in range(5)]
        assert sign * (seen[-1] - seen[0]) > 0


def test_beyond_the_kl_limit_no_step_is_taken(llama, rollout):
    batch = minibatch(rollout, list(range(8)), size=8)
    advantages = rollout.mask.float()
    trained = learner(llama, [clipped()], limit=1e-4, rate=1e-2)
    assert trained.step(rollout, advantages, batch, scale=1.0, kl_coefficient=0.0)[1]
    before = copy.deepcopy(llama)
    figures, taken = trained.step(rollout, advantages, batch, scale=1.0, kl_coefficient=0.0)
    assert not taken
    assert figures["approx_kl"] > 1e-4
    assert "policy_steps" not in figures
    assert (moved(llama, before) == 0).all()
    assert all(p.grad is None for p in llama.parameters())
    far = learner(copy.deepcopy(llama), [clipped()], limit=2 * figures["approx_kl"])
    assert far.step(rollout, advantages, batch, scale=1.0, kl_coefficient=0.0)[1]


def test_a_step_that_is_not_finite_is_skipped_and_counted(llama, rollout):
    batch = minibatch(rollout, list(range(8)), size=8)
    trained, start = learner(llama, [clipped()]), copy.deepcopy(llama)
    spoiled = rollout.mask.float() * torch.nan
    figures, _ = trained.step(rollout, spoiled, batch, scale=1.0, kl_coefficient=0.0)
    assert (figures["skipped"], math.isnan(figures["loss"])) == (1, True)
    assert (moved(llama, start) == 0).all()
    figures, _ = trained.step(rollout, rollout.mask.float(), batch, scale=1.0, kl_coefficient=0.0)
    assert figures["skipped"] == 1
    assert (moved(llama, start) != 0).any()


class TestDemonstrations:
    def mixed(self, model, **changes):
        settings = {"coefficient": 0.5, "batch": 4, "size": 4, "fill": PAD, "seed": 0}
        return pretraining.Demonstrations(model, DEMONSTRATIONS, **settings | changes)

    def test_the_loss_is_the_token_mean_of_the_answers(self, llama):
        """By a lone forward pass per demonstration: 3 + 1 + 2 + 1 = 7 answer tokens, at temperature 1."""
        total = 0.0
        for c in DEMONSTRATIONS:
            with torch.no_grad():
                log_p = llama(torch.tensor([c.prompt + c.answer])).logits[0].log_softmax(-1)
            total -= sum(float(log_p[len(c.prompt) + t - 1, token]) for t, token in enumerate(c.answer))
        parts = list(self.mixed(llama, size=3).losses(0))
        assert len(parts) == 2
        assert sum(float(s["pretraining_loss"]) for _, s in parts) == pytest.approx(total / 7, rel=1e-5)
        assert sum(float(loss.detach()) for loss, _ in parts) == pytest.approx(0.5 * total / 7, rel=1e-5)

    def test_every_epoch_visits_each_once_in_an_order_of_its_own(self, llama):
        mixed = self.mixed(llama, batch=1)
        turns = [mixed._turn(step)[0] for step in range(12)]
        for epoch in range(3):
            assert {id(c) for c in turns[4 * epoch : 4 * epoch + 4]} == {id(c) for c in DEMONSTRATIONS}
        assert len({tuple(map(id, turns[4 * epoch : 4 * epoch + 4])) for epoch in range(3)}) > 1
        assert turns[5] is self.mixed(llama, batch=1)._turn(5)[0]
