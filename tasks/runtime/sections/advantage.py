"""How PPO's stage tells good tokens from bad: with a critic, or by comparing answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tasks.runtime.sections.section import Count, Fraction, Positive, Section, Whole
from tasks.runtime.sections.shared import Trainable


class _Critic(Section):
    learning_rate: Positive
    """Peak learning rate."""
    warmup: Whole
    """Rollouts on which only the critic learns."""
    clip: Positive | None
    """A value stays within this distance of the rollout's, in units of the normalised score; null: no clip."""
    coefficient: Positive
    """Weight of the value loss."""


class RewardCritic(_Critic):
    """A value model of its own that starts as the reward model, its head at 0 (Ziegler et al. 2019)."""

    kind: Literal["reward"]
    trainable: Trainable
    """Which weights learn; the head always does."""


class SFTCritic(_Critic):
    """A value model of its own that starts as the SFT policy's trunk, its head at 0."""

    kind: Literal["sft"]
    trainable: Trainable
    """Which weights learn; the head always does."""


class HeadCritic(_Critic):
    """A linear value head on the policy's own trunk, from 0: no second model in memory."""

    kind: Literal["head"]
    trains_trunk: bool
    """true: the value loss also moves the trunk, in the policy's step and at its rate. false: the head alone learns."""


Critic = Annotated[RewardCritic | SFTCritic | HeadCritic, Field(discriminator="kind")]


class GAE(Section):
    """Generalised advantage estimation with a critic (Schulman et al. 2016): PPO proper."""

    kind: Literal["gae"]
    discount: Fraction
    """gamma."""
    trace: Fraction
    """lambda: 0 gives the TD error, 1 the Monte Carlo return minus the value."""
    whiten: bool
    """Scale the rollout's advantages to mean 0 and standard deviation 1."""
    critic: Critic
    """Where the values come from."""

    @property
    def group(self) -> int:
        """Answers per prompt."""
        return 1


class Reinforce(Section):
    """REINFORCE (Williams 1992): the return of each token less a baseline; no critic."""

    kind: Literal["reinforce"]
    discount: Fraction
    """gamma."""
    baseline: Literal["none", "batch"]
    """none: the bare return. batch: less the mean return of the rollout's other answers."""
    whiten: bool
    """Scale the rollout's advantages to mean 0 and standard deviation 1."""

    @property
    def group(self) -> int:
        """Answers per prompt."""
        return 1


class _Grouped(Section):
    group: Count
    """Answers per prompt, compared with each other: at least 2."""

    @field_validator("group")
    @classmethod
    def _several(cls, group: int) -> int:
        if group < 2:
            raise ValueError("a group of one has nothing to compare an answer with, expected at least 2")
        return group


class RLOO(_Grouped):
    """REINFORCE leave-one-out (Ahmadian et al. 2024): the answer's reward less the mean of its group's others."""

    kind: Literal["rloo"]


class GRPO(_Grouped):
    """Group-relative policy optimisation (Shao et al. 2024): the answer's reward, standardised in its group."""

    kind: Literal["grpo"]
    std: Literal["population", "sample", "none"]
    """Divides the centred rewards: the deviation over n, over n - 1, or nothing (Dr. GRPO, Liu et al. 2025)."""


Advantage = Annotated[GAE | Reinforce | RLOO | GRPO, Field(discriminator="kind")]


class Replace(Section):
    """An answer without an end-of-sequence token scores `value`, whatever the reward model says."""

    kind: Literal["replace"]
    value: Annotated[float, Field(allow_inf_nan=False)]
    """In units of the normalised score."""


class Subtract(Section):
    """An answer without an end-of-sequence token scores `value` less than the reward model says."""

    kind: Literal["subtract"]
    value: Positive
    """In units of the normalised score."""


class Accept(Section):
    """An answer without an end-of-sequence token keeps its score."""

    kind: Literal["none"]


MissingEOS = Annotated[Replace | Subtract | Accept, Field(discriminator="kind")]


class RewardPenalty(Section):
    """The KL is taken off the reward, token by token (Ziegler et al. 2019)."""

    kind: Literal["reward"]
    estimator: Literal["k1", "k2", "k3"]
    """k1: log p - log p_ref, unbiased. k2: half its square. k3: p_ref/p - 1 + k1, unbiased and never negative."""


class LossPenalty(Section):
    """The KL is a term of the policy's loss (Shao et al. 2024)."""

    kind: Literal["loss"]
    estimator: Literal["k2", "k3"]
    """k2 has the gradient of the KL on fresh samples; k3 has that of KL(p_ref || p), the other direction."""

    @field_validator("estimator", mode="before")
    @classmethod
    def _has_a_gradient(cls, estimator: Any) -> Any:
        if estimator == "k1":
            raise ValueError("the gradient of k1 as a loss is 0 in the mean, so it would hold nothing: use k2 or k3")
        return estimator


Penalty = Annotated[RewardPenalty | LossPenalty, Field(discriminator="kind")]
