"""The pure parts of `make results`: areas, peaks, cells, the gold reward; and one cell of each light study."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.studies import __main__ as program
from benchmarks.studies import cells, curves, gold, world
from benchmarks.studies.studies import STUDIES
from tasks.errors import UserError
from tasks.language import judge


def test_the_mean_gain_is_the_area_by_hand():
    # Triangle from (0, 0) to (1, 2), then the rectangle to 2: (1 + 2) / 2.
    assert curves.mean_gain([(2.0, 2.0), (1.0, 2.0)], limit=2.0) == pytest.approx(1.5)
    # Up to 1.5: (1 + 1) / 1.5
    assert curves.mean_gain([(1.0, 2.0), (2.0, 2.0)], limit=1.5) == pytest.approx(4 / 3)


def test_a_straight_line_gains_half_of_what_it_reaches():
    line = [(d, 3 * d) for d in (0.3, 0.7, 2.0)]
    for limit in (0.1, 0.7, 1.9):
        assert curves.mean_gain(line, limit=limit) == pytest.approx(1.5 * limit)


def test_points_beyond_the_common_range_change_nothing():
    near = [(0.5, 1.0), (1.0, 1.5)]
    assert curves.mean_gain([*near, (4.0, 1e9)], limit=1.0) == pytest.approx(curves.mean_gain(near, limit=1.0))
    assert curves.common_range([near, [(4.0, 1.0)], [(0.1, 0.0), (0.8, 2.0)]]) == 0.8


@pytest.mark.parametrize(("points", "limit"), [([(1.0, 1.0)], 1.1), ([(1.0, 1.0)], 0.0), ([(-0.1, 1.0)], 0.5)])
def test_a_range_that_the_curve_does_not_cover_is_refused(points, limit):
    with pytest.raises(ValueError, match="distances from"):
        curves.mean_gain(points, limit=limit)


def test_a_peak_is_found_in_the_smoothed_series():
    # Means of three: gold 1, 2, 3, 2, 1 (peak at 2); proxy 1, 2, 3, 4, 5.
    rising = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    found = curves.falls_while_rising([0.0, 1.0, 2.0, 3.0, 4.0, -1.0, 0.0], rising, window=3)
    assert found == pytest.approx((2, 2.0, 2.0))
    with pytest.raises(ValueError, match="at least 3"):
        curves.falls_while_rising([1.0, 2.0], [1.0, 2.0], window=3)


def test_order_is_strict():
    assert curves.in_order([1.0, 2.0, 3.0])
    assert not curves.in_order([1.0, 1.0, 2.0])
    assert not curves.in_order([1.0, 3.0, 2.0])


def test_figures_over_seeds_are_shown_with_student_s_interval():
    # Mean 2, s 1, t(2) = 4.3027: 2 -+ 4.3027 / sqrt(3)
    assert curves.shown([1.0, 2.0, 3.0]) == "2.00 [-0.48, 4.48]"
    assert curves.shown([0.5], sign=True, digits=1) == "+0.5"


def test_the_gold_reward_by_hand():
    # Share .5, 8 letters: 1 - (.15 / .15)^2 + 1.5 (1 - 1/e)
    assert gold.reward("alalalal") == pytest.approx(1.5 * (1 - math.exp(-1)))
    assert gold.reward("") == pytest.approx(1 - (7 / 3) ** 2)
    assert gold.score(["x:", "y:"], ["aa", "ll"]) == [gold.reward("aa"), gold.reward("ll")]


def test_a_cell_is_computed_once_for_the_same_key(tmp_path):
    computed: list[int] = []

    def compute():
        computed.append(1)
        return {"gold": 0.1 + 0.2}

    cell = cells.Cell("dpo", "0.1", 3)
    assert [cells.fill(cell, tmp_path, key, compute) for key in ("a", "a", "b", "b")] == [True, False, True, False]
    assert len(computed) == 2
    assert cells.figures(tmp_path, "dpo", "0.1", [3]) == [{"gold": 0.1 + 0.2}]
    with pytest.raises(UserError, match=r"dpo/0\.1-4\.json not found"):
        cells.figures(tmp_path, "dpo", "0.1", [3, 4])


def test_a_cell_that_was_interrupted_is_not_there(tmp_path):
    def killed():
        raise KeyboardInterrupt

    cell = cells.Cell("ppo", "1", 1)
    with pytest.raises(KeyboardInterrupt):
        cells.fill(cell, tmp_path, "a", killed)
    assert cells.fill(cell, tmp_path, "a", lambda: {"kl": 1.0})


def test_the_key_changes_with_params_code_and_its_place(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("x = 1\n")
    other.write_text("y = 2\n")
    keys = {cells.digest({"beta": 0.1}, [one, other])}
    assert cells.digest({"beta": 0.1}, [other, one]) in keys
    keys.add(cells.digest({"beta": 0.2}, [one, other]))
    keys.add(cells.digest({"beta": 0.1}, [one]))
    other.write_text("y = 3\n")
    keys.add(cells.digest({"beta": 0.1}, [one, other]))
    assert len(keys) == 4


def test_quick_settings_are_settings():
    for study in STUDIES.values():
        assert study.quick
        assert set(study.quick) <= set(study.settings)
    assert len(program.chosen(quick=True)) < len(program.chosen(quick=False))


@pytest.mark.parametrize("quick", [False, True])
def test_the_studies_params_are_those_that_the_stages_accept(quick):
    found = world.params(7, quick=quick)
    assert found.shared.seed == 7
    assert found.reward.origins == ["sampled"]


def test_a_corpus_is_that_of_its_seed_and_knows_its_judge(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        world.write_corpus(tmp_path / name, seed, 16)
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert Path("judge/gold.py") in files
    contents = {name: [(tmp_path / name / file).read_bytes() for file in files] for name in "abc"}
    assert contents["a"] == contents["b"] != contents["c"]
    assert judge.load(tmp_path / "a/judge").score(["mnt:"], ["alal"]) == [gold.reward("alal")]
