"""Figures of held-out pairs from a scorer that is given: no model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_expit

from tasks.algorithms.calibration import temperature
from tasks.language.groups import grouped, pair_rankings
from tasks.language.measurement import measured

SCORES = np.random.default_rng(4).normal(0, 3, (12, 3))


def rows():
    """12 prompts; the first answer beats the second and the third, of 1, 2 and 4 tokens; the second pair has no gap."""
    for n in range(12):
        for other, gap in ((1, 0.1 * n), (2, None)):
            yield {
                "prompt_tokens": [50 + n],
                "chosen_tokens": [0],
                "rejected_tokens": [other] * 2**other,
                "margin": gap,
                "origin": "sampled",
            }


def score(completions):
    return torch.tensor([float(SCORES[c.prompt[0] - 50, c.answer[0]]) for c in completions])


@pytest.fixture
def found():
    return measured(score, grouped(pair_rankings(rows())), size=5)


MARGINS = (SCORES[:, :1] - SCORES[:, 1:]).astype(np.float32).flatten()


def test_margins_are_chosen_less_rejected(found):
    np.testing.assert_allclose(found.margins, MARGINS, rtol=1e-5)
    assert found.figures["accuracy"] == (MARGINS > 0).mean()
    assert found.figures["log_loss"] == pytest.approx(-log_expit(MARGINS).mean(), rel=1e-5)
    assert (found.figures["pairs"], found.figures["prompts"]) == (24, 12)


def test_each_prompt_is_divided_by_the_temperature_of_the_others(found):
    """Prompt n is in fold n mod 5, with both its pairs."""
    folds = np.repeat(np.arange(12) % 5, 2)
    expected = [m / temperature(MARGINS[folds != f].tolist()) for m, f in zip(MARGINS, folds, strict=True)]
    np.testing.assert_allclose(found.scaled, expected, rtol=1e-4)
    assert found.figures["temperature"] == pytest.approx(temperature(MARGINS.tolist()), rel=1e-4)
    assert found.figures["scaled"]["log_loss"] == pytest.approx(-log_expit(expected).mean(), rel=1e-4)


def test_gaps_that_are_known_are_told_apart(found):
    by_gap = found.figures["by_gap"]
    assert {name: part["pairs"] for name, part in by_gap.items()} == {"small": 4, "middle": 4, "large": 4}
    assert by_gap["small"]["accuracy"] == (MARGINS[0:8:2] > 0).mean()
    assert by_gap["large"]["accuracy"] == (MARGINS[16::2] > 0).mean()


def test_length_correlation_against_numpy(found):
    """Over the 36 answers, each once though the chosen ones are in two pairs."""
    lengths = np.tile([1, 2, 4], 12)
    expected = np.corrcoef(SCORES.flatten(), lengths)[0, 1]
    assert found.figures["length_correlation"] == pytest.approx(expected, rel=1e-4)
