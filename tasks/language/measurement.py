"""How well a reward model orders pairs that it did not learn from, and what its probabilities are worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.algorithms.calibration import cross_fitted_temperatures, expected_calibration_error, log_loss, temperature
from tasks.algorithms.intervals import pearson
from tasks.algorithms.ordering import ordered, ordered_by_gap
from tasks.language.groups import Group, table
from tasks.language.scoring import Scorer, all_raw_scores

BINS = 10
"""Of the reliability diagram and the calibration error: confidence from .5 to 1 in steps of .05."""
_FOLDS = 5
_GAPS = ("small", "middle", "large")


class Measured(NamedTuple):
    figures: dict[str, Any]
    margins: list[float]
    """Raw score of the chosen answer less that of the rejected one, pair after pair."""
    scaled: list[float]
    """The same, each divided by a temperature that was fitted on other prompts."""


def measured(score: Scorer, groups: Sequence[Group], *, size: int) -> Measured:
    """Figures of held-out pairs, all those of a prompt in one group; `size` sequences a forward pass.

    The temperature is cross-fitted: prompts are dealt to 5 folds, and each fold's pairs are divided by the temperature
    that fits the others. So `scaled` and its figures are as honest as the held-out pairs themselves: no pair helped to
    choose the number that it is measured with, and neither did another pair of its prompt. `temperature` itself, for
    use elsewhere, is fitted on all of them. `by_gap`: accuracy by thirds of the gap that the judge or the raters saw.
    `length_correlation`: Pearson r of score and answer length in tokens over the answers.
    """
    answers = [answer for group in groups for answer in group.answers]
    scores = all_raw_scores(score, answers, size=size)
    pairs = table(groups, scores)
    margins = (pairs.scores[:, 0] - pairs.scores[:, 1]).tolist()
    folds = [number % _FOLDS for number, group in enumerate(groups) for _ in group.rankings]
    scaled = [m / t for m, t in zip(margins, cross_fitted_temperatures(margins, folds), strict=True)]
    known = [(m, gap) for m, gap in zip(margins, pairs.gap.tolist(), strict=True) if math.isfinite(gap)]
    by_gap = ordered_by_gap([m for m, _ in known], [gap for _, gap in known], parts=len(_GAPS))
    figures = {
        **ordered(margins)._asdict(),
        "prompts": len(groups),
        "log_loss": log_loss(margins),
        "calibration_error": expected_calibration_error(margins, bins=BINS),
        "temperature": temperature(margins),
        "scaled": {
            "log_loss": log_loss(scaled),
            "calibration_error": expected_calibration_error(scaled, bins=BINS),
        },
        "by_gap": {_GAPS[part]: found._asdict() for part, found in by_gap.items()},
        "length_correlation": pearson(scores.tolist(), [len(answer.answer) for answer in answers]),
    }
    return Measured(figures, margins, scaled)
