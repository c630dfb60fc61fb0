"""The loops that take earlier noise off fresh noise: in numpy, and for long vectors in C.

Both compute the same doubles in the same order. Noise is in steps of its lattice, so that whole
numbers stay whole.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfy.noise.native.c_types import array_of, declare
from dpfy.noise.native.compiler import IEEE, Compilation, compilations, loaded
from dpfy.noise.native.kernels import LARGE, Positions
from dpfy.noise.native.openmp import openmp_threads
from dpfy.noise.random_stream import KeyStream
from dpfy.noise.rejection_table import Floats
from dpfy.noise.vector import Integers

Ring = npt.NDArray[np.int32]

LARGEST = 2**31 - 1
_PIECE = 2**13  # numbers that numpy works on in one go: they stay in the cache
_SOURCE = Path(__file__).with_name("correlation.c")
_OPTIONS = (*IEEE, "-ffp-contract=off")  # no operation is fused or reordered


class Correlation(Protocol):
    """The loops over the noise of one row."""

    def bands(
        self,
        noise: Floats,
        coefficients: Floats,
        rows: Positions,
        ring: Ring,
        place: int,
        unit: float,
    ) -> None:
        """Take Σ coefficient·row off the noise, and note the result at a place of the ring.

        The ring [rows, numbers] is in units of so many steps, a power of two; ``rows`` has the
        places of the rows that count, in the order of ``coefficients``.
        """

    def decaying(
        self, noise: Floats, decays: Floats, scales: Floats, limits: Floats, sums: Floats
    ) -> None:
        """Take Σ scale·sum off the noise, and put decay·sum plus the result into each sum.

        The sums [decays, numbers] are in steps, and within their limits.
        """


class InNumpy:
    """Loops that call numpy for each operation: the reference, available everywhere."""

    def bands(
        self,
        noise: Floats,
        coefficients: Floats,
        rows: Positions,
        ring: Ring,
        place: int,
        unit: float,
    ) -> None:
        """See :class:`Correlation`."""
        for start in range(0, len(noise), _PIECE):
            part = slice(start, start + _PIECE)
            fresh = noise[part]
            total = np.zeros(len(fresh))
            for row, coefficient in zip(rows, coefficients, strict=True):
                total += coefficient * ring[row, part]
            fresh -= np.rint(total * unit)
            ring[place, part] = np.clip(np.rint(fresh / unit), -LARGEST, LARGEST)

    def decaying(
        self, noise: Floats, decays: Floats, scales: Floats, limits: Floats, sums: Floats
    ) -> None:
        """See :class:`Correlation`."""
        for start in range(0, len(noise), _PIECE):
            part = slice(start, start + _PIECE)
            fresh = noise[part]
            total = np.zeros(len(fresh))
            for scale, past in zip(scales, sums[:, part], strict=True):
                total += scale * past
            fresh -= np.rint(total)
            for decay, limit, past in zip(decays, limits, sums[:, part], strict=True):
                past *= decay
                past += fresh
                np.clip(past, -limit, limit, out=past)


class InC:
    """Loops that walk over memory once: ``correlation.c``, compiled for this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        size, floats = ctypes.c_ssize_t, array_of(np.float64)
        self._bands = declare(
            library.bands,
            None,
            *(floats, size, floats, array_of(np.intp)),
            *(array_of(np.int32, 2), size, ctypes.c_double),
        )
        self._decaying = declare(
            library.decaying, None, *(floats, size), *[floats] * 3, array_of(np.float64, 2)
        )

    def bands(
        self,
        noise: Floats,
        coefficients: Floats,
        rows: Positions,
        ring: Ring,
        place: int,
        unit: float,
    ) -> None:
        """See :class:`Correlation`."""
        past = len(rows), coefficients, rows, ring, place, unit
        self._bands(*openmp_threads(), len(noise), noise, *past)

    def decaying(
        self, noise: Floats, decays: Floats, scales: Floats, limits: Floats, sums: Floats
    ) -> None:
        """See :class:`Correlation`."""
        past = len(decays), decays, scales, limits, sums
        self._decaying(*openmp_threads(), len(noise), noise, *past)


IN_NUMPY = InNumpy()
_begun: list[Compilation] = []  # ahead of the first use, one at most


def correlation_for(count: int) -> Correlation:
    """Return the loops for a vector of ``count`` values; the choice changes no result."""
    found = compiled() if count >= LARGE else None
    return IN_NUMPY if found is None else found


def compile_ahead(count: int) -> None:
    """Start the compiler if a vector of ``count`` values needs it; it is waited for later."""
    if count >= LARGE and not _begun and not compiled.cache_info().currsize:
        _begun.extend(compilations(_SOURCE, _OPTIONS))


@cache
def compiled() -> InC | None:
    """Compile ``correlation.c`` and return its loops, or None if that fails or they err.

    See :mod:`dpfy.noise.native.compiler`.
    """
    return loaded(_begun, _SOURCE, _OPTIONS, InC, _agrees)


def _agrees(found: InC) -> bool:
    """Return whether both give the same results; a reordering compiler would break the lattice."""

    def results(these: Correlation) -> list[npt.NDArray[np.float64] | Integers]:
        words = KeyStream(b"a key for anybody: nothing of it").words(4 * 5000).view(np.int64)
        noise = np.rint(words * 2.0**-34).reshape(4, -1)
        ring, sums = np.zeros((2, 5000), dtype=np.int32), np.zeros((2, 5000))
        some, others = noise.copy(), noise.copy()
        for place in range(4):
            rows = np.arange(place - 1, max(place - 3, -1), -1) % 2
            these.bands(some[place], np.array([0.7, -0.3])[: len(rows)], rows, ring, place % 2, 4.0)
            decays, scales, limits = np.array([[0.9, 0.3], [0.2, 0.1], [2.0**28, 2.0**40]])
            these.decaying(others[place], decays, scales, limits, sums)
        return [some, others, ring, sums]

    return all(map(np.array_equal, results(found), results(IN_NUMPY)))
