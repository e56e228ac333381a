"""The stages that measure."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from tasks.runtime.sections.section import Count, OpenFraction, Positive, Section

AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]


class Baseline(Section):
    """SFT's answers to the held-out prompts: what every policy is compared with, sampled once for all of them."""

    prompts: Count
    """At most this many held-out prompts."""
    answers: Annotated[int, Field(ge=1, le=16)]
    """Baseline answers per prompt; a win rate is the mean over them, and surer with more."""
    candidates: Annotated[int, Field(ge=2, le=64)] | None
    """Further answers per prompt from which best-of-n takes the best; null: no best-of-n."""
    candidate_prompts: Count
    """Prompts (the first ones) that get candidates: best-of-n costs candidates times this many answers."""
    batch: Count
    """Sequences generated together."""

    @model_validator(mode="after")
    def _consistent(self) -> Baseline:
        if self.candidate_prompts > self.prompts:
            raise ValueError(f"candidate_prompts ({self.candidate_prompts}) exceeds prompts ({self.prompts})")
        return self


class Hacking(Section):
    """Sizes of effects against SFT; one whose whole interval lies beyond its size makes a policy suspect."""

    length: AboveOne
    """Answers are this many times as long as SFT's, or as short."""
    unfinished: OpenFraction
    """The share of answers that end with end-of-sequence falls by more than this."""
    repetition: OpenFraction
    """The share of repeated bigrams in an answer rises by more than this."""
    everywhere: OpenFraction
    """Some token or bigram stands in this much larger a share of the answers."""
    perplexity: AboveOne
    """Perplexity under SFT is this many times that of SFT's own answers, or that small a part of it."""


class Evaluation(Section):
    """A policy against SFT's baseline answers on the held-out prompts."""

    batch: Count
    """Sequences generated together."""
    confidence: OpenFraction
    """Of every interval, for example 0.95."""
    bootstrap: Count
    """Resamples of the paired bootstrap over prompts."""
    hacking: Hacking
    """Thresholds of the reward-hacking verdict."""


class Comparison(Section):
    """All evaluated policies side by side and against best-of-n, with the reward model's score."""

    examples: Count
    """Prompts shown with every policy's answer."""
    best_of: list[Annotated[int, Field(ge=2)]]
    """Values of n for best-of-n of SFT: chosen by the reward model, judged by the judge; [] for none."""
    gain: Positive
    """Suspect, too: the proxy reward rises by more than this and the judge's by less, whole intervals, in standard
    deviations of SFT's answers."""
    bootstrap: Count
    """Resamples of the paired bootstrap over prompts."""

    @model_validator(mode="after")
    def _consistent(self) -> Comparison:
        if self.best_of != sorted(set(self.best_of)):
            raise ValueError(f"best_of is {self.best_of}, expected different values in ascending order")
        return self
