"""Sums of clipped predictions: one teacher moves them by at most the distance of the bounds."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpfy.ensembles.clipped_means import clipped_sums

ANYTHING = st.floats(allow_nan=True, allow_infinity=True, width=64)
BOUNDS = (
    st.tuples(st.floats(-1e300, 1e300), st.floats(1e-300, 1e300))
    .map(lambda pair: (pair[0], pair[0] + pair[1]))
    .filter(lambda pair: pair[0] < pair[1] <= 1e300)
)


@given(st.lists(ANYTHING, min_size=1, max_size=30), ANYTHING, BOUNDS)
def test_one_teacher_moves_the_sum_by_at_most_the_distance(answers, other, bounds):
    # Clipping after adding, or adding floats that round, would move it by more.
    before = np.array(answers)[:, np.newaxis]
    after = before.copy()
    after[0] = other
    moved = abs(clipped_sums(before, bounds)[0] - clipped_sums(after, bounds)[0])
    assert moved <= bounds[1] - bounds[0]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_order_does_not_change_a_bit(answers, random):
    shuffled = answers[:]
    random.shuffle(shuffled)
    first, second = (
        clipped_sums(np.array(each)[:, np.newaxis], (-1.0, 0.7)) for each in (answers, shuffled)
    )
    assert first == second


def test_sum_is_about_the_middle():
    answers = np.array([[0.0, 5.0, math.nan], [1.0, -5.0, math.inf]])
    assert clipped_sums(answers, (0.0, 1.0)) == pytest.approx([0.0, 0.0, 0.0])
    assert clipped_sums(np.full((10, 1), 0.75), (0.0, 1.0)) == pytest.approx([2.5], abs=1e-7)


def test_no_teachers_sum_to_nothing():
    assert clipped_sums(np.empty((0, 2)), (0.0, 1.0)).tolist() == [0.0, 0.0]
