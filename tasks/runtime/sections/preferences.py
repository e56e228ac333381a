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
    batch: Count
    """Sequences generated together."""


class Preferences(Section):
    """Judged answers, paired best against worst; the off-policy pairs join them."""

    margin: NotNegative
    """Smallest difference of the judge's scores in a pair."""
    held_out: OpenFraction
    """Share of the prompts whose pairs are kept for measuring the reward model."""
