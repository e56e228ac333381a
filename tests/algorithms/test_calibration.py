import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, logit

from tasks.algorithms.calibration import (
    COLDEST,
    HOTTEST,
    Bin,
    cross_fitted_temperatures,
    expected_calibration_error,
    log_loss,
    reliability,
    temperature,
)


def margins(count, seed, *, overconfidence=1.0):
    """Margins of a model that is right as often as sigmoid(|margin| / overconfidence) says."""
    rng = np.random.default_rng(seed)
    size = np.abs(rng.normal(0, 2, count))
    right = rng.random(count) < expit(size)
    return (np.where(right, size, -size) * overconfidence).tolist()


def test_calibration_error_by_hand():
    """Confidence .93 twice, right once: off by .43. Confidence .62 once, right: off by .38. (2 x .43 + .38) / 3."""
    found = [logit(0.93), -logit(0.93), logit(0.62)]
    assert expected_calibration_error(found, bins=10) == pytest.approx((2 * 0.43 + 0.38) / 3)
    first, second = reliability(found, bins=10)
    assert first == pytest.approx(Bin(0.62, 1.0, 1))
    assert second == pytest.approx(Bin(0.93, 0.5, 2))


def test_calibration_error_against_numpy():
    """Guo et al., equation 3, with numpy's own binning."""
    found = np.asarray(margins(500, 1, overconfidence=2.0))
    confidence, right = expit(np.abs(found)), found > 0
    place = np.digitize(confidence, np.linspace(0.5, 1, 11)[1:-1], right=True)
    bins = [place == n for n in range(10)]
    expected = sum(b.sum() / 500 * abs(right[b].mean() - confidence[b].mean()) for b in bins if b.any())
    assert expected_calibration_error(found.tolist(), bins=10) == pytest.approx(expected)


def test_probabilities_that_come_true_have_no_calibration_error():
    # 200,000 draws: the deviation of a bin's share is below .004, its expected size .001.
    assert expected_calibration_error(margins(200_000, 2), bins=10) < 0.004
    assert expected_calibration_error(margins(200_000, 2, overconfidence=3.0), bins=10) > 0.05


def test_a_margin_of_zero_says_one_half_and_gets_it():
    assert reliability([0.0, 0.0, 0.0], bins=10) == [Bin(0.5, 0.5, 3)]
    assert expected_calibration_error([0.0, 0.0, 0.0], bins=10) == 0


def test_the_bins_hold_every_pair():
    found = [*margins(300, 3), 0.0, 800.0, -800.0]
    assert sum(b.pairs for b in reliability(found, bins=7)) == 303
    np.testing.assert_allclose(reliability(found[::-1], bins=7), reliability(found, bins=7))
    assert reliability([800.0], bins=7) == [Bin(1.0, 1.0, 1)]


def test_log_loss_is_bradley_terry_s():
    """Rewards 3.2 and 1.5: .1678; against scipy on the rest."""
    assert log_loss([1.7]) == pytest.approx(0.1678, abs=5e-5)
    found = margins(50, 4)
    assert log_loss(found) == pytest.approx(-log_expit(found).mean())
    assert log_loss([-1e4]) == pytest.approx(1e4)


def test_temperature_by_hand():
    """Margins of +-2, three of four right. With t = 5/6, three quarters of 5/6 and one quarter of 1/6 are 2/3.

    sigmoid(2 / T) = 2/3, so T = 2 / ln 2 = 2.8854. A thousand times as many pairs come to 3/4 and T = 2 / ln 3.
    """
    assert temperature([2.0, 2.0, 2.0, -2.0]) == pytest.approx(2.8854, abs=5e-5)
    assert temperature([2.0, 2.0, 2.0, -2.0] * 1000) == pytest.approx(2 / math.log(3), rel=1e-3)


def test_temperature_against_scipy():
    found = np.asarray(margins(400, 5, overconfidence=2.0))
    t = 401 / 402

    def loss(a):
        return -(t * log_expit(a * found) + (1 - t) * log_expit(-a * found)).mean()

    best = minimize_scalar(loss, bounds=(0.01, 10), method="bounded", options={"xatol": 1e-8}).x
    assert temperature(found.tolist()) == pytest.approx(1 / best, rel=1e-5)


def test_pairs_that_are_all_right_have_a_temperature():
    """Two margins of 3: sigmoid(3 / T) = t = 3/4, so T = 3 / ln 3."""
    assert temperature([3.0, 3.0]) == pytest.approx(3 / math.log(3))


def test_temperature_undoes_overconfidence():
    found = margins(40_000, 6, overconfidence=3.0)
    assert temperature(found) == pytest.approx(3.0, rel=0.04)
    assert temperature([m / 3 for m in found]) == pytest.approx(temperature(found) / 3)


def test_temperature_ends_at_its_bounds():
    assert temperature([1e-9, 2e-9]) == pytest.approx(COLDEST)
    assert temperature([-1.0, -2.0]) == pytest.approx(HOTTEST)


def test_no_pair_is_measured_with_a_temperature_that_saw_it():
    found, folds = margins(30, 7, overconfidence=2.0), [n % 3 for n in range(30)]
    fitted = cross_fitted_temperatures(found, folds)
    for fold in range(3):
        rest = [m for m, f in zip(found, folds, strict=True) if f != fold]
        assert fitted[fold] == temperature(rest)
    # Fold 1 turned into nonsense changes every temperature but its own.
    spoiled = cross_fitted_temperatures([-50.0 if f == 1 else m for m, f in zip(found, folds, strict=True)], folds)
    assert [a == b for a, b in zip(fitted[:3], spoiled[:3], strict=True)] == [False, True, False]


def test_one_fold_has_nothing_to_be_fitted_on():
    assert cross_fitted_temperatures([3.0, -1.0], [4, 4]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("function", [log_loss, temperature, lambda m: reliability(m, bins=10)])
@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
def test_margins_must_be_finite_and_some(function, bad):
    with pytest.raises(ValueError, match="expected at least one and finite"):
        function(bad)


def test_other_errors():
    with pytest.raises(ValueError, match="bins is 0"):
        reliability([1.0], bins=0)
    with pytest.raises(ValueError, match="1 folds for 2 margins"):
        cross_fitted_temperatures([1.0, 2.0], [0])
