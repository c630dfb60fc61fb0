"""Loops over earlier noise: in C they give what numpy gives, and an error is noticed."""

import numpy as np
import pytest

from dpfy.noise.native import correlation

pytestmark = pytest.mark.skipif(correlation.compiled() is None, reason="needs a compiler")


def noise(rows, size):
    return np.rint(np.random.default_rng(1).normal(size=(rows, size)) * 2.0**29)


@pytest.mark.parametrize("size", [0, 1, 2047, 2049, 100_000])
@pytest.mark.parametrize("bands", [1, 2, 7])
def test_bands(size, bands):
    found = []
    for loops in (correlation.IN_NUMPY, correlation.compiled()):
        rows, ring = noise(10, size), np.zeros((bands, size), dtype=np.int32)
        for row, fresh in enumerate(rows):
            kept = min(row, bands)
            places = (row - 1 - np.arange(kept)) % bands
            loops.bands(fresh, np.linspace(0.7, -0.2, kept), places, ring, row % bands, 4.0)
        found.append((rows, ring))
    for one, other in zip(*found, strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("size", [0, 1, 2049, 100_000])
def test_decaying_sums_and_their_limits(size):
    decays, scales = np.array([0.999, 0.3]), np.array([0.1, 0.4])
    found = []
    for loops in (correlation.IN_NUMPY, correlation.compiled()):
        rows, sums = noise(10, size), np.zeros((2, size))
        for fresh in rows:
            loops.decaying(fresh, decays, scales, np.array([2.0**29, 2.0**40]), sums)
        assert size == 0 or np.abs(sums[0]).max() <= 2.0**29
        found.append((rows, sums))
    for one, other in zip(*found, strict=True):
        assert (one == other).all()


def test_rows_that_32_bits_do_not_hold_are_limited():
    for loops in (correlation.IN_NUMPY, correlation.compiled()):
        ring = np.zeros((1, 2), dtype=np.int32)
        fresh = np.array([2.0**40, -(2.0**40)])
        loops.bands(fresh, np.empty(0), np.empty(0, dtype=np.intp), ring, 0, 4.0)
        assert ring.tolist() == [[2**31 - 1, -(2**31) + 1]]
        assert fresh.tolist() == [2.0**40, -(2.0**40)]


def test_an_error_of_compiled_code_is_noticed():
    class Wrong(correlation.InNumpy):
        def bands(self, noise, coefficients, rows, ring, place, unit):
            super().bands(noise, coefficients * (1 + 2.0**-20), rows, ring, place, unit)

    assert correlation._agrees(correlation.compiled())
    assert not correlation._agrees(Wrong())


def test_short_vectors_need_no_compiler():
    assert correlation.correlation_for(100) is correlation.IN_NUMPY
    assert correlation.correlation_for(10**6) is correlation.compiled()
