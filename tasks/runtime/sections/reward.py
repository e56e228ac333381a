"""The reward model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.runtime.sections.preferences import Origin
from tasks.runtime.sections.section import Count, Section
from tasks.runtime.sections.shared import Optimiser


class Reward(Section):
    """Bradley-Terry reward model on the SFT trunk."""

    origins: Annotated[list[Origin], Field(min_length=1)]
    """Which pairs it learns from."""
    trainable_layers: Count | None
    """Train the last N layers and the head; null trains everything."""
    optimiser: Optimiser
    """AdamW and its schedule."""
