"""What the sections of params.yaml are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from unicodedata import category

from pydantic import BaseModel, ConfigDict, Field, field_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Path, Field(strict=False)]
"""A path; YAML knows texts only."""
_INT64 = 2**63


class Section(BaseModel):
    """A part of params.yaml: closed, frozen, strict about types.

    A rule between two values is a `@model_validator(mode="after")` of its own that raises ValueError, so that every
    broken one is told (`tasks.runtime.faults`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        """Tensors, seeds and the tracking store take integers of 64 bits."""
        if isinstance(value, int) and abs(value) >= _INT64:
            raise ValueError("expected a whole number below 2**63")
        return value

    @field_validator("*")
    @classmethod
    def _sayable(cls, value: Any) -> Any:
        """Texts become paths, names and lines of UTF-8 files."""
        if isinstance(value, str | Path) and any(category(c) in ("Cc", "Cs") and c not in "\n\t" for c in str(value)):
            raise ValueError("expected text without control characters")
        return value
