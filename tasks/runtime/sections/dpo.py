"""Direct preference optimisation."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tasks.runtime.sections.preferences import Origin
from tasks.runtime.sections.section import Positive, Section
from tasks.runtime.sections.shared import Optimiser


class DPO(Section):
    """Direct preference optimisation against the SFT policy."""

    beta: Positive
    """Strength of the pull towards the reference policy."""
    origins: Annotated[list[Origin], Field(min_length=1)]
    """Which pairs it learns from."""
    optimiser: Optimiser
    """AdamW and its schedule."""
