"""Loops over earlier noise: in C they give what numpy gives, and an error is noticed."""

import numpy as np
import pytest
import torch

from dpfy.noise.native import kernels
from dpfy.noise.native.agreement import agree
from dpfy.noise.past import Band, Nodes, Past, Sums
from dpfy.noise.vector import Piece, Steps, Vector


@pytest.fixture
def in_c():
    return kernels.compiled() or pytest.skip("there is no C compiler")


def noise(rows, size):
    return np.rint(np.random.default_rng(1).normal(size=(rows, size)) * 2.0**29)


def bands(count):
    """Return what makes the memory of a ring of rows, and what each row rests on."""

    def made(size):
        ring, pasts = np.zeros((count, size), dtype=np.int32), []
        for row in range(10):
            kept = [ring[(row - lag) % count] for lag in range(1, min(row, count) + 1)]
            weights = np.linspace(0.7, -0.2, len(kept))
            pasts.append(Band(1.0, weights, kept, ring[row % count], 4.0))
        return ring, pasts

    return made


def sums(size):
    rows = np.zeros((2, size))
    decays, weights, limits = np.array([[0.999, 0.3], [0.1, 0.4], [2.0**29, 2.0**40]])
    return rows, [Sums(1.0, weights, [*rows], decays, limits)] * 10


def nodes(size):
    rows = np.zeros((3, size))
    return rows, [Nodes(1.0, [*rows[: row % 4]], rows[row % 3]) for row in range(10)]


@pytest.mark.parametrize("size", [0, 1, 15, 17, 2047, 2049, 100_000])
@pytest.mark.parametrize("make", [bands(1), bands(2), bands(7), sums, nodes])
def test_c_gives_what_numpy_gives(in_c, size, make):
    found = []
    for correlate in (Past.correlate, in_c.correlate, in_c.shared().correlate):
        rows, (memory, pasts) = noise(10, size), make(size)
        for fresh, past in zip(rows, pasts, strict=True):
            for start, end in ((size // 3, size), (0, size // 3)):  # in any order
                correlate(past, start, fresh[start:end])
        found.append((rows, memory))
    for one, *others in zip(*found, strict=True):
        for other in others:
            assert (one == other).all()
    assert make is not sums or size == 0 or np.abs(memory[0]).max() <= 2.0**29


def test_rows_that_32_bits_do_not_hold_are_limited(in_c):
    for correlate in (Past.correlate, in_c.correlate):
        target, fresh = np.zeros(2, dtype=np.int32), np.array([2.0**40, -(2.0**40)])
        correlate(Band(1.0, np.empty(0), [], target, 4.0), 0, fresh)
        assert target.tolist() == [2**31 - 1, -(2**31) + 1]
        assert fresh.tolist() == [2.0**40, -(2.0**40)]


def test_memory_of_another_kind_is_refused(in_c):
    """C would read and write beyond its end."""
    row, fresh = np.zeros(8, dtype=np.int32), np.zeros(8)
    for wrong in (row.astype(np.int64), row[::2], row.reshape(2, 4)):
        for past in (
            Band(1.0, np.ones(1), [wrong], row, 4.0),
            Band(1.0, np.ones(1), [row], wrong, 4.0),
            Nodes(1.0, [wrong], fresh),
        ):
            with pytest.raises(TypeError, match="without gaps"):
                in_c.correlate(past, 0, fresh)


def steps_of(whole):
    """Return noise in steps, of which the last takes more than 32 bits."""
    low = whole.astype(np.int64).astype(np.int32)
    places = np.flatnonzero(low != whole).astype(np.int32)
    return Steps(low, 2.0**9, places, whole[places] - low[places])


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_every_way_to_the_sums_leads_through_the_past(in_c, single, plain):
    """From cells or steps, in numpy or in C, to memory that C reaches or not."""
    whole = np.append(noise(1, 4999)[0], 2.0**33)
    found = []
    for these in (kernels.IN_NUMPY, in_c):
        for way in ("cells", "steps"):
            row = np.full(5000, 3, dtype=np.int32)
            past = Band(1.0, np.array([0.5]), [row], row, 4.0)
            values = torch.zeros(5000, dtype=torch.float32 if single else torch.float64)
            out = torch.zeros(5000, dtype=torch.float32 if plain else torch.float64)
            vector = Vector([Piece(0, values, 0.5, out)], 2.0**-42, 2.0**-33, past)
            if way == "cells":
                these.add(vector, 0, whole * 2.0**9 + 100)  # less than half a step
            else:
                these.add_steps(vector, 0, steps_of(whole))
            found.append((out.double().numpy(), row))
    expected = (whole - 6) * 2.0**-34
    for out, row in found:
        assert (out == (expected.astype(np.float32) if plain else expected)).all()
        assert (row == np.clip(np.rint((whole - 6) / 4), -(2**31) + 1, 2**31 - 1)).all()


def test_an_error_of_compiled_code_is_noticed(in_c):
    class Wrong:
        """Kernels that correlate with another weight."""

        def __getattr__(self, name):
            return getattr(in_c, name)

        def add_steps(self, vector, start, steps):
            if isinstance(vector.past, Band):
                vector.past.weights[0] *= 1 + 2.0**-20
            in_c.add_steps(vector, start, steps)

    assert agree(in_c, kernels.IN_NUMPY)
    assert not agree(Wrong(), kernels.IN_NUMPY)


def test_nothing_of_it_is_printed():
    past = Nodes(1.0, [np.full(3, 12345.0)], np.full(3, 12345.0))
    vector = Vector([Piece(0, torch.zeros(3).double())], 1.0, 1.0, past)
    assert "12345" not in repr(past) + repr(vector)
