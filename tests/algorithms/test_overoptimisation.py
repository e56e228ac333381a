import math

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from tasks.algorithms.overoptimisation import fit_best_of_n, fit_reinforcement

D = np.array([0.0, 0.4, 0.8, 1.2, 1.6, 2.2, 2.8, 3.5])


def test_planted_coefficients_come_back():
    found = fit_best_of_n(D, D * (1.0 - 0.2 * D))
    assert found == pytest.approx((1.0, 0.2, 1.0, 2.5))  # peak a / 2b
    log = np.log(np.where(D > 0, D, 1))
    found = fit_reinforcement(D, D * (1.0 - 0.5 * log))
    assert found == pytest.approx((1.0, 0.5, 1.0, math.e))  # peak exp(a/b - 1) = e


@pytest.mark.parametrize(("fit", "form"), [(fit_best_of_n, D), (fit_reinforcement, np.log(np.where(D > 0, D, 1)))])
def test_the_fit_and_its_r2_are_scikit_learns(fit, form):
    gold = 0.7 * D - 0.15 * D**2 + np.random.default_rng(0).normal(0, 0.05, size=len(D))
    features = np.stack([D, -D * form], axis=1)
    model = LinearRegression(fit_intercept=False).fit(features, gold)
    found = fit(D, gold)
    assert found[:2] == pytest.approx(model.coef_)
    assert found.r2 == pytest.approx(r2_score(gold, model.predict(features)))


def test_the_peak_is_where_the_fitted_curve_is_highest():
    d = np.linspace(0.01, 20, 200_000)
    found = fit_reinforcement(D, D * (0.9 - 0.4 * np.log(np.where(D > 0, D, 1))))
    assert d[np.argmax(d * (found.alpha - found.beta * np.log(d)))] == pytest.approx(found.peak, abs=1e-3)


def test_each_form_fits_its_own_data_better():
    parabola, logarithm = D * (1 - 0.25 * D), D * (1 - 0.6 * np.log(np.where(D > 0, D, 1)))
    assert fit_best_of_n(D, parabola).r2 > fit_reinforcement(D, parabola).r2
    assert fit_reinforcement(D, logarithm).r2 > fit_best_of_n(D, logarithm).r2


def test_gold_that_never_falls_has_no_peak():
    assert fit_best_of_n(D, D).peak == math.inf or fit_best_of_n(D, D).peak > 1e6
    assert fit_best_of_n(D, D * (1 + 0.1 * D)).peak == math.inf
    assert fit_reinforcement(D, D * (1 + 0.1 * np.log(np.where(D > 0, D, 1)))).peak == math.inf
    assert fit_best_of_n(D, -D * (1 + 0.1 * D)).peak == 0.0


def test_the_order_of_the_policies_decides_nothing():
    gold = D * (1 - 0.2 * D) + np.random.default_rng(1).normal(0, 0.1, size=len(D))
    assert fit_best_of_n(D[::-1], gold[::-1]) == pytest.approx(fit_best_of_n(D, gold))


@pytest.mark.parametrize("fit", [fit_best_of_n, fit_reinforcement])
@pytest.mark.parametrize(
    ("distance", "gold", "message"),
    [
        ([1, 2], [1, 2], "at least 3"),
        ([1, 2, 3], [1, 2], "one each"),
        ([-1, 2, 3], [1, 2, 3], "at least 0"),
        ([1, 2, 3], [1, math.nan, 3], "finite"),
        ([0, 2, 2], [1, 2, 3], "alpha from beta"),
        ([1, 2, 3], [1, 1, 1], "never changes"),
    ],
)
def test_errors(fit, distance, gold, message):
    with pytest.raises(ValueError, match=message):
        fit(distance, gold)
