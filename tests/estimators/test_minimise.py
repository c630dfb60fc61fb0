"""The minimum is found to its public precision on whatever rows, by Newton's method or not."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpfy.estimators import minimise as module
from dpfy.estimators.minimise import Objective, Precision, minimise

WIDTH = 3
STRENGTHS = (0.05, 1.0, 30.0)


def bounded(x):
    """Rows of norm 1 at most."""
    x = np.asarray(x, dtype=float).reshape(-1, WIDTH)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)


number = st.one_of(st.floats(-1, 1), st.sampled_from((0.0, 1.0, -1.0, 1e-300, 1e150, -1e18)))
row = st.tuples(st.tuples(number, number, number), st.sampled_from((0.0, 1.0)))
tables = st.lists(st.tuples(row, st.sampled_from((1, 2, 200))), max_size=5)
"""Rows, some of them many times: huge before they are bounded, duplicated, separable, zero."""


def objective(table, strength, clip=1.0, linear=None):
    rows = [each for each, times in table for _ in range(times)]
    x = bounded([x for x, _ in rows])
    y = np.array([y for _, y in rows])
    return Objective(x, y, strength, np.zeros(WIDTH) if linear is None else linear, clip)


def sizes(of, rows=2000):
    return Precision(rows, WIDTH, of.regularisation, float(np.linalg.norm(of.linear)) + 1.0)


@given(
    table=tables,
    extra=row,
    strength=st.sampled_from(STRENGTHS),
    clip=st.sampled_from((1.0, 0.5, 0.1)),
)
@settings(max_examples=150, deadline=None)
def test_one_row_moves_the_minimum_by_at_most_the_certified_bound(table, extra, strength, clip):
    """A wrong gradient, tolerance or clip moves it further: the next tests are of each alone."""
    one, other = (objective(rows, strength, clip) for rows in (table, [*table, (extra, 1)]))
    precision = sizes(one)
    apart = np.linalg.norm(minimise(one, precision) - minimise(other, precision))
    assert apart <= (clip + 2 * precision.tolerance) / strength * (1 + 1e-9)


def test_the_bound_is_nearly_attained():
    """By one row where all else pushes it to the wrong side: no smaller bound would do."""
    against = (((1.0, 0.0, 0.0), 0.0), 1)
    pushed = np.array([-300.0, 0.0, 0.0])
    one, other = (objective(rows, 0.5, linear=pushed) for rows in ([], [against]))
    one, other = (minimise(each, sizes(each)) for each in (one, other))
    assert np.linalg.norm(one - other) == pytest.approx(1 / 0.5, rel=1e-4)


@given(table=tables, strength=st.sampled_from(STRENGTHS), clip=st.sampled_from((1.0, 0.3)))
@settings(max_examples=60, deadline=None)
def test_newton_finds_a_certificate_with_any_linear_term(table, strength, clip):
    for linear in (np.zeros(WIDTH), np.array([300.0, -1.0, 1e-9])):
        found = objective(table, strength, clip, linear)
        theta = module._newton(found, sizes(found))
        assert theta is not None
        assert np.linalg.norm(found.gradient(theta)) <= sizes(found).tolerance


@given(table=tables, strength=st.sampled_from((5.0, 30.0)), clip=st.sampled_from((1.0, 0.3)))
@settings(max_examples=25, deadline=None)
def test_gradient_descent_alone_is_as_near_as_claimed(table, strength, clip):
    """Where Newton's method has no certificate; a rate or a number of steps too small fails."""
    found = objective(table, strength, clip, np.array([3.0, -2.0, 0.0]))
    precision = sizes(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_newton", lambda *_: None)
        patch.setattr(module, "_certified", lambda *_: False)
        theta = minimise(found, precision)
    exact = module._newton(found, precision)
    distance = np.linalg.norm(theta - exact)
    assert distance <= 2 * precision.tolerance / strength


@pytest.mark.parametrize("clip", [1.0, 0.5, 0.2])
def test_value_gradient_and_hessian_belong_together(clip):
    rng = np.random.default_rng(3)
    x, y = bounded(rng.normal(size=(50, WIDTH))), rng.integers(0, 2, 50).astype(float)
    found = Objective(x, y, 0.7, rng.normal(size=WIDTH), clip)
    for _ in range(5):
        theta, way = rng.normal(size=(2, WIDTH))
        near = [theta + step * way for step in (1e-5, -1e-5)]
        slope = (found.value(near[0]) - found.value(near[1])) / 2e-5
        assert slope == pytest.approx(found.gradient(theta) @ way, rel=1e-5)
        bend = (found.gradient(near[0]) - found.gradient(near[1])) / 2e-5
        assert bend == pytest.approx(found.hessian(theta) @ way, rel=1e-3, abs=1e-3)


def test_no_row_has_a_steeper_loss_than_the_clip():
    for clip in (1.0, 0.5, 0.1):
        for x in ([1.0, 0, 0], [-1.0, 0, 0]):
            for y in (0.0, 1.0):
                one = Objective(np.array([x]), np.array([y]), 1e-12, np.zeros(WIDTH), clip)
                slopes = [one.gradient(np.array([at, 0, 0]))[0] for at in (-50.0, 0.0, 50.0)]
                assert max(map(abs, slopes)) <= clip + 1e-9
                assert len({slope > 0 for slope in slopes if abs(slope) > 1e-9}) == 1


def test_the_error_of_a_gradient_is_within_its_bound():
    """Against extended precision: an error bound that forgets sums or scores is too small."""
    rng = np.random.default_rng(5)
    x = bounded(rng.normal(size=(70_000, WIDTH)))
    y = rng.integers(0, 2, len(x)).astype(float)
    found = Objective(x, y, 2.0, np.zeros(WIDTH))
    theta = rng.normal(size=WIDTH) * 30
    wide = x.astype(np.longdouble)
    exact = wide.T @ (1 / (1 + np.exp(-(wide @ theta.astype(np.longdouble)))) - y) + 2 * theta
    off = np.linalg.norm((found.gradient(theta) - exact).astype(float))
    assert off <= Precision(len(x), WIDTH, 2.0).error(float(np.linalg.norm(theta)))


def test_no_rows_have_their_minimum_at_zero_or_at_the_linear_term():
    empty = objective([], 2.0)
    assert minimise(empty, sizes(empty)) == pytest.approx(np.zeros(WIDTH), abs=1e-3)
    moved = objective([], 2.0, linear=np.array([4.0, 0.0, -2.0]))
    assert minimise(moved, sizes(moved)) == pytest.approx([-2.0, 0.0, 1.0], abs=1e-3)


def test_precision_is_public_and_worsens_with_size():
    small, large = (Precision(rows, 140, 5.0) for rows in (10**3, 10**6))
    assert small.tolerance < large.tolerance < 1e-2
    assert Precision(10**4, 140, 0.01).tolerance > Precision(10**4, 140, 5.0).tolerance
    assert math.isfinite(large.steps) and large.steps > small.steps
