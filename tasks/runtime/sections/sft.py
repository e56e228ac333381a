"""Supervised fine-tuning."""

from __future__ import annotations

from tasks.runtime.sections.section import Count, Section
from tasks.runtime.sections.shared import Optimiser, Trainable


class SFT(Section):
    """Supervised fine-tuning on the demonstrations' answers."""

    demonstrations: Count
    """At most this many demonstrations."""
    packing: bool
    """Put short demonstrations of a batch behind one another in one row: less padding, the same loss and gradient.
    Positions restart and attention does not cross; a model for which that cannot be done is refused."""
    trainable: Trainable
    """Which weights learn."""
    optimiser: Optimiser
    """AdamW and its schedule."""
