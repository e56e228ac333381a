"""The reward model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tasks.runtime.sections.preferences import Origin
from tasks.runtime.sections.section import NotNegative, Positive, Section
from tasks.runtime.sections.shared import Optimiser, Trainable


class NoMargin(Section):
    """The preferred answer has to score higher, by however little (Bradley-Terry as it is)."""

    kind: Literal["none"]


class GradedMargin(Section):
    """Llama 2: clearer preferences have to be further apart, by the grade of the pair's gap."""

    kind: Literal["graded"]
    thresholds: Annotated[list[Positive], Field(min_length=1)]
    """Rising gaps of the judge's (or the raters') scores at which the next grade begins."""
    margins: Annotated[list[NotNegative], Field(min_length=2)]
    """One for each grade, in raw reward; Llama 2 has 0, 1/3, 2/3, 1."""

    @model_validator(mode="after")
    def _thresholds_rise(self) -> GradedMargin:
        if sorted(set(self.thresholds)) != self.thresholds:
            raise ValueError(f"thresholds are {self.thresholds}, expected rising numbers")
        return self

    @model_validator(mode="after")
    def _a_margin_for_each_grade(self) -> GradedMargin:
        if len(self.margins) != len(self.thresholds) + 1 or sorted(self.margins) != self.margins:
            raise ValueError(
                f"margins are {self.margins}, expected {len(self.thresholds) + 1} numbers that do not fall: one below"
                " the first threshold and one from each threshold on"
            )
        return self


class ScaledMargin(Section):
    """A margin in proportion to the pair's own gap."""

    kind: Literal["scaled"]
    scale: Positive
    """Raw reward for one unit of the judge's (or the raters') scores."""


class PairwiseLoss(Section):
    """Bradley-Terry on pairs."""

    kind: Literal["pairwise"]
    margin: Annotated[NoMargin | GradedMargin | ScaledMargin, Field(discriminator="kind")]
    """How much higher the preferred answer has to score."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)]
    """Chance that a label is wrong; 0 trusts every label."""

    @model_validator(mode="after")
    def _consistent(self) -> PairwiseLoss:
        if self.label_smoothing and self.margin.kind != "none":
            raise ValueError(
                f"label_smoothing ({self.label_smoothing}) wants smaller differences and margin ({self.margin.kind})"
                " larger ones: expected only one of them"
            )
        return self


class ListwiseLoss(Section):
    """Plackett-Luce on each prompt's answers as the judge ranks them; pairs of other origins are rankings of two."""

    kind: Literal["listwise"]


class Reward(Section):
    """Reward model on the SFT trunk."""

    origins: Annotated[list[Origin], Field(min_length=1)]
    """Which pairs it learns from."""
    loss: Annotated[PairwiseLoss | ListwiseLoss, Field(discriminator="kind")]
    """From pairs, or from whole rankings."""
    centre: NotNegative
    """Weight of the penalty on the squared mean score of a pair (a ranking), which keeps raw scores near 0; 0: none."""
    trainable: Trainable
    """Which weights learn; the head always does."""
    reuse_activations: bool
    """Keep what the frozen layers give for each answer (answer tokens x hidden size numbers, in memory) over all epochs
    and for the measurements; saves time from the second epoch on."""
    optimiser: Optimiser
    """AdamW and its schedule; batch counts prompts, each with all its pairs, and micro_batch answers."""

    @model_validator(mode="after")
    def _frozen_layers_to_reuse(self) -> Reward:
        if self.reuse_activations and self.trainable.kind != "layers":
            raise ValueError(f"reuse_activations is true, but trainable is {self.trainable.kind}: no layer is frozen")
        return self

    @model_validator(mode="after")
    def _rankings_to_learn(self) -> Reward:
        if self.loss.kind == "listwise" and "sampled" not in self.origins:
            raise ValueError(
                f"loss is listwise, but origins are {', '.join(self.origins)}: only sampled answers are ranked, the"
                " others come in pairs; expected pairwise"
            )
        return self
