"""Groups of answers without a critic: GRPOTrainer and RLOOTrainer, from the scores to the gradient of the policy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer

from parity import tiny
from parity.comparison import agree, agree_on_models, gradient
from parity.trl_1_16.trainer import fused, trainer
from tasks.algorithms.advantages import STD_FLOOR, grpo, rloo, sample_std
from tasks.algorithms.kl import k1, k3
from tasks.algorithms.logprobs import entropy
from tasks.algorithms.rewards import place_score, shaped_rewards
from tasks.language.batches import Completion, pad
from tasks.language.policy import Answers, entropy_bonus, kl_to_reference, surrogate
from tasks.language.scoring import answer_log_probs, answer_logits_and_log_probs

GROUP, T, BETA, CLIP = 4, 0.8, 0.05, 0.2
PROMPTS = tiny.answers(2, seed=21)
ROLLOUT = [Completion(PROMPTS[i // GROUP].prompt, c.answer) for i, c in enumerate(tiny.answers(8, seed=22))]
SCORES = torch.tensor([1.0, 0.0, 0.3, 3.0, -1.0, 2.0, 0.5, 0.5])
SAMPLER = tiny.policy(21)
POLICY = tiny.moved(SAMPLER, by=0.03, seed=22)
REFERENCE = tiny.moved(SAMPLER, by=0.05, seed=23)
BATCH = pad(ROLLOUT, fill=tiny.PAD, device=tiny.CPU)


def _log_probs(model):
    with torch.no_grad():
        return answer_log_probs(model, BATCH, temperature=T)


def _trainer(kind, generated, *, parts=1, args=None, **settings):
    """A trainer whose answers and scores are given. Two passes over a rollout make it keep the sampler's numbers."""
    made = trainer(
        kind,
        fused(SAMPLER, temperature=T),
        args={
            "per_device_train_batch_size": len(ROLLOUT),
            "gradient_accumulation_steps": parts,
            "steps_per_generation": parts,
            "delta": None,
            "use_bias_correction_kl": False,
            **(args or {}),
        },
        ref_model=fused(REFERENCE, temperature=T),
        beta=BETA,
        num_iterations=2,
        num_generations=GROUP,
        epsilon_low=CLIP,
        epsilon_high=CLIP,
        current_gradient_accumulation_steps=parts,
        reward_weights=torch.ones(1),
        reward_func_names=["score"],
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        log_multimodal=False,
        _tokenizer=SimpleNamespace(pad_token_id=tiny.PAD),
        _logs={"prompt": [], "completion": [], "advantages": [], "rewards": defaultdict(list)},
        _pending_extra_logs={},
        _pending_metrics={},
        **settings,
    )
    ids = ([c.prompt for c in ROLLOUT], [c.answer for c in ROLLOUT])
    made._generate = lambda prompts: generated(*ids)
    made._calculate_rewards = lambda *_: SCORES.unsqueeze(1)
    return made


def _grpo(kind="dapo", **settings):
    options = {
        "loss_type": kind,
        "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
        "environment_factories": None,
        "environments": None,
        "tools": None,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "_entropy_bonus_enabled": False,
        "max_completion_length": 9,
    }
    generated = lambda prompts, answers: (prompts, answers, None, answers, None, {}, None, None)  # noqa: E731
    return _trainer(GRPOTrainer, generated, **options | settings)


def _rloo():
    return _trainer(
        RLOOTrainer,
        lambda prompts, answers: (prompts, answers, answers),
        reward_clip_range=None,
        normalize_advantages=False,
    )


def _scored(made):
    return made._generate_and_score_completions([{"prompt": ""} for _ in ROLLOUT])


def _their_std(centred):
    """The sample deviation with TRL's floor of 1e-4 in place of ours."""
    return sample_std(centred) - STD_FLOOR + 1e-4


def _our_grpo_advantages():
    return grpo(place_score(SCORES, BATCH.mask), BATCH.mask, group=GROUP, scale=_their_std)


