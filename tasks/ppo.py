"""PPO, REINFORCE, RLOO or GRPO: the policy learns from the reward model, held near SFT by a KL penalty."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.algorithms.kl import KLCoefficient
from tasks.algorithms.rewards import Penalty
from tasks.errors import UserError
from tasks.language import adapters, demonstrations, models, objectives, policy, pretraining, text
from tasks.language.batches import epoch_order
from tasks.language.critic import Critic, NoCritic
from tasks.language.generation import Sampler
from tasks.language.master_weights import MasterWeights
from tasks.language.optimisation import Guard
from tasks.language.policy_optimisation import Figures, Objective, Trainer
from tasks.language.progress import read_state, write_state
from tasks.language.rollout import Actors, Rollout, collect
from tasks.language.trainable import TRAINABLE
from tasks.runtime import config, record, records, work

_KEPT = ("reward/score", "kl/sum", "kl/coefficient", "ppo/entropy", "ppo/length", "ppo/finished")


def run(shared: config.Shared, cfg: config.PPO, *, sft: Path, reward: Path, corpus: Path, out: Path) -> dict[str, Any]:
    """`cfg.updates` rollouts, each followed by a few epochs of minibatches; write the policy to `out`."""
    tokenizer = text.load_tokenizer(sft)
    prompts = _prompts(shared, cfg, tokenizer, corpus)
    generator = torch.Generator().manual_seed(shared.seed + 4)
    trainer, actors = _trainer(shared, cfg, tokenizer, generator, sft=sft, reward=reward, corpus=corpus)
    sampler = Sampler(
        shared.answer_tokens, shared.temperature, tokenizer.eos_token_id, tokenizer.pad_token_id, cfg.episodes
    )
    group = cfg.advantage.group
    checkpoints = work.checkpoints()
    order: list[list[int]] = []
    history: list[Figures] = []
    if saved := checkpoints.newest():
        state = read_state(saved)
        trainer.restore(saved, state["trainer"])
        order, history = state["order"], state["history"]
        for index, figures in enumerate(history):
            record.log(index + 1, cfg.updates, figures)
    for update in range(len(history), cfg.updates):
        order = order or epoch_order(len(prompts), cfg.episodes // group, generator)
        episodes = [prompts[i] for i in order.pop(0)]
        rollout = collect(actors, episodes, sampler, group=group, generator=generator, size=cfg.optimiser.micro_batch)
        _check(rollout, cfg, update, checkpoints.kept())
        history.append(trainer.update(update, rollout))
        record.log(update + 1, cfg.updates, history[-1])
        if update + 1 < cfg.updates and checkpoints.due(trainer.size):
            checkpoints.save(update + 1, partial(_save, trainer, {"order": order, "history": history}))
    models.save(actors.policy, tokenizer, out, trainer.policy.trained.weights(), merge=cfg.trainable.merge)
    _show(tokenizer, rollout)
    return {
        "updates": cfg.updates,
        "episodes": cfg.updates * cfg.episodes,
        "skipped": history[-1].get("ppo/skipped", 0.0) + history[-1].get("ppo/value_skipped", 0.0),
        "first": {name: history[0][name] for name in _KEPT},
        "last": {name: history[-1][name] for name in _KEPT},
    }


def _trainer(
    shared: config.Shared,
    cfg: config.PPO,
    tokenizer: Any,
    generator: torch.Generator,
    *,
    sft: Path,
    reward: Path,
    corpus: Path,
) -> tuple[Trainer, Actors]:
    """The models, and the functions that the kinds of `cfg` stand for. Policy and reference start as SFT."""
    model, judge = models.load_policy(sft), models.load_scalar_model(reward, shared.precision)
    TRAINABLE[cfg.trainable.kind](model, generator, **cfg.trainable.settings)
    # Without its adapters the policy is SFT.
    reference = model if adapters.settings_of(model) else models.load_policy(sft, shared.precision)
    precision = models.PRECISIONS[shared.precision]
    penalty, penalties = objectives.PENALTIES[cfg.kl_penalty.kind](cfg.kl_penalty.estimator)
    terms = [policy.surrogate(clip=cfg.clip, dual_clip=cfg.dual_clip), *penalties]
    if cfg.entropy > 0:
        terms.append(policy.entropy_bonus(coefficient=cfg.entropy))
    learner = policy.Policy(
        model,
        MasterWeights(model, cfg.optimiser, precision=precision),
        Guard(cfg.optimiser, work.checkpoints()),
        terms,
        mixed=_demonstrations(shared, cfg, tokenizer, model, corpus),
        learning_rate=cfg.optimiser.learning_rate,
        update_kl_limit=cfg.update_kl_limit or math.inf,
        temperature=shared.temperature,
        fill=tokenizer.pad_token_id,
    )
    critic = _critic(shared, cfg, learner, tokenizer.pad_token_id, generator, sft=sft, reward=reward)
    adaptive = cfg.kl.kind == "adaptive"
    coefficient = KLCoefficient(
        cfg.kl.coefficient, cfg.kl.target if adaptive else None, cfg.kl.horizon if adaptive else None
    )
    trainer = Trainer(
        learner,
        critic,
        _objective(cfg, penalty),
        coefficient,
        updates=cfg.updates,
        passes=cfg.optimiser,
        generator=generator,
    )
    return trainer, Actors(model, critic.values, reference, judge)


def _objective(cfg: config.PPO, penalty: Penalty) -> Objective:
    rule = partial(objectives.MISSING_EOS[cfg.missing_eos.kind], **_settings(cfg.missing_eos))

    def score(scores: Tensor, finished: Tensor) -> Tensor:
        return rule(scores.clamp(-cfg.score_clip, cfg.score_clip), finished)

    return Objective(
        score=score,
        place=objectives.PLACES[cfg.score_place],
        penalty=penalty,
        scale=objectives.REWARD_SCALES[cfg.whiten_rewards],
        advantages=objectives.ADVANTAGES[cfg.advantage.kind](**_settings(cfg.advantage)),
    )


def _critic(
    shared: config.Shared,
    cfg: config.PPO,
    learner: policy.Policy,
    fill: int,
    generator: torch.Generator,
    *,
    sft: Path,
    reward: Path,
) -> Critic | NoCritic:
    if cfg.advantage.kind != "gae":
        return NoCritic()
    row = cfg.advantage.critic
    model, trained = objectives.CRITICS[row.kind](learner.model, generator, sft=sft, reward=reward, **_settings(row))
    return Critic(
        model,
        MasterWeights(trained, cfg.optimiser, precision=models.PRECISIONS[shared.precision]),
        Guard(cfg.optimiser, work.checkpoints()),
        clip=row.clip or math.inf,
        coefficient=row.coefficient,
        learning_rate=row.learning_rate,
        warmup=row.warmup,
        fill=fill,
        size=cfg.optimiser.micro_batch,
    )


def _demonstrations(shared: config.Shared, cfg: config.PPO, tokenizer: Any, model: Any, corpus: Path) -> policy.Mixed:
    """The corpus's demonstrations where they are to be mixed in. Raises UserError for fewer than a batch."""
    if cfg.pretraining is None:
        return pretraining.no_demonstrations
    path = corpus / "demonstrations.jsonl"
    rows = records.read_jsonl(path, "prompt", "answer") if path.exists() else []
    completions, _ = demonstrations.completions(
        rows, tokenizer, shared.format, prompt_tokens=shared.prompt_tokens, answer_tokens=shared.answer_tokens
    )
    if len(completions) < cfg.pretraining.batch:
        raise UserError(
            f"{path} holds {len(completions)} demonstrations, expected at least ppo.pretraining.batch"
            f" ({cfg.pretraining.batch}): lower it, or set ppo.pretraining to null"
        )
    return pretraining.Demonstrations(
        model,
        completions,
        **cfg.pretraining.model_dump(),
        size=cfg.optimiser.micro_batch,
        fill=tokenizer.pad_token_id,
        seed=shared.seed + 5,
    ).losses


