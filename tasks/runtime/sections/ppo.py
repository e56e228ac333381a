"""Proximal policy optimisation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.runtime.sections.section import Count, Fraction, NotNegative, OpenFraction, Positive, Section, Whole
from tasks.runtime.sections.shared import Optimiser


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


class PPO(Section):
    """Proximal policy optimisation on the reward model, critic from the reward model."""

    updates: Count
    """Rollouts."""
    episodes: Count
    """Answers per rollout."""
    optimiser: Optimiser
    """epochs are passes over one rollout, batch is the minibatch."""
    critic_learning_rate: Positive
    """Peak learning rate of the critic."""
    critic_layers: Count | None
    """Train the critic's last N layers and head; null trains everything."""
    critic_warmup: Whole
    """Rollouts on which only the critic learns."""
    discount: Fraction
    """gamma."""
    trace: Fraction
    """lambda of GAE."""
    clip: OpenFraction
    """Policy ratio stays in [1-clip, 1+clip]."""
    value_clip: Positive
    """A value stays within this distance of the rollout's, in units of the normalised score."""
    value_coefficient: Positive
    """Weight of the value loss."""
    kl: Annotated[FixedKL | AdaptiveKL, Field(discriminator="kind")]
    """The pull towards SFT: fixed or adaptive."""
    score_clip: Positive
    """The normalised reward-model score is clipped to [-score_clip, score_clip]."""
    missing_eos: float
    """Score of an answer that has no end-of-sequence token, in place of the reward model's."""

    @model_validator(mode="after")
    def _consistent(self) -> PPO:
        if self.episodes % self.optimiser.batch:
            raise ValueError(
                f"episodes ({self.episodes}) must be a multiple of optimiser.batch ({self.optimiser.batch})"
            )
        if self.critic_warmup >= self.updates:
            raise ValueError(
                f"critic_warmup ({self.critic_warmup}) leaves no update to the policy (updates: {self.updates})"
            )
        if self.kl.kind == "adaptive" and self.episodes / self.kl.horizon >= 5:
            raise ValueError(
                f"episodes / kl.horizon is {self.episodes / self.kl.horizon:g}, expected below 5: the coefficient would"
                " turn negative"
            )
        return self
