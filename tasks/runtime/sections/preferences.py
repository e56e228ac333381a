"""From prompts to pairs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.runtime.sections.section import Count, NotNegative, OpenFraction, Section

Origin = Literal["sampled", "ratings", "file"]


class Samples(Section):
    """K answers per training prompt, from the SFT policy."""

    prompts: Count
    """At most this many training prompts."""
    answers: Annotated[int, Field(ge=2, le=16)]
    """K."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Answers are drawn from the likeliest tokens whose probabilities add up to this; 1 draws from all of them. Only
    here: no training reads the probability with which these answers were drawn."""
    batch: Count
    """Sequences generated together."""


class Preferences(Section):
    """Judged answers in pairs; the off-policy pairs join them."""

    pairs: Annotated[
        BestWorst | TopBottom | EveryPair | BestRandom | AdjacentRanks,
        Field(discriminator="kind"),
    ]
    """Which of a prompt's K answers meet."""
    per_prompt: Count | None
    """At most this many pairs of one prompt, drawn at random from those that pass; null keeps all."""
    margin: NotNegative
    """Smallest difference of the judge's scores in a pair of sampled answers."""
    near_duplicate: Annotated[float, Field(gt=0, le=1)]
    """A pair is dropped, whatever its origin, where its answers have this share of their word pairs in common (Jaccard
    index); 1 drops only answers of the same words. Documents count as near duplicates from a similarity of .8 on in Lee
    et al. 2022 (arXiv 2107.06499)."""
    annotators: Annotated[JudgeLabels | Panel, Field(discriminator="kind")]
    """Who labels the pairs of sampled answers. Off-policy pairs that bring votes are labelled by their majority."""
    least_agreement: Annotated[float, Field(ge=-1, le=1)]
    """Krippendorff's alpha of the votes below which the run warns. He asks for .8, and .667 for tentative conclusions;
    the 72.6 % on which InstructGPT's labellers agree (arXiv 2203.02155, section 3.4) are .45 on two answers."""
    held_out: OpenFraction
    """Share of the prompts whose pairs are kept for measuring the reward model."""


class BestWorst(Section):
    """The best answer against the worst: one pair a prompt, the easiest."""

    kind: Literal["best_worst"]


class TopBottom(Section):
    """Each of the k best answers against each of the k worst."""

    kind: Literal["top_bottom"]
    k: Count
    """At most half of samples.answers."""


class EveryPair(Section):
    """All K(K-1)/2 pairs; preferences.per_prompt caps them."""

    kind: Literal["all"]


class BestRandom(Section):
    """The best answer against one of the others, drawn at random for each prompt."""

    kind: Literal["best_random"]


class AdjacentRanks(Section):
    """Each answer against the next in rank: the hardest pairs."""

    kind: Literal["adjacent"]


class JudgeLabels(Section):
    """The judge alone."""

    kind: Literal["judge"]


class Panel(Section):
    """Simulated people who rate as the judge does on average, and differ from one another as the raters of the embedded
    snippets do; the majority labels a pair. Needs the embedded source and the judge fitted on its ratings."""

    kind: Literal["panel"]
    size: Annotated[int, Field(ge=2)]
    """People who compare the two answers of a pair."""
