"""The stages that measure."""

from __future__ import annotations

from tasks.runtime.sections.section import Count, OpenFraction, Section


class Evaluation(Section):
    """A policy against SFT on the held-out prompts."""

    prompts: Count
    """At most this many held-out prompts."""
    batch: Count
    """Sequences generated together."""
    confidence: OpenFraction
    """Of every interval, for example 0.95."""
    bootstrap: Count
    """Resamples of the paired bootstrap over prompts."""


class Comparison(Section):
    """All evaluated policies side by side, with the reward model's score."""

    examples: Count
    """Prompts shown with every policy's answer."""
