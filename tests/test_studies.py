"""The pure parts of `make results`: areas, peaks, cells, the gold reward; and one cell of each light study."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies import __main__ as program
from benchmarks.studies import cells, curves, gold, page, reading, world
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
    # Share .5, 8 letters: 1 - (.1 / .25)^2 + 8 / 48
    assert gold.reward("alalalal") == pytest.approx(0.84 + 1 / 6)
    # Share 0: 1 - 1.6^2
    assert gold.reward("") == pytest.approx(-1.56)
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
    keys = {cells.digest({"beta": 0.1}, [one, other], tmp_path)}
    assert cells.digest({"beta": 0.1}, [other, one], tmp_path) in keys
    keys.add(cells.digest({"beta": 0.2}, [one, other], tmp_path))
    keys.add(cells.digest({"beta": 0.1}, [one], tmp_path))
    other.write_text("y = 3\n")
    keys.add(cells.digest({"beta": 0.1}, [one, other], tmp_path))
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


def _policy(kl: float, gain: float, **more: float) -> dict[str, float]:
    return {"gold": 1.0 + gain, "proxy": 2 * gain, "kl": kl, "length": 12.0, "finished": 0.9, **more}


def _made_up(folder: Path, seeds: tuple[int, ...], *, expected: bool) -> None:
    """Cells of a world in which everything comes out as expected, or nothing does; every seed alike."""
    sign, d = (1 if expected else -1), [0.1 * k for k in range(12)]
    along = {
        "kl": [x * x for x in d],
        "gold": [1 + x * (2 - 2 * x) for x in d],
        "proxy": [sign * x for x in d],
        "answers": ["aaa"],
    }
    one, other = {"pairs": 90, "dpo_kl": 1.0}, {"accuracy": 0.7, "correlation": 0.5, "best_of_16": 1.0, "dpo": 1.0}
    better = {name: value + sign * 0.1 for name, value in other.items()}
    found = {
        ("sft", "sft"): _policy(0.0, 0.0),
        ("overoptimisation", "ppo"): along,
        ("best_of_n", "best_of_n"): {name: along[name] for name in ("kl", "gold", "proxy")} | {"n": list(range(1, 13))},
        ("eos", "on"): _policy(1.0, 1.0),
        ("dropout", "none"): {"first_log_ratio": 0.0 if expected else 0.1},
        ("dropout", "configured"): {"first_log_ratio": 1e-7},
        ("dropout", "on"): {"first_log_ratio": 0.5 if expected else 0.0},
        ("resume", "adaptive"): {
            "resumes": 4,
            "compared": 28,
            "identical": 28 if expected else 27,
            "coefficients": [1, 2],
        },
        ("pairing", "best_worst"): one | better,
        ("pairing", "random"): one | other,
    }
    for study, order in (("dpo", -1), ("ppo", 1), ("coefficient", sign)):
        for k, setting in enumerate(STUDIES[study].settings):
            place = k if order > 0 else 3 - k
            found[study, setting] = _policy(0.25 * (place + 1) ** 2, 0.1 * place, coefficient=0.1)
    for (study, setting), figures in found.items():
        for seed in seeds:
            cells.fill(cells.Cell(study, setting, seed), folder, "made up", lambda figures=figures: figures)


@pytest.mark.parametrize("expected", [True, False])
def test_the_page_says_what_the_cells_say(tmp_path, expected):
    _made_up(tmp_path / "cells", (1, 2, 3), expected=expected)
    page.write(tmp_path / "cells", tmp_path / "docs", (1, 2, 3), quick=False)
    text = " ".join((tmp_path / "docs/studies.md").read_text().split())
    over = 3 if expected else 0
    assert f"goes on rising in {over} of 3 seeds" in text
    # gain = d (2 - 2 d), of which the best-of-n form knows both numbers; its peak is at 1/2.
    assert (
        "| best of n | best-of-n form | 2.00 [2.00, 2.00] | 2.00 [2.00, 2.00] | 1.00 [1.00, 1.00] | 0.50, 0.50, 0.50 |"
        in text
    )
    order = "in order in the mean and in 3 of 3 seeds" if expected else "not in order in the mean and in 0 of 3 seeds"
    assert all(f"{name} {order}" in text for name in ("proxy reward", "gold reward", "KL"))
    assert ("NOT" in text) != expected
    assert f"gold reward of DPO: higher in {over} of 3 seeds" in text
    assert f"{84 if expected else 81} of 84 comparisons" in text
    assert {p.name for p in (tmp_path / "docs").glob("*.png")} == {
        "studies-frontier.png",
        "studies-overoptimisation.png",
    }


def test_the_same_cells_give_the_same_bytes(tmp_path):
    _made_up(tmp_path / "cells", (1, 2), expected=True)
    for name in ("a", "b"):
        page.write(tmp_path / "cells", tmp_path / name, (1, 2), quick=False)
    assert all((tmp_path / "b" / p.name).read_bytes() == p.read_bytes() for p in (tmp_path / "a").iterdir())


def test_a_quick_page_of_one_seed_has_no_intervals(tmp_path):
    _made_up(tmp_path / "cells", (1,), expected=True)
    page.write(tmp_path / "cells", tmp_path / "docs", (1,), quick=True)
    assert "[0.50" not in (tmp_path / "docs/studies.md").read_text()


def test_points_within_the_range_are_counted_by_seed():
    assert reading.within([[(0.5, 0.0), (1.0, 0.0), (1.1, 0.0)], [(2.0, 1.0)]], 1.0) == "2, 0"


def test_a_section_with_fewer_seeds_says_so(tmp_path):
    _made_up(tmp_path / "cells", (1, 2), expected=True)
    cells.Cell("resume", "adaptive", 2).path(tmp_path / "cells").unlink()
    page.write(tmp_path / "cells", tmp_path / "docs", (1, 2), quick=False)
    text = (tmp_path / "docs/studies.md").read_text()
    assert text.count("This section has seed") == 1
    assert text.endswith("This section has seed 1 alone: the run was stopped before the rest.\n")
    cells.Cell("resume", "adaptive", 1).path(tmp_path / "cells").unlink()
    with pytest.raises(UserError, match="no seed has all cells of resume"):
        page.write(tmp_path / "cells", tmp_path / "docs", (1, 2), quick=False)