def _answers(model, advantages, *, rows=None):
    """What the terms of our policy loss see, of the whole rollout or of some rows."""
    rows = list(range(len(ROLLOUT))) if rows is None else rows
    batch = pad([ROLLOUT[i] for i in rows], fill=tiny.PAD, device=tiny.CPU)
    cut = lambda x: x[rows, : batch.mask.shape[1]]  # noqa: E731
    logits, log_probs = answer_logits_and_log_probs(model, batch, temperature=T)
    return Answers(
        log_probs=log_probs,
        entropies=lambda: batch.padded(entropy(logits, temperature=T).squeeze(0)),
        old=cut(_log_probs(SAMPLER)),
        reference=cut(_log_probs(REFERENCE)),
        advantages=cut(advantages),
        mask=batch.mask,
        count=int(BATCH.mask.sum()),
        kl_coefficient=BETA,
    )


def _ours(model, advantages, *, dual_clip=None, bonus=None, rows=None):
    answers = _answers(model, advantages, rows=rows)
    terms = [surrogate(clip=CLIP, dual_clip=dual_clip), kl_to_reference(estimator=k3)]
    terms += [] if bonus is None else [entropy_bonus(coefficient=bonus)]
    return sum(term(answers)[0] for term in terms)


def _their_loss(made, model, scored, rows=None):
    per_answer = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
    per_answer += ("old_per_token_logps", "ref_per_token_logps")
    batch = {k: v[rows] if rows is not None and k in per_answer else v for k, v in scored.items()}
    return made._compute_loss(model, batch)


def test_grpo_advantages():
    scored = _scored(_grpo())
    theirs = scored["advantages"].unsqueeze(1).expand(BATCH.mask.shape)
    ours = _our_grpo_advantages()
    agree("GRPO advantages, sample deviation, TRL's floor", ours[BATCH.mask], theirs[BATCH.mask])
    # Ours adds 1e-6 to the deviation, TRL 1e-4: a part in 10^4 where it is 1.
    own = grpo(place_score(SCORES, BATCH.mask), BATCH.mask, group=GROUP, scale=sample_std)
    assert 1e-5 < ((own - theirs)[BATCH.mask].abs() / theirs[BATCH.mask].abs().clamp(min=0.1)).max() < 5e-4


def test_dr_grpo_advantages():
    scored = _scored(_grpo(scale_rewards="none"))
    ours = grpo(place_score(SCORES, BATCH.mask), BATCH.mask, group=GROUP, scale=lambda x: torch.ones_like(x[:, :1]))
    agree("GRPO advantages, unscaled", ours[:, 0], scored["advantages"])


def test_log_probs_of_a_rollout():
    """Their prompts are padded on the left, ours stand at the left: the same numbers."""
    scored = _scored(_grpo())
    for name, model in (("old_per_token_logps", SAMPLER), ("ref_per_token_logps", REFERENCE)):
        agree("log-probability of a rollout's tokens", _log_probs(model)[BATCH.mask], scored[name][BATCH.mask])


@pytest.mark.parametrize("kind", ["dapo", "bnpo"])
def test_grpo_loss(kind):
    """The surrogate after the policy has moved, and k3 to the reference: mean over the tokens of the batch."""
    theirs = fused(POLICY, temperature=T)
    made = _grpo(kind)
    loss = _ours(POLICY, _our_grpo_advantages())
    agree_on_models(f"GRPO loss, {kind}, with k3", loss, POLICY, _their_loss(made, theirs, _scored(made)), theirs)
    assert made._metrics["train"]["clip_ratio/region_mean"][-1] > 0, "nothing is clipped"


def test_grpo_loss_over_micro_batches():
    theirs = fused(POLICY, temperature=T)
    made = _grpo("dapo", parts=2)
    scored, advantages, parts = _scored(made), _our_grpo_advantages(), ([0, 1, 2], [3, 4, 5, 6, 7])
    summed = sum(_their_loss(made, theirs, scored, rows) for rows in parts)
    agree_on_models("GRPO loss over micro-batches", _ours(POLICY, advantages), POLICY, summed, theirs)
    ours = sum(_ours(POLICY, advantages, rows=rows) for rows in parts)
    agree_on_models("GRPO loss over micro-batches", ours, POLICY, summed, theirs)


