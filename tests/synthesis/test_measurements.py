"""Scores move by no more than a row may move them, as computed, and cells are merged as told."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpfy.synthesis.aim import weighed
from dpfy.synthesis.measurements import STEP, Measured, Merged, distance, estimated_total

ANY = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**31), ANY), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_one_row_moves_a_distance_by_one_at_most_and_sometimes_by_one(cells, place):
    exact = np.array([each[0] for each in cells], dtype=np.int64)
    expected = np.array([each[1] for each in cells])
    more = exact.copy()
    more[place % len(more)] += 1
    moved = distance(more, expected) - distance(exact, expected)
    assert abs(moved) <= 1 / STEP
    assert distance(more, np.zeros(len(more))) - distance(exact, np.zeros(len(more))) == 1 / STEP


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 2**44),
    st.integers(-1024, 1024),
    st.integers(0, 2**60),
    st.integers(1, 300),
)
def test_a_score_moves_by_its_weight_at_most_as_computed(far, moved, bias, weight):
    (one,), (other,) = (weighed([each], [bias], [weight]) for each in (far, max(far + moved, 0)))
    assert abs(one - other) <= weight


def test_totals_are_weighed_by_their_precision():
    rough, fine = Measured((0,), np.full(4, 10.0), 2.0), Measured((1,), np.full(2, 50.0), 1.0)
    assert estimated_total([rough, fine]) == pytest.approx((40 / 16 + 100 / 2) / (1 / 16 + 1 / 2))
    assert estimated_total([Measured((0,), np.array([-50.0]), 1.0)]) == 1.0  # never no row at all


def test_cells_that_do_not_stand_out_are_one_group_and_keep_their_shares():
    merged = Merged.of(Measured((0,), np.array([100.0, 2.0, 50.0, 6.0, -3.0]), 3.0))
    assert merged.groups.tolist() == [0, 2, 1, 2, 2] and merged.size == 3
    assert merged.shares.tolist() == [1, 0.25, 1, 0.75, 0]
    noisy, cells = merged.merge(Measured((0,), np.array([100.0, 2.0, 50.0, 6.0, -3.0]), 3.0))
    assert noisy.tolist() == [100, 50, 5] and cells.tolist() == [1, 1, 3]
    drawn = merged.split(np.array([0, 1, 2] * 200), np.random.default_rng(0))
    assert set(drawn[0::3]) == {0} and set(drawn[1::3]) == {2} and set(drawn[2::3]) == {1, 3}


@pytest.mark.parametrize("noisy", [[100.0, 200.0], [100.0, -4.0], [100.0]])
def test_fewer_than_two_such_cells_stay_apart(noisy):
    merged = Merged.of(Measured((0,), np.array(noisy), 3.0))
    assert merged.groups.tolist() == list(range(len(noisy)))


def test_where_nothing_stands_out_all_cells_are_alike():
    merged = Merged.of(Measured((0,), np.array([-1.0, -2.0, -3.0]), 5.0))
    assert merged.size == 1 and merged.shares == pytest.approx([1 / 3] * 3)