def _settings(row: config.Section) -> dict[str, Any]:
    """What a kind's function takes of its row: the rest is the trainer's."""
    own = {"kind", "critic", "learning_rate", "warmup", "clip", "coefficient"}
    return {name: value for name, value in row if name not in own}


def _save(trainer: Trainer, state: dict[str, Any], folder: Path) -> None:
    write_state({**state, "trainer": trainer.save(folder)}, folder)


def _prompts(shared: config.Shared, cfg: config.PPO, tokenizer: Any, corpus: Path) -> list[list[int]]:
    rows = records.read_jsonl(corpus / "prompts.jsonl", "prompt")
    wanted = cfg.episodes // cfg.advantage.group
    if len(rows) < wanted:
        per_prompt = f" / ppo.advantage.group ({cfg.advantage.group})" if cfg.advantage.group > 1 else ""
        raise UserError(f"{len(rows)} training prompts, expected at least ppo.episodes ({cfg.episodes}){per_prompt}")
    return [text.prompt_tokens(tokenizer, row["prompt"], shared.format) for row in rows]


def _check(rollout: Rollout, cfg: config.PPO, update: int, kept: Path | None) -> None:
    """Raise UserError where the policy is further from SFT than it may be; say where no answer ends."""
    if not rollout.kl <= (cfg.kl_limit or math.inf):
        raise UserError(
            f"update {update + 1}: the KL to SFT is {rollout.kl:.2f} nats per answer, expected at most ppo.kl_limit"
            f" ({cfg.kl_limit}). The last good checkpoint is {kept or 'not written yet'}. The same params would end"
            " here again: try a larger ppo.kl.coefficient, a lower ppo.optimiser.learning_rate or a"
            " ppo.update_kl_limit"
        )
    if not rollout.finished.any():
        record.note(
            f"update {update + 1}: none of {len(rollout.completions)} answers ends with an end-of-sequence token: the"
            " policy does not know how to end, or shared.answer_tokens is too small"
        )


def _show(tokenizer: Any, rollout: Rollout) -> None:
    """The last rollout as a table."""
    shown = [text.text_of(tokenizer, c.answer) for c in rollout.completions]
    texts = [text.text_of(tokenizer, c.prompt) for c in rollout.completions]
    record.table(
        "last_rollout",
        [{"prompt": p, "answer": a, "score": float(s)} for p, a, s in zip(texts, shown, rollout.scores, strict=True)],
    )