def test_dual_clip():
    """TRL's delta bounds the ratio, our dual_clip the loss: the same where A < 0, neither does anything where A > 0."""
    policy = tiny.moved(SAMPLER, by=0.08, seed=24)
    theirs = fused(policy, temperature=T)
    made = _grpo("dapo", args={"delta": 1.5})
    loss = _ours(policy, _our_grpo_advantages(), dual_clip=1.5)
    assert (loss - _ours(policy, _our_grpo_advantages())).abs() > 1e-3, "the second clip does nothing"
    agree_on_models("GRPO loss with dual clip", loss, policy, _their_loss(made, theirs, _scored(made)), theirs)


def test_entropy_bonus():
    theirs = fused(POLICY, temperature=T)
    made = _grpo("dapo", _entropy_bonus_enabled=True, use_adaptive_entropy=False, entropy_coef=0.1)
    loss = _ours(POLICY, _our_grpo_advantages(), bonus=0.1)
    agree_on_models("GRPO loss with entropy bonus", loss, POLICY, _their_loss(made, theirs, _scored(made)), theirs)


@pytest.mark.parametrize("kind", ["grpo", "bnpo"])
def test_their_loss_depends_on_the_split_into_micro_batches(kind):
    """`bnpo` averages over the tokens of a micro-batch and then over micro-batches; `grpo` (no longer TRL's default)
    averages over each answer first, so that a token of a long answer counts less."""
    theirs = fused(POLICY, temperature=T)
    made = _grpo(kind, parts=2)
    scored = _scored(made)
    summed = sum(_their_loss(made, theirs, scored, rows) for rows in ([0], list(range(1, 8))))
    assert (summed - _ours(POLICY, _our_grpo_advantages())).abs() > 1e-4


def test_their_k3_is_not_bounded():
    """A log-ratio of 20 in one token is 4.9e8 in TRL's loss; ours is cut at 10 and has no gradient beyond."""
    theirs = fused(SAMPLER, temperature=T)
    made = _grpo("dapo")
    scored = _scored(made)
    scored["ref_per_token_logps"][0, 0] = scored["old_per_token_logps"][0, 0] + 20
    answers = _answers(SAMPLER, _our_grpo_advantages())
    reference = answers.reference.clone()
    reference[0, 0] = answers.old[0, 0] + 20
    term = kl_to_reference(estimator=k3)
    ours = term(replace(answers, reference=reference))[0]
    assert _their_loss(made, theirs, scored) > 1e5
    assert ours < 1e3


def test_rloo_advantages():
    """The KL is in the reward, k1 summed over the answer; TRL's coefficient is `beta`."""
    scored = _scored(_rloo())
    mask = BATCH.mask
    log_ratio = _log_probs(SAMPLER) - _log_probs(REFERENCE)
    rewards = shaped_rewards(SCORES, log_ratio, mask, coefficient=BETA, penalty=k1, place=place_score)
    agree("RLOO advantages with k1 in the reward", rloo(rewards, mask, group=GROUP)[:, 0], scored["advantages"])


def test_rloo_gradient_on_fresh_answers():
    """Before the first step TRL's ratio of whole answers and ours of tokens have the same gradient.

    TRL takes the mean over answers of a sum over tokens; with `count` the number of answers, so do we.
    """
    made = _rloo()
    scored = _scored(made)
    theirs = fused(SAMPLER, temperature=T)
    advantages = scored["advantages"].unsqueeze(1).expand(BATCH.mask.shape)
    answers = replace(_answers(SAMPLER, advantages), count=len(ROLLOUT))
    loss, _ = surrogate(clip=CLIP, dual_clip=None)(answers)
    agree(
        "RLOO gradient on fresh answers", gradient(loss, SAMPLER), gradient(made._compute_loss(theirs, scored), theirs)
    )


def test_their_rloo_clips_whole_answers():
    """After a step they part: TRL clips the ratio of a whole answer, the product of those of its tokens, ours those."""
    made = _rloo()
    scored = _scored(made)
    theirs = fused(POLICY, temperature=T)
    advantages = scored["advantages"].unsqueeze(1).expand(BATCH.mask.shape)
    answers = replace(_answers(POLICY, advantages), count=len(ROLLOUT))
    loss, _ = surrogate(clip=CLIP, dual_clip=None)(answers)
    their_loss = made._compute_loss(theirs, scored)
    assert made._metrics["train"]["clip_ratio/region_mean"][-1] > 0, "nothing is clipped"
    assert (gradient(loss, POLICY) - gradient(their_loss, theirs)).abs().max() > 1e-3
