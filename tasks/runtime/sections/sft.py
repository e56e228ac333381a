"""Supervised fine-tuning."""

from __future__ import annotations

from tasks.runtime.sections.section import Count, Section
from tasks.runtime.sections.shared import Optimiser


class SFT(Section):
    """Supervised fine-tuning on the demonstrations' answers."""

    demonstrations: Count
    """At most this many demonstrations."""
    optimiser: Optimiser
    """AdamW and its schedule."""
