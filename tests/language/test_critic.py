"""Critics: models of their own, and a head on the policy's trunk."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from tasks.language import critic, models
from tasks.language.batches import Completion
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import Guard
from tasks.language.rollout import Minibatch, Rollout
from tests.language.conftest import PAD

SETTINGS = SimpleNamespace(max_grad_norm=1e9, weight_decay=0.1, max_skipped=3)
NONE = SimpleNamespace(newest=lambda: None, kept=lambda: None)
COMPLETIONS = [Completion([5, 9, 12], [4, 4, 8, 7]), Completion([3], [2])]
MASK = torch.tensor([[True] * 4, [True, False, False, False]])
ALL = Minibatch([[0, 1]], 5)
PRECISIONS = pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])


def rollout() -> Rollout:
    zeros = torch.zeros(2, 4)
    return Rollout(COMPLETIONS, MASK, zeros, zeros, zeros, zeros, torch.zeros(2), torch.ones(2, dtype=torch.bool))


@pytest.fixture
def sft(llama, tmp_path):
    llama.save_pretrained(tmp_path / "sft")
    return tmp_path / "sft"


def learner(model, part, precision=torch.float32, **changes):
    trained = MasterWeights(part, SETTINGS, precision=precision)
    settings = {"clip": math.inf, "coefficient": 1.0, "learning_rate": 1e-2, "warmup": 0, "fill": PAD, "size": 2}
    return critic.Critic(model, trained, Guard(SETTINGS, NONE), **settings | changes)


def head_on(policy, sft, precision=torch.float32, *, trains_trunk):
    """The policy's own weights first, as the stage does."""
    trained = MasterWeights(policy, SETTINGS, precision=precision)
    model = critic.on_trunk(policy, sft, trains_trunk=trains_trunk)
    return trained, model, learner(model, models.scalar_head(model), precision)


def test_every_critic_starts_at_0(llama, sft, tmp_path):
    from tasks.language.text import byte_tokenizer

    reward = models.new_scalar_model(sft, torch.Generator().manual_seed(1))
    models.save(reward, byte_tokenizer(), tmp_path / "reward")
    for model in (
        critic.from_reward_model(tmp_path / "reward"),
        critic.from_policy(sft),
        critic.on_trunk(llama, sft, trains_trunk=False),
    ):
        values = learner(model, model).values(COMPLETIONS)
        assert [v.tolist() for v in values] == [[0.0] * 4, [0.0]]


def test_a_critic_from_the_reward_model_has_its_trunk(sft, tmp_path):
    from tasks.language.text import byte_tokenizer

    reward = models.new_scalar_model(sft, torch.Generator().manual_seed(1))
    with torch.no_grad():
        reward.model.norm.weight.mul_(2)
    models.save(reward, byte_tokenizer(), tmp_path / "reward")
    assert torch.equal(critic.from_reward_model(tmp_path / "reward").model.norm.weight, reward.model.norm.weight)


def test_it_learns_the_returns(sft):
    model = critic.from_policy(sft)
    trained = learner(model, model)
    returns = torch.tensor([[0.1, -0.2, 0.3, 0.4], [0.5, 0.0, 0.0, 0.0]])
    first = trained.step(rollout(), returns, ALL, scale=1.0)
    # All values 0: (.01 + .04 + .09 + .16 + .25) / 5 / 2
    assert first["value_loss"] == pytest.approx(0.055)
    for _ in range(60):
        last = trained.step(rollout(), returns, ALL, scale=1.0)
    assert last["value_loss"] < 0.005
    assert (last["value_skipped"], last["value_learning_rate"]) == (0, 1e-2)
    assert trained.step(rollout(), returns, ALL, scale=0.25)["value_learning_rate"] == 0.25e-2


def test_micro_batches_change_neither_the_step_nor_its_figures(sft):
    results = []
    for groups in ([[0, 1]], [[1], [0]]):
        model = critic.from_policy(sft)
        trained = learner(model, model, clip=0.01)
        for _ in range(3):
            figures = trained.step(rollout(), torch.ones(2, 4), Minibatch(groups, 5), scale=1.0)
        results.append((figures, trained.values(COMPLETIONS)))
    assert results[0][0]["value_clip_fraction"] > 0
    assert results[1][0] == pytest.approx(results[0][0], rel=1e-3)
    for found, expected in zip(results[1][1], results[0][1], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@PRECISIONS
def test_a_head_on_the_trunk_has_the_policy_s_tensors_and_no_others(llama, sft, precision):
    _, model, trained = head_on(llama, sft, precision, trains_trunk=True)
    own = {p.data_ptr() for p in llama.parameters()}
    extra = [name for name, p in model.named_parameters() if p.data_ptr() not in own]
    assert extra == ["score.weight"]
    # The head alone, with two moments in float32.
    assert trained.size == 3 * 32 * 4


@PRECISIONS
def test_a_head_that_does_not_train_the_trunk_sends_no_gradient_there(llama, sft, precision):
    _, model, trained = head_on(llama, sft, precision, trains_trunk=False)
    torch.nn.init.ones_(models.scalar_head(model).weight)
    before = copy.deepcopy(llama.state_dict())
    trained.step(rollout(), torch.ones(2, 4), ALL, scale=1.0)
    assert all(p.grad is None for p in llama.parameters())
    assert all(torch.equal(before[name], value) for name, value in llama.state_dict().items())
    assert not torch.equal(models.scalar_head(model).weight, torch.ones(1, 32, dtype=precision))


@PRECISIONS
def test_a_head_that_trains_the_trunk_joins_the_policy_s_step(llama, sft, precision):
    """The trunk moves at the policy's step, not at the head's; and not at all where the policy rests."""
    policy, model, trained = head_on(llama, sft, precision, trains_trunk=True)
    torch.nn.init.ones_(models.scalar_head(model).weight)
    start = copy.deepcopy(llama.state_dict())

    def still() -> bool:
        return all(torch.equal(start[name], value) for name, value in llama.state_dict().items())

    trained.step(rollout(), torch.ones(2, 4), ALL, scale=1.0)
    assert still()
    policy.discard()
    policy.backward(sum(p.sum() for p in llama.parameters()) * 0.0)
    policy.step(0.0)
    assert all(p.grad is None for p in llama.parameters())
    assert still()
    trained.step(rollout(), torch.ones(2, 4), ALL, scale=1.0)
    policy.backward(sum(p.sum() for p in llama.parameters()) * 0.0)
    assert policy.step(1e-2) > 0
    assert not still()


def test_no_critic_says_0_and_learns_nothing():
    nobody = critic.NoCritic()
    assert [v.tolist() for v in nobody.values(COMPLETIONS)] == [[0.0] * 4, [0.0]]
    assert nobody.step(rollout(), torch.ones(2, 4), ALL, scale=1.0) == {}
