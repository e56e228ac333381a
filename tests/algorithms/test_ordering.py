import pytest

from tasks.algorithms.ordering import Ordered, ordered, ordered_by_gap


def test_ties_are_neither_right_nor_wrong():
    assert ordered([0.5, 0.0, -2.0, 3.0]) == Ordered(accuracy=0.5, ties=0.25, pairs=4)


def test_thirds_of_the_gap_by_hand():
    """Gaps 1 to 6: thirds begin at 2.67 and 4.33. One of 1 and 2 is right, both of 3 and 4, a tie among 5 and 6."""
    found = ordered_by_gap([-1.0, 1.0, 1.0, 2.0, 0.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], parts=3)
    assert found == {0: Ordered(0.5, 0.0, 2), 1: Ordered(1.0, 0.0, 2), 2: Ordered(0.5, 0.5, 2)}


def test_the_parts_hold_every_pair_whatever_the_order():
    margins, gaps = [1.0, -1.0, 0.0, 2.0, 5.0], [3.0, 1.0, 4.0, 1.0, 5.0]
    found = ordered_by_gap(margins, gaps, parts=3)
    assert sum(part.pairs for part in found.values()) == 5
    assert ordered_by_gap(margins[::-1], gaps[::-1], parts=3) == found


def test_equal_gaps_stay_together():
    assert ordered_by_gap([1.0, -1.0, 1.0], [2.0, 2.0, 2.0], parts=3) == {2: Ordered(2 / 3, 0.0, 3)}


def test_no_gap_is_known():
    assert ordered_by_gap([], [], parts=3) == {}


def test_errors():
    with pytest.raises(ValueError, match="no pairs"):
        ordered([])
    with pytest.raises(ValueError, match="2 margins, 1 gaps"):
        ordered_by_gap([1.0, 2.0], [1.0], parts=3)
    with pytest.raises(ValueError, match="0 parts"):
        ordered_by_gap([1.0], [1.0], parts=0)
