"""One teacher moves votes by at most its weight, whatever it answers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from dpfy.ensembles import count_votes
from dpfy.errors import InvalidArgument

CLASSES = 4
ANSWERS = st.one_of(
    st.integers(0, CLASSES - 1).map(float),
    st.sampled_from([math.nan, math.inf, -1.0, 0.5, 4.0, -0.0, 1e300, 5e-324]),
    st.floats(),
)
ENSEMBLES = arrays(np.float64, (6, 3), elements=ANSWERS)


@settings(deadline=None)
@given(ENSEMBLES, arrays(np.float64, 3, elements=ANSWERS), st.integers(0, 5))
def test_sensitivity_for_every_behaviour_of_a_teacher(answers, other, teacher):
    weights = np.array([0.25, 1.0, 3.0, 0.5, 1.0, 2.0**-20])
    changed = answers.copy()
    changed[teacher] = other
    move = count_votes(answers, CLASSES, weights) - count_votes(changed, CLASSES, weights)
    weight = weights[teacher]
    assert (np.abs(move).max(axis=1) <= weight).all()
    assert (np.abs(move).sum(axis=1) <= 2 * weight).all()
    assert (np.linalg.norm(move, axis=1) <= math.sqrt(2) * weight * (1 + 1e-15)).all()


@settings(deadline=None)
@given(ENSEMBLES)
def test_votes_are_those_counted_one_by_one(answers):
    counted = [[sum(row == label for row in column) for label in range(4)] for column in answers.T]
    assert count_votes(answers, CLASSES).tolist() == counted


def test_edges():
    assert count_votes(np.empty((0, 2)), 2).tolist() == [[0, 0], [0, 0]]
    assert count_votes(np.empty((3, 0)), 2).shape == (0, 2)
    for answers, weights in (([0.0, 1.0], None), ([[0.0]], [0.0]), ([[0.0]], [math.nan])):
        with pytest.raises(InvalidArgument):
            count_votes(answers, 2, weights)
