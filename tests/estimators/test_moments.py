"""The vector of second moments: what it holds, what a row adds to it, what is solved from it."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from dpfy.estimators.moments import Moments, moment_sum, moments_bound

ROWS = arrays(float, (5, 3), elements=st.floats(-1, 1))
TARGETS = arrays(float, 5, elements=st.floats(-1, 1))


@given(x=ROWS, y=TARGETS)
def test_moments_are_read_back(x, y):
    found = Moments.of(moment_sum(x, y), 5, 3)
    centred = x - x.mean(axis=0)
    assert found.mean == pytest.approx(x.mean(axis=0), abs=1e-12)
    assert found.scatter == pytest.approx(centred.T @ centred, abs=1e-12)
    assert found.cross == pytest.approx(centred.T @ (y - y.mean()), abs=1e-12)
    assert found.target == pytest.approx(y.mean(), abs=1e-12)
    without = Moments.of(moment_sum(x), 5, 3)
    assert without.scatter == pytest.approx(found.scatter, abs=1e-12)
    assert without.target == 0 and (without.cross == 0).all()


@given(row=arrays(float, 3, elements=st.floats(-1, 1)), y=st.floats(-1, 1), unit=st.booleans())
def test_a_row_adds_at_most_the_bound(row, y, unit):
    size = np.linalg.norm(row)
    row = row / max(size, 1) if not unit or size == 0 else row / size
    for target, bound in ((None, moments_bound(False)), (np.array([y]), moments_bound(True))):
        assert np.linalg.norm(moment_sum(row[None], target)) <= bound * (1 + 1e-14)


def test_a_row_reaches_the_bound():
    row = np.array([[0.6, 0.8, 0.0]])
    found = np.linalg.norm(moment_sum(row, np.ones(1)))
    assert found == pytest.approx(moments_bound(True)) == pytest.approx(1.25)
    assert np.linalg.norm(moment_sum(row)) == pytest.approx(moments_bound(False))


@given(noise=arrays(float, 6 + 3 + 3 + 1, elements=st.floats(-1e3, 1e3)))
def test_the_penalty_makes_any_noise_positive_definite(noise):
    found = Moments.of(noise, 10, 3)
    weights = found.ridge(0.0, noise=1.0)
    least = max(float(np.linalg.eigvalsh(found.scatter)[0]), 3**0.5)
    assert np.linalg.norm(weights) <= np.linalg.norm(found.cross) / least * (1 + 1e-6) + 1e-9
