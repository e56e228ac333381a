"""TF-IDF and ridge regression on rated texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.language.dialogue import Prompt, spoken


class Fitted:
    """The score is the predicted rating of prompt and answer together."""

    name = "fitted"

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        from tasks.language.ratings import Regression

        self._model = Regression.load(folder, settings)

    def score(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[float]:
        """Predicted ratings, on the scale of the ratings it was fitted on."""
        return self._model.predict([spoken(p) + a for p, a in zip(prompts, answers, strict=True)]).tolist()
