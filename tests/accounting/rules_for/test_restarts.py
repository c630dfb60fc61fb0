"""Noise that is begun anew costs nothing more: every pattern, sign and cut of small streams."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.accounting.rules_for.test_streams import matrix_of, patterns

from dpfy.accounting.rules_for.streams import sensitivity
from dpfy.ledger.streams import Columns, Tree


def cut(matrix, ends, cuts):
    """The rows forget the steps before their own block; row r is complete after step ends[r]."""
    blocks = np.searchsorted(cuts, np.arange(matrix.shape[1]), side="right")
    rows = np.searchsorted(cuts, np.asarray(ends) - 1, side="right")
    return np.where(rows[:, None] == blocks[None, :], matrix, 0.0)


def all_cuts(steps):
    inner = range(1, steps)
    return itertools.chain.from_iterable(
        itertools.combinations(inner, count) for count in range(1, steps)
    )


def on_a_line(matrix, pattern):
    """The largest square over all signs of vectors on one line."""
    block = matrix[:, pattern]
    signs = np.array([(1, *rest) for rest in itertools.product((1, -1), repeat=len(pattern) - 1)])
    return np.square(block @ signs.T).sum(axis=0).max()


@st.composite
def matrices(draw, signed):
    steps = draw(st.integers(2, 7))
    entry = st.floats(-1.0 if signed else 0.0, 1.0)
    rows = [draw(st.lists(entry, min_size=row + 1, max_size=row + 1)) for row in range(steps)]
    return np.array([row + [0.0] * (steps - len(row)) for row in rows])


@pytest.mark.parametrize("signed", [False, True])
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_pattern_moves_the_rows_more_after_any_cuts(signed, data):
    matrix = data.draw(matrices(signed))
    steps = len(matrix)
    most, separation = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    for cuts in all_cuts(steps):
        begun_anew = cut(matrix, range(1, steps + 1), cuts)
        for pattern in patterns(steps, most, separation):
            assert on_a_line(begun_anew, pattern) <= on_a_line(matrix, pattern) * (1 + 1e-9) + 1e-12


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_signs_for_each_block_make_up_for_what_was_forgotten(data):
    """Vectors of any direction, as the proof has them."""
    matrix = data.draw(matrices(True))
    steps, rng = len(matrix), np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = rng.standard_normal((steps, 3))
    for cuts in all_cuts(steps):
        blocks = np.searchsorted(cuts, np.arange(steps), side="right")
        flips = np.array(list(itertools.product((1, -1), repeat=len(cuts) + 1)))[:, blocks]
        squares = [np.square(matrix @ (flip[:, None] * vectors)).sum() for flip in flips]
        forgotten = np.square(cut(matrix, range(1, steps + 1), cuts) @ vectors).sum()
        assert np.mean(squares) >= forgotten * (1 - 1e-9)


@pytest.mark.parametrize("tree", [Tree(), Tree(restart=3), Tree(completed=True)])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_trees_are_within_their_claim_after_any_cuts(tree, most):
    steps = 7
    matrix = matrix_of(tree, steps)
    ends = [int(np.flatnonzero(row).max()) + 1 for row in matrix]
    for separation in (1, 3):
        claimed = sensitivity(tree, steps, most, separation).upper ** 2
        for cuts in all_cuts(steps):
            begun_anew = cut(matrix, ends, cuts)
            for pattern in patterns(steps, most, separation):
                assert on_a_line(begun_anew, pattern) <= claimed * (1 + 1e-9)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_accountants_agree(data):
    """With clashing signs a line is not the worst; their own bounds are for all vectors."""
    matrix = data.draw(matrices(True))
    steps, most = len(matrix), data.draw(st.integers(1, 3))
    np.fill_diagonal(matrix, 1.0)
    cuts = data.draw(st.sampled_from(list(all_cuts(steps))))

    def bracket(values):
        columns = tuple(tuple(map(float, values[place:, place])) for place in range(steps))
        return sensitivity(Columns(columns), steps, most)

    begun_anew = cut(matrix, range(1, steps + 1), cuts)
    assert bracket(begun_anew).lower <= bracket(matrix).upper * (1 + 1e-9)
    assert bracket(begun_anew).upper <= bracket(matrix).upper * (1 + 1e-6)


def test_going_on_beyond_the_stream_can_cost_more_than_a_second_one():
    """Why there are never more rows than the stream has: prefix sums of 4 steps, then 4 more."""
    prefix = np.tril(np.ones((8, 8)))
    gone_on = on_a_line(prefix, list(range(8)))
    anew = on_a_line(cut(prefix, range(1, 9), (4,)), list(range(8)))
    assert gone_on == sum(k * k for k in range(1, 9)) > anew == 2 * sum(k * k for k in range(1, 5))
    assert math.sqrt(gone_on) > math.sqrt(anew)
