import math

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import LogisticRegression

from tasks.algorithms.length_control import length_controlled_win_rate


def planted(n=4000, *, quality=0.0, bias=2.0, longer=6.0, seed=0):
    """Outcomes of a judge that likes length: log-odds quality + bias tanh(d / std d), policy `longer` on average."""
    rng = np.random.default_rng(seed)
    d = rng.normal(longer, 8, size=n).round()
    p = 1 / (1 + np.exp(-(quality + bias * np.tanh(d / d.std()))))
    return (rng.random(n) < p).astype(float), d


@pytest.mark.parametrize("penalty", [0.1, 1.0, 20.0])
def test_the_fit_is_scikit_learns(penalty):
    y, d = planted(300, quality=0.4)
    model = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000)
    model.fit(np.tanh(d / d.std())[:, None], y)
    found = length_controlled_win_rate(y, d, penalty=penalty)
    assert found.slope == pytest.approx(model.coef_[0, 0], abs=1e-5)
    assert found.rate == pytest.approx(model.predict_proba([[0.0]])[0, 1], abs=1e-6)


def test_fractional_outcomes_weigh_by_their_parts():
    """A tie is half a win and half a loss: the same as two rows of weight one half, in scikit-learn."""
    rng = np.random.default_rng(1)
    y, d = rng.choice([0, 0.25, 0.5, 1.0], size=200), rng.normal(3, 5, size=200)
    x = np.tanh(d / d.std())[:, None]
    model = LogisticRegression(C=10.0, tol=1e-10, max_iter=10_000)
    model.fit(np.vstack([x, x]), np.repeat([1, 0], 200), sample_weight=np.concatenate([y, 1 - y]))
    found = length_controlled_win_rate(y, d, penalty=0.1)
    assert (found.rate, found.slope) == pytest.approx((model.predict_proba([[0.0]])[0, 1], model.coef_[0, 0]), abs=1e-5)


def test_the_fit_is_the_minimum_by_scipy():
    y, d = planted(100, quality=-1.0, seed=2)
    x = np.tanh(d / d.std())
    best = optimize.minimize(
        lambda w: np.logaddexp(0, w[0] + w[1] * x).sum() - (y * (w[0] + w[1] * x)).sum() + 0.05 * w[1] ** 2,
        [0.0, 0.0],
        tol=1e-12,
    )
    found = length_controlled_win_rate(y, d, penalty=0.1)
    assert found.rate == pytest.approx(1 / (1 + math.exp(-best.x[0])), abs=1e-5)


def test_a_planted_length_bias_is_taken_out():
    y, d = planted()
    found = length_controlled_win_rate(y, d, penalty=0.1)
    assert y.mean() > 0.65
    assert found.rate == pytest.approx(0.5, abs=0.03)
    assert found.slope == pytest.approx(2.0, abs=0.2)


def test_real_quality_stays():
    y, d = planted(quality=math.log(0.7 / 0.3), bias=0.0)
    assert length_controlled_win_rate(y, d, penalty=0.1).rate == pytest.approx(0.7, abs=0.03)


def test_the_other_side_has_the_rest():
    y, d = planted(500, quality=0.3)
    here, there = (length_controlled_win_rate(*sides, penalty=0.1) for sides in ((y, d), (1 - y, -d)))
    assert here.rate + there.rate == pytest.approx(1)
    assert here.slope == pytest.approx(there.slope)


def test_the_unit_of_length_and_the_order_decide_nothing():
    y, d = planted(400, quality=0.2)
    order = np.random.default_rng(3).permutation(400)
    found = length_controlled_win_rate(y, d, penalty=0.1)
    assert length_controlled_win_rate(y[order], 4.7 * d[order], penalty=0.1) == pytest.approx(found)


@pytest.mark.parametrize("difference", [0.0, 3.0])
def test_equal_differences_leave_the_plain_rate(difference):
    assert length_controlled_win_rate([1, 0, 1, 0.5], [difference] * 4, penalty=0.1) == (0.625, 0.0)


def test_a_policy_that_always_wins_keeps_its_rate():
    assert length_controlled_win_rate([1, 1, 1], [4, 5, 9], penalty=0.1) == (1.0, 0.0)
    assert length_controlled_win_rate([0, 0, 0], [4, 5, 9], penalty=0.1) == (0.0, 0.0)


def test_length_that_separates_wins_from_losses_gives_a_finite_slope():
    found = length_controlled_win_rate([1] * 50 + [0] * 50, [5] * 50 + [-5] * 50, penalty=0.1)
    assert found.rate == pytest.approx(0.5, abs=1e-6)
    assert 2 < found.slope < 20


@pytest.mark.parametrize(
    ("arguments", "penalty", "message"),
    [
        (([], []), 0.1, "at least one"),
        (([1.0], [1.0, 2.0]), 0.1, "one each"),
        (([2.0], [1.0]), 0.1, "between 0 and 1"),
        (([math.nan], [1.0]), 0.1, "between 0 and 1"),
        (([1.0], [math.inf]), 0.1, "finite"),
        (([1.0], [1.0]), 0.0, "penalty is 0"),
    ],
)
def test_errors(arguments, penalty, message):
    with pytest.raises(ValueError, match=message):
        length_controlled_win_rate(*arguments, penalty=penalty)
