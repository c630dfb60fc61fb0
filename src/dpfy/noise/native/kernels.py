"""The loops over the numbers of a step: in numpy, and for long vectors in C, given a compiler.

Both compute the same doubles from the same words, except for the order in which rows are added up.
numpy walks over memory once for each operation, and C once for all of them. Their ``exp`` may
differ by rounding error. Either errs by less than 2⁻⁴⁰ of its value, and points within 2⁻³² of the
curve are compared in more digits, so the sampler accepts the same points.
"""

import ctypes
import math
import threading
from collections.abc import Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpfy.noise import rejection
from dpfy.noise.native.agreement import agree
from dpfy.noise.native.c_types import (
    CNumbers,
    CPast,
    CTable,
    CVector,
    array_of,
    declare,
    numbers_for_c,
    past_for_c,
    table_for_c,
    vector_for_c,
)
from dpfy.noise.native.compiler import IEEE, Compilation, compilations, loaded
from dpfy.noise.native.openmp import openmp_threads
from dpfy.noise.native.openssl import Cipher, cipher
from dpfy.noise.past import Past
from dpfy.noise.random_stream import Parts
from dpfy.noise.rejection_table import CELL_BITS, Floats, RejectionTable, rejection_table
from dpfy.noise.vector import Integers, Steps, Vector, whole_steps

Flags = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]
Singles = npt.NDArray[np.float32]

LARGE = 1 << 16  # values for which calling a compiler pays within some hundred vectors
_SOURCE = Path(__file__).with_name("kernels.c")
_OPTIONS = (*IEEE, "-ffp-contract=off")  # no operation is fused or reordered


