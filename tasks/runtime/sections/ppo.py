"""Proximal policy optimisation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.runtime.sections.advantage import Advantage, MissingEOS, Penalty
from tasks.runtime.sections.section import Count, NotNegative, OpenFraction, Positive, Section
from tasks.runtime.sections.shared import Optimiser, Trainable


class FixedKL(Section):
    """The same penalty from first to last (Ouyang et al. 2022)."""

    kind: Literal["fixed"]
    coefficient: NotNegative
    """Weight of the KL penalty in the reward."""


class AdaptiveKL(Section):
    """Ziegler et al. 2019: the coefficient follows the measured KL (sum per answer)."""

    kind: Literal["adaptive"]
    coefficient: Positive
    """Initial value."""
    target: Positive
    """KL per answer, in nats."""
    horizon: Positive
    """Episodes."""


class PretrainingMix(Section):
    """Demonstrations learned beside the reward, so that the policy forgets less (Ouyang et al. 2022, ptx)."""

    coefficient: Positive
    """Weight of their loss, the mean over their answers' tokens."""
    batch: Count
    """Demonstrations per step of the policy, from the corpus."""


class PPO(Section):
    """Policy optimisation on the reward model: PPO, or REINFORCE, RLOO or GRPO by the kind of `advantage`."""

    updates: Count
    """Rollouts."""
    episodes: Count
    """Answers per rollout."""
    trainable: Trainable
    """Which weights learn."""
    optimiser: Optimiser
    """epochs are passes over one rollout, batch is the minibatch."""
    advantage: Advantage
    """gae (PPO, with a critic), or reinforce, rloo or grpo (without)."""
    clip: OpenFraction
    """Policy ratio stays in [1-clip, 1+clip]."""
    dual_clip: Positive | None
    """Bound on the ratio where the advantage is negative, above 1+clip (3 is usual); null: none."""
    entropy: NotNegative
    """Weight of the entropy bonus."""
    pretraining: PretrainingMix | None
    """Demonstrations mixed into the policy's loss; null: none."""
    kl: Annotated[FixedKL | AdaptiveKL, Field(discriminator="kind")]
    """The pull towards SFT: fixed or adaptive."""
    kl_penalty: Penalty
    """Where the KL is counted, and by which estimator."""
    kl_limit: Positive | None
    """A rollout whose mean KL to SFT per answer (nats) is above this ends the stage with an error; null: no limit."""
    update_kl_limit: Positive | None
    """Once a minibatch's approximate KL to the rollout's policy (nats per token) is above this, the policy leaves the
    rest of that rollout out, and the critic goes on; null: no limit."""
    score_clip: Positive
    """The normalised reward-model score is clipped to [-score_clip, score_clip]."""
    score_place: Literal["last", "spread"]
    """The score stands on the last token of the answer, or in equal parts on all of them."""
    missing_eos: MissingEOS
    """What an answer without an end-of-sequence token scores."""
    whiten_rewards: bool
    """Scale the rollout's token rewards to standard deviation 1; their mean stays."""

    @model_validator(mode="after")
    def _whole_minibatches(self) -> PPO:
        if self.episodes % self.optimiser.batch:
            raise ValueError(
                f"episodes ({self.episodes}) must be a multiple of optimiser.batch ({self.optimiser.batch})"
            )
        return self

    @model_validator(mode="after")
    def _whole_groups(self) -> PPO:
        if self.episodes % self.advantage.group:
            raise ValueError(
                f"episodes ({self.episodes}) must be a multiple of advantage.group ({self.advantage.group})"
            )
        return self

    @model_validator(mode="after")
    def _updates_of_the_policy(self) -> PPO:
        if self.advantage.kind == "gae" and self.advantage.critic.warmup >= self.updates:
            raise ValueError(
                f"advantage.critic.warmup ({self.advantage.critic.warmup}) leaves no update to the policy"
                f" (updates: {self.updates})"
            )
        return self

    @model_validator(mode="after")
    def _answers_to_compare(self) -> PPO:
        if self.advantage.kind == "reinforce" and self.advantage.baseline == "batch" and self.episodes < 2:
            raise ValueError("advantage.baseline batch compares answers of a rollout, and episodes is 1")
        return self

    @model_validator(mode="after")
    def _coefficient_stays_positive(self) -> PPO:
        if self.kl.kind == "adaptive" and self.episodes / self.kl.horizon >= 5:
            raise ValueError(
                f"episodes / kl.horizon is {self.episodes / self.kl.horizon:g}, expected below 5: the coefficient would"
                " turn negative"
            )
        return self

    @model_validator(mode="after")
    def _second_clip_above_the_first(self) -> PPO:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip:
            raise ValueError(f"dual_clip ({self.dual_clip:g}) must be above 1 + clip ({1 + self.clip:g})")
        return self

    # What rloo and grpo, which see only the sum of an answer's rewards, cannot honour.

    @model_validator(mode="after")
    def _place_of_the_score(self) -> PPO:
        kind = self.advantage.kind
        if kind in ("rloo", "grpo") and self.score_place == "spread":
            raise ValueError(
                f"score_place spread changes nothing with advantage {kind}, which sums an answer's rewards: use last"
            )
        return self

    @model_validator(mode="after")
    def _rewards_of_tokens(self) -> PPO:
        kind = self.advantage.kind
        if kind in ("rloo", "grpo") and self.whiten_rewards:
            raise ValueError(
                f"whiten_rewards with advantage {kind} would pay an answer for its length: its tokens keep their mean"
            )
        return self
