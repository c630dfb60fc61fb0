"""Correlated noise: its covariance, what forgets it, and what its arithmetic costs."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpfy.errors import InvalidArgument
from dpfy.noise import CorrelatedGaussian, LatticeGaussian, SecureStream
from dpfy.noise.histories import Bands, DecayingSums, TreeNodes
from dpfy.noise.native import correlation
from dpfy.testing import check_noise

GRID = 2.0**-28


def toeplitz(coefficients, steps):
    """Return the matrix of a column of coefficients."""
    return sum(c * np.eye(steps, k=-lag) for lag, c in enumerate(coefficients[:steps]))


def tree_rows(steps, restart=0):
    """Return which fresh noise each row of a tree adds up, from sums of nodes by their ends."""
    prefixes = np.zeros((steps + 1, steps))
    for row in range(1, steps + 1):
        begin = (row - 1) // restart * restart if restart else 0
        prefixes[row] = prefixes[begin]
        place, end = row - begin, begin
        for level in reversed(range(place.bit_length())):
            if place >> level & 1:
                end += 1 << level
                prefixes[row, end - 1] += 1  # the noise of a node is drawn where it ends
    return np.diff(prefixes, axis=0)


BUFFERS = [0.9, 0.4], [0.3, 0.25]
BUFFERED = [1.0] + [0.3 * 0.9**lag + 0.25 * 0.4**lag for lag in range(9)]
HISTORIES = {
    "bands": (
        lambda: Bands([1.0, 0.5, 0.375, 0.3], 6),
        np.linalg.inv(toeplitz([1.0, 0.5, 0.375, 0.3], 6)),
    ),
    "signed": (lambda: Bands([1.0, -0.5, 0.2], 6), np.linalg.inv(toeplitz([1.0, -0.5, 0.2], 6))),
    "one band": (lambda: Bands([1.0], 6), np.eye(6)),
    "sums": (lambda: DecayingSums(*BUFFERS, 6), np.linalg.inv(toeplitz(BUFFERED, 6))),
    "tree": (TreeNodes, tree_rows(6)),
    "trees": (lambda: TreeNodes(4), tree_rows(7, 4)),
}


def made(name, key=1, first=1):
    return CorrelatedGaussian(SecureStream(insecure_test_key=key), HISTORIES[name][0](), first)


def row_of(noise, count=64, stddev=1.0, grid=GRID):
    return noise.add_noise(torch.zeros(count, dtype=torch.float64), stddev, grid).numpy() / stddev


def fresh_rows(rows, count=64, key=1):
    """Return the independent noise that a stream with a key draws."""
    noise = LatticeGaussian(SecureStream(insecure_test_key=key))
    return np.stack([row_of(noise, count) for _ in range(rows)])


@pytest.mark.parametrize("name", [name for name in HISTORIES if name != "one band"])
def test_rows_have_the_covariance_of_the_strategy(name):
    check_noise(lambda stream: CorrelatedGaussian(stream, HISTORIES[name][0]()), HISTORIES[name][1])


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_another_scale_is_noticed(factor):
    class Scaled(CorrelatedGaussian):
        def add_noise(self, values, stddev, grid):
            return super().add_noise(values, stddev * factor, grid)

    with pytest.raises(AssertionError, match="declared"):
        check_noise(lambda stream: Scaled(stream, HISTORIES["bands"][0]()), HISTORIES["bands"][1])


@pytest.mark.parametrize("past", [[0.5 * 2 / 3], [0.5 * 3 / 2], [0.5, 0.1], []])
def test_another_correlation_is_noticed(past):
    rows = np.linalg.inv(toeplitz([1.0, 0.5], 4))
    with pytest.raises(AssertionError, match="of the scale of fresh"):
        check_noise(lambda stream: CorrelatedGaussian(stream, Bands([1.0, *past], 4)), rows)


def test_noise_that_lies_about_its_rows_is_noticed():
    rows = np.linalg.inv(toeplitz([1.0, 0.5], 3))

    class Lies(CorrelatedGaussian):
        @property
        def spread(self):
            return float(np.linalg.norm(rows[min(self._row, 4) - 2]))

        @spread.setter
        def spread(self, value):
            pass

    with pytest.raises(AssertionError, match="row 1"):
        check_noise(lambda stream: Lies(stream, Bands([1.0], 4)), rows)


@pytest.mark.parametrize("name", HISTORIES)
def test_rows_are_the_fresh_noise_times_the_inverse(name):
    """Up to a step of rounding for each row that a row rests on."""
    rows, noise = HISTORIES[name][1], made(name)
    found = np.stack([row_of(noise) for _ in rows])
    assert np.abs(found - rows @ fresh_rows(len(rows))).max() <= 64 * 10 * GRID
    assert (np.remainder(found, GRID) == 0).all()


def test_trees_and_one_band_are_exact():
    for name in ("one band", "tree", "trees"):
        rows, noise = HISTORIES[name][1], made(name)
        found = np.stack([row_of(noise) for _ in rows])
        assert (found == rows @ fresh_rows(len(rows))).all()
        assert noise.roundings == 0


def interrupted(noise, monkeypatch):
    """Let one row fail after it was drawn."""
    with monkeypatch.context() as patch:
        patch.setattr(type(noise._history), "correlate", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            row_of(noise)


@pytest.mark.parametrize("name", ["bands", "sums", "tree"])
@pytest.mark.parametrize("how", ["forget", "skip", "size", "scale", "failure", "close", "fork"])
def test_what_forgets_earlier_rows(name, how, monkeypatch):
    """A row that has forgotten is the fresh noise of the stream, and not a step of history."""
    noise = made(name)
    for _ in range(3):
        row_of(noise)
    count, stddev, drawn = 64, 1.0, 3
    if how == "size":
        count = 65
    elif how == "scale":
        stddev = 1.5
    elif how == "failure":
        interrupted(noise, monkeypatch)
        drawn = 4
    elif how == "skip":
        noise.begin(8)
    elif how == "fork":
        monkeypatch.setattr("dpfy.noise.correlated.this_process", lambda: (os.getpid(), 99))
    else:
        getattr(noise, how)()
    found = row_of(noise, count, stddev)
    plain = LatticeGaussian(SecureStream(insecure_test_key=1))
    for _ in range(drawn):
        row_of(plain)
    assert (found == row_of(plain, count, stddev)).all()
    assert noise.spread == 1


@pytest.mark.parametrize("name", ["bands", "sums", "tree"])
def test_rows_in_turn_remember(name):
    """Begin() of the row that follows changes nothing; or forgetting would go unnoticed above."""
    one, other = made(name), made(name)
    for row in range(1, 6):
        other.begin(row)
        assert (row_of(one) == row_of(other)).all()
    assert other.spread == pytest.approx(float(np.linalg.norm(HISTORIES[name][1][4])))


def test_a_tree_begun_late_keeps_its_places():
    noise, rows = made("tree", first=6), tree_rows(8)
    rows[:, :5] = 0  # forgotten
    fresh = fresh_rows(3)
    for row in (6, 7, 8):
        assert (row_of(noise) == rows[row - 1, 5:] @ fresh).all()


@pytest.mark.parametrize("name", ["bands", "sums"])
def test_compiled_loops_are_numpys(name, monkeypatch):
    found = []
    for loops in (correlation.compiled() or correlation.IN_NUMPY, correlation.IN_NUMPY):
        monkeypatch.setattr("dpfy.noise.histories.correlation_for", lambda count, to=loops: to)
        noise = made(name)
        found.append(np.stack([row_of(noise, 5000) for _ in range(6)]))
    assert (found[0] == found[1]).all()


def least_move(row, bound, unit, words):
    """Return whole steps, of norm at most ``bound``, that history rounds up the most."""
    direction = words.normal(size=len(row))
    far = np.trunc(bound * direction / np.linalg.norm(direction))
    near = np.zeros(len(row))  # one coordinate moves just across the middle of a unit
    to_middle = unit / 2 - row[0] % unit
    near[0] = to_middle + np.sign(to_middle or 1)
    return near if abs(near[0]) <= bound else far


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_neighbours_differ_by_the_sensitivity(data):
    """Given the same outputs, fresh noise has to make up for at most Δ(S₁ + roundings·√d) steps.

    Fails if the unit of a history, or rounding, is left out of ``roundings``.
    """
    steps, size = data.draw(st.integers(1, 8)), data.draw(st.sampled_from([1, 1, 3]))
    kind = data.draw(st.sampled_from(["bands", "signed", "sums", "tree"]))
    if kind == "sums":
        make, column = (lambda: DecayingSums(*BUFFERS, steps)), BUFFERED
    elif kind == "tree":
        make, column = TreeNodes, None
    else:
        low = -0.5 if kind == "signed" else 0.0
        past = st.lists(st.floats(low, 0.6), min_size=1, max_size=4) | st.just([0.6] * 6)
        column = [1.0, *data.draw(past)]
        try:
            Bands(column, steps)
        except InvalidArgument:
            return
        make = lambda: Bands(column, steps)  # noqa: E731
    matrix = (
        np.linalg.inv(tree_rows(steps)).round()
        if column is None
        else toeplitz([*column, *[0.0] * steps], steps)
    )
    pattern = data.draw(st.just({0}) | st.sets(st.integers(0, steps - 1)))
    cuts = data.draw(st.just(set()) | st.sets(st.integers(1, steps)))
    unit = getattr(make(), "_unit", 1.0)
    bound = data.draw(st.sampled_from([0.0, 1.0, unit / 2 + 1, 1e5]))
    words = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    for cut in cuts:
        matrix[cut:, :cut] = 0
    first, second = make(), make()
    shift = np.zeros((steps, size))
    for step in range(steps):
        if step in cuts:
            first.forget()
            second.forget()
        fresh = np.rint(words.normal(size=size) * 2.0**29)
        row = fresh.copy()
        first.correlate(row, step + 1)
        implied = np.zeros(size)  # minus what the neighbour's history takes off
        copy.deepcopy(second).correlate(implied, step + 1)
        moved = row - least_move(row, bound, unit, words) if step in pattern else row
        needed = moved - implied
        shift[step] = needed - fresh
        second.correlate(needed, step + 1)
        assert (needed == moved).all()
    products = np.abs(matrix[:, sorted(pattern)].T @ matrix[:, sorted(pattern)])
    slack = bound + make().roundings * np.sqrt(size)
    assert np.linalg.norm(shift) <= np.sqrt(products.sum()) * slack * (1 + 1e-9)


def test_rounding_is_close_to_what_is_allowed_for():
    """A bound a hundred times too large would be noise for nothing."""
    words = np.random.default_rng(1)
    first, second = (Bands([1.0, *[0.3] * 7], 64) for _ in range(2))
    total, size = 0.0, 1000
    for row in range(1, 9):
        fresh = np.rint(words.normal(size=size) * 2.0**29)
        own, implied = fresh.copy(), np.zeros(size)
        first.correlate(own, row)
        copy.deepcopy(second).correlate(implied, row)
        needed = own + (row == 1) * words.integers(-16, 17, size) - implied
        second.correlate(needed.copy(), row)
        total += ((needed - fresh) ** 2).sum()
    assert np.sqrt(total) >= 0.1 * first.roundings * np.sqrt(size)


def test_nothing_of_it_can_be_saved_or_printed():
    noise = made("bands")
    row_of(noise)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(InvalidArgument, match="cannot be copied"):
            act(noise)
    assert repr(noise) == "CorrelatedGaussian(sensitive)"


def test_memory_is_four_bytes_a_band_and_eight():
    noise, bands, size = made("bands"), 4, 10_000
    for _ in range(5):
        row_of(noise, size)
    kept = noise._history._ring.nbytes + noise._noise.nbytes
    assert kept <= ((bands - 1) * 4 + 8) * size


def test_rows_far_apart_are_independent_after_a_band():
    noise = made("bands")
    rows = [row_of(noise, 200_000) for _ in range(2)]
    noise.forget()
    score = float(rows[1] @ row_of(noise, 200_000)) / 200_000**0.5 / noise.spread
    assert 2 * stats.norm.sf(abs(score)) > 1e-6


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Bands([], 3), "begin with 1"),
        (lambda: Bands([0.0, 1.0], 3), "begin with 1"),
        (lambda: Bands([-1.0], 3), "begin with 1"),
        (lambda: Bands([1.0, 2.0], 100), "no bound"),
        (lambda: Bands([1.0, 2.0], 0), "steps"),
        (lambda: DecayingSums([1.0], [0.1], 3), "decays"),
        (lambda: DecayingSums([0.5], [], 3), "as many scales"),
        (lambda: DecayingSums([0.5], [2.0], 3), "scales"),
        (lambda: TreeNodes(-1), "restart"),
        (lambda: row_of(made("bands"), grid=2.0**-31), "at most 2\\^30 steps"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize("name", HISTORIES)
def test_no_values_and_no_noise(name):
    noise = made(name)
    assert len(row_of(noise, 0)) == 0
    assert (noise.add_noise(torch.tensor([0.3]).double(), 0.0, 0.25) == 0.25).all()