class Kernels(Protocol):
    """The loops over all numbers of a step; none of them blocks other threads."""

    @property
    def threads(self) -> int:
        """The number of threads that a loop runs on, including the calling one."""

    def draw(self, buffer: Floats, spread: float, parts: Parts) -> Floats:
        """Fill ``buffer`` with the cells of independent reals from N(0, spread²), and return it."""

    def draw_steps(self, buffer: Integers, spread: float, cells: float, parts: Parts) -> Steps:
        """Return what ``draw`` draws in steps of the lattice, of so many cells, in ``buffer``."""

    def add(self, vector: Vector, start: int, noise: Floats) -> None:
        """Add noise, which may be overwritten, to the coordinates from ``start`` on.

        The noise of a vector with a past is correlated with it first, here and below.
        """

    def add_steps(self, vector: Vector, start: int, steps: Steps) -> None:
        """Add noise in steps to the coordinates from ``start`` on."""

    def draw_and_add(
        self, vector: Vector, start: int, buffer: Floats, spread: float, parts: Parts
    ) -> None:
        """Add the noise that ``draw`` would fill ``buffer`` with, which may be overwritten."""

    def totals(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Return for each tensor the sum of its memory, contiguous, as numbers of 32 bits."""

    def are_finite(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether no number of contiguous float32 tensors is infinite or NaN."""

    def measure(self, rows: Singles) -> Floats:
        """Return the squared norms [blocks, rows], in float64, of rows [blocks, rows, numbers]."""

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """Return the sums [blocks, numbers] of the chosen rows times their weights, in float64."""


class InNumpy:
    """Kernels that call numpy for each operation: the reference, available everywhere."""

    threads = 1

    def draw(self, buffer: Floats, spread: float, parts: Parts) -> Floats:
        """See :class:`Kernels`."""
        rejection.draw_parts(buffer, spread, parts, rejection.part_numbers(len(buffer)))
        return buffer

    def draw_steps(self, buffer: Integers, spread: float, cells: float, parts: Parts) -> Steps:
        """See :class:`Kernels`."""
        return whole_steps(self.draw(_scratch(len(buffer)), spread, parts), cells, buffer)

    def add(self, vector: Vector, start: int, noise: Floats) -> None:
        """See :class:`Kernels`."""
        vector.add(start, noise)

    def add_steps(self, vector: Vector, start: int, steps: Steps) -> None:
        """See :class:`Kernels`."""
        vector.add_steps(start, steps)

    def draw_and_add(
        self, vector: Vector, start: int, buffer: Floats, spread: float, parts: Parts
    ) -> None:
        """See :class:`Kernels`."""
        self.add(vector, start, self.draw(buffer, spread, parts))

    def totals(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """See :class:`Kernels`."""
        # numpy widens while it adds; torch makes a wide copy first, which takes four times as long
        patterns = (tensor.view(-1).view(torch.int32).numpy() for tensor in tensors)
        return [int(numbers.sum(dtype=np.int64)) for numbers in patterns]

    def are_finite(self, tensors: Sequence[torch.Tensor]) -> bool:
        """See :class:`Kernels`."""
        # both are NaN if there is one
        ends = (torch.aminmax(tensor) for tensor in tensors if tensor.numel())
        return all(math.isfinite(low) and math.isfinite(high) for low, high in ends)

    def measure(self, rows: Singles) -> Floats:
        """See :class:`Kernels`."""
        found = torch.linalg.vector_norm(
            torch.from_numpy(rows), dim=2, dtype=torch.float64
        )  # numpy is far slower
        return found.square().numpy()

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """See :class:`Kernels`."""
        return (torch.from_numpy(weights) @ torch.from_numpy(rows[:, chosen]).double()).numpy()


class InC:
    """Kernels that walk over memory once: ``kernels.c``, compiled for this process.

    They run on the calling thread, or, from :meth:`shared`, on all threads that torch uses.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        size, floats, vector = ctypes.c_ssize_t, array_of(np.float64), ctypes.POINTER(CVector)
        self._curve = declare(library.curve, None, ctypes.c_double, floats, floats)
        self._add = declare(library.add, None, vector, size, floats)
        self._draw = declare(
            library.draw,
            None,
            Cipher,
            ctypes.c_char_p,
            ctypes.POINTER(CTable),
            floats,
            vector,
            size,
            array_of(np.bool_),
        )
        self._correlate = declare(library.correlate, None, ctypes.POINTER(CPast), size, floats)
        integers = array_of(np.int32)
        self._add_steps = declare(
            library.add_steps,
            None,
            *(vector, size, integers, ctypes.c_double, size, integers, floats),
        )
        self._draw_steps = declare(
            library.draw_steps,
            size,
            *(Cipher, ctypes.c_char_p, ctypes.POINTER(CTable), ctypes.c_double),
            *(integers, integers, floats, array_of(np.bool_)),
        )
        numbers, found = ctypes.POINTER(CNumbers), ctypes.POINTER(ctypes.c_int64)
        self._totals = declare(library.totals, None, numbers, found)
        self._are_finite = declare(library.are_finite, ctypes.c_int, numbers)
        self._measure = declare(
            library.measure, None, size, array_of(np.float32, 3), array_of(np.float64, 2)
        )
        self._weigh = declare(
            library.weigh,
            None,
            size,
            size,
            array_of(np.float32, 3),
            size,
            array_of(np.intp),
            floats,
            array_of(np.float64, 2),
        )
        self._cipher = cipher()
        self._openmp: tuple[int | None, int] = (None, 1)
        self._lent: InC | None = None  # the same on torch's threads, as they were last

    @property
    def threads(self) -> int:
        """See :class:`Kernels`."""
        parallel, threads = self._openmp
        return 1 if parallel is None else threads

    def shared(self) -> "InC":
        """Return the same kernels on all of torch's threads."""
        lent = openmp_threads()
        if self._lent is None or self._lent._openmp != lent:
            self._lent = copy(self)
            self._lent._openmp, self._lent._lent = lent, None
        return self._lent

    def draw(self, buffer: Floats, spread: float, parts: Parts) -> Floats:
        """See :class:`Kernels`."""
        rejection.draw_parts(buffer, spread, parts, self._draw_most(buffer, spread, parts))
        return buffer

    def draw_steps(self, buffer: Integers, spread: float, cells: float, parts: Parts) -> Steps:
        """See :class:`Kernels`."""
        # one call: the thread that draws ahead shares the interpreter with the one that trains
        left, source, far = _all_parts(len(buffer)), self._source(spread, parts), 0
        places, rests = np.empty(len(buffer) + 1, dtype=np.int32), np.empty(len(buffer) + 1)
        if source is not None:
            far = self._draw_steps(
                *self._openmp, len(buffer), *source, cells, buffer, places, rests, left
            )
        drawn = Steps(buffer, cells, places[:far].copy(), rests[:far].copy())
        return drawn.completed(
            (number * rejection.PART, rejection.draw_part(len(buffer), number, spread, parts))
            for number in np.flatnonzero(left).tolist()
        )

    def add(self, vector: Vector, start: int, noise: Floats) -> None:
        """See :class:`Kernels`."""
        if (target := vector_for_c(vector)) is None:
            vector.add(start, noise, self.correlate)
        else:
            self._add(*self._openmp, len(noise), target, start, noise)

    def add_steps(self, vector: Vector, start: int, steps: Steps) -> None:
        """See :class:`Kernels`."""
        if (target := vector_for_c(vector)) is None:
            vector.add_steps(start, steps, self.correlate)
            return
        far = len(steps.places), steps.places, steps.rests
        count = len(steps.low)
        self._add_steps(*self._openmp, count, target, start, steps.low, steps.cells, *far)

    def draw_and_add(
        self, vector: Vector, start: int, buffer: Floats, spread: float, parts: Parts
    ) -> None:
        """See :class:`Kernels`."""
        if (target := vector_for_c(vector)) is None:
            vector.add(start, self.draw(buffer, spread, parts), self.correlate)
            return
        left, source = _all_parts(len(buffer)), self._source(spread, parts)
        if source is not None:
            self._draw(*self._openmp, len(buffer), *source, buffer, target, start, left)
        for number in np.flatnonzero(left).tolist():
            rejection.draw_parts(buffer, spread, parts, [number])
            vector.add(start + number * rejection.PART, rejection.part_of(buffer, number))

    def correlate(self, past: Past, start: int, noise: Floats) -> None:
        """Do what :meth:`dpfy.noise.past.Past.correlate` does."""
        self._correlate(*self._openmp, len(noise), past_for_c(past), start, noise)

    def _draw_most(self, buffer: Floats, spread: float, parts: Parts) -> list[int]:
        """Draw into a buffer, and return the numbers of the parts that are left: one in 1000.

        These need digits that float64 does not have, or points from the tail.
        """
        left, source = _all_parts(len(buffer)), self._source(spread, parts)
        if source is not None:
            self._draw(*self._openmp, len(buffer), *source, buffer, None, 0, left)
        return np.flatnonzero(left).tolist()

    def _source(self, spread: float, parts: Parts) -> tuple[Any, bytes, CTable] | None:
        """Return the cipher, its key and the table to draw from, or None if there is no cipher."""
        key = parts.aes_key
        if key is None or self._cipher is None:
            return None
        return self._cipher, key, table_for_c(rejection_table(spread))

    def curve(self, point: Floats, table: RejectionTable) -> Floats:
        """Return the height of the curve at each point, as C computes it."""
        self._curve(
            *self._openmp,
            len(point),
            table.spread * 2.0**CELL_BITS,
            point,
            found := np.empty(len(point)),
        )
        return found

    def totals(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """See :class:`Kernels`."""
        sums = (ctypes.c_int64 * len(tensors))()
        self._totals(*self._openmp, len(tensors), numbers_for_c(tensors), sums)
        return [*sums]

    def are_finite(self, tensors: Sequence[torch.Tensor]) -> bool:
        """See :class:`Kernels`."""
        return bool(self._are_finite(*self._openmp, len(tensors), numbers_for_c(tensors)))

    def measure(self, rows: Singles) -> Floats:
        """See :class:`Kernels`."""
        blocks, count, width = rows.shape
        self._measure(
            *self._openmp, blocks * count, width, rows, squares := np.empty((blocks, count))
        )
        return squares

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """See :class:`Kernels`."""
        blocks, count, width = rows.shape
        self._weigh(
            *self._openmp,
            blocks,
            count,
            width,
            rows,
            len(chosen),
            chosen,
            weights,
            totals := np.empty((blocks, width)),
        )
        return totals


IN_NUMPY = InNumpy()
_own = threading.local()


def _scratch(count: int) -> Floats:
    """Return memory for ``count`` numbers that this thread uses again."""
    if len(getattr(_own, "scratch", ())) < count:
        _own.scratch = np.empty(count)
    scratch: Floats = _own.scratch[:count]
    return scratch


_begun: list[Compilation] = []  # ahead of the first use, one at most


def kernels_for(count: int, shared: bool = False, wait: bool = True) -> Kernels:
    """Return the kernels for a vector of ``count`` values; the choice changes no result.

    ``shared`` ones use all threads of torch, which must be idle or looking for work. Without
    ``wait`` they are those of numpy while the compiler is still at work.
    """
    waits = any(compilation.is_running for compilation in _begun)
    found = None if count < LARGE or (waits and not wait) else compiled()
    return IN_NUMPY if found is None else found.shared() if shared else found


def compile_ahead(count: int) -> None:
    """Start the compiler if a vector of ``count`` values needs it; ``kernels_for`` waits for it.

    It runs in a process of its own while this one has other things to do.
    """
    if count >= LARGE and not _begun and not compiled.cache_info().currsize:
        _begun.extend(compilations(_SOURCE, _OPTIONS))


@cache
def compiled() -> InC | None:
    """Compile ``kernels.c`` and return its kernels, or None if that fails.

    See :mod:`dpfy.noise.native.compiler`.
    """
    return loaded(_begun, _SOURCE, _OPTIONS, InC, lambda kernels: agree(kernels, IN_NUMPY))


def _all_parts(count: int) -> Flags:
    """Return a flag for each part of a vector: it is left to Python until C has drawn it."""
    return np.ones(len(rejection.part_numbers(count)), dtype=np.bool_)
