"""The loops over the numbers of a step: in numpy, and in C for long vectors where there is a compiler.

Both compute the same doubles from the same words, but for the order in which rows are added up; numpy walks over memory
once for each operation, and C once for all. Their ``exp`` may differ in the last bits. Either errs by less than 2⁻⁴⁰ of
its value, and what is closer to the curve than 2⁻³² of it is judged in more digits: the verdicts are the same.
"""

import ctypes
import os
import shlex
import subprocess
from copy import copy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpfy.mechanisms.noise.cover import CELL_BITS, RECTANGLES, Cover, Floats, cover
from dpfy.mechanisms.noise.lattice import add_on_lattice, far_from_zero
from dpfy.mechanisms.noise.team import torchs_threads

Flags = npt.NDArray[np.bool_]
Heights = npt.NDArray[np.int64]
Integers = npt.NDArray[np.int32]
Positions = npt.NDArray[np.intp]
Rectangles = npt.NDArray[np.uint16]
Singles = npt.NDArray[np.float32]

LARGE = 1 << 18  # values for which calling a compiler pays within some hundred vectors
_SOURCE = Path(__file__).with_name("kernels.c")
# No operation is fused or reordered, whatever CC says before. Loading code that was linked for unsafe mathematics would
# even have denormal numbers taken for zero in all that this thread computes.
_OPTIONS = ("-std=c11", "-O3", "-fno-fast-math", "-fno-unsafe-math-optimizations", "-fno-associative-math",
            "-ffp-contract=off", "-fPIC", "-shared")
_TESTED = 4096  # values on which a compiler shows that it understood
_CLOSE = 2.0**-38  # of the curve: points that are so near are told apart by an exp that errs by less


class Kernels(Protocol):
    """What is done with every number; none of it keeps other threads from running."""

    @property
    def threads(self) -> int:
        """On how many threads, this one among them."""

    def propose(self, place: Integers, rectangle: Rectangles, bell: Cover, out: Floats) -> Positions:
        """Fill ``out`` with points, given by their rectangles and places, and return where it is uncertain."""

    def judge(self, position: Positions, out: Floats, rectangle: Rectangles, height: Heights, bell: Cover,
              margin: float) -> tuple[Flags, Positions]:
        """Return which of the points at ``position`` are above the curve, and which are within ``margin`` of it."""

    def add(self, values: Floats, noise: Floats, unit: float, grid: float) -> None:
        """Add ``unit · noise`` on the lattice, in place; ``noise`` may be overwritten."""

    def release(self, sums: Floats | Singles, noise: Floats, unit: float, grid: float, factor: float,
                out: Singles) -> None:
        """Do the same, and round ``factor`` times the result to float32.

        Sums in float32 stay as they are, unless ``out`` is their memory.
        """

    def total(self, numbers: Integers) -> int:
        """Return the sum."""

    def measure(self, rows: Singles) -> Floats:
        """Return the squared norms [blocks, rows] of all rows [blocks, rows, numbers], added up in float64."""

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """Return the sums [blocks, numbers] of the chosen rows times their weights, in float64."""


class InNumpy:
    """One call for each operation: available everywhere, and what the other has to agree with."""

    threads = 1

    def propose(self, place: Integers, rectangle: Rectangles, bell: Cover, out: Floats) -> Positions:
        """See :class:`Kernels`."""
        torch.index_select(torch.from_numpy(bell.middle), 0, torch.from_numpy(rectangle.astype(np.int32)),
                           out=torch.from_numpy(out))  # numpy would make indices of 64 bits first
        out += place
        return np.flatnonzero(rectangle >= bell.certain)

    def judge(self, position: Positions, out: Floats, rectangle: Rectangles, height: Heights, bell: Cover,
              margin: float) -> tuple[Flags, Positions]:
        """See :class:`Kernels`."""
        y = (bell.level[rectangle[position] - np.uint16(bell.certain)] + height * 2.0**-64) * bell.height
        curve = np.exp(-0.5 * np.square(out[position] / (bell.spread * 2.0**CELL_BITS)))
        return y > curve, np.flatnonzero(np.abs(y - curve) <= margin * curve)

    def add(self, values: Floats, noise: Floats, unit: float, grid: float) -> None:
        """See :class:`Kernels`."""
        add_on_lattice(values, noise, unit, grid)

    def release(self, sums: Floats | Singles, noise: Floats, unit: float, grid: float, factor: float,
                out: Singles) -> None:
        """See :class:`Kernels`."""
        with np.errstate(all="ignore"):  # what is too large becomes infinite, as everywhere in training
            values = add_on_lattice(sums.astype(np.float64, copy=False), noise, unit, grid)
            np.multiply(values, factor, out=out, dtype=np.float64, casting="same_kind")

    def total(self, numbers: Integers) -> int:
        """See :class:`Kernels`."""
        return int(numbers.sum(dtype=np.int64))

    def measure(self, rows: Singles) -> Floats:
        """See :class:`Kernels`."""
        found = torch.linalg.vector_norm(torch.from_numpy(rows), dim=2, dtype=torch.float64)  # numpy is far slower
        return found.square().numpy()

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """See :class:`Kernels`."""
        return (torch.from_numpy(weights) @ torch.from_numpy(rows[:, chosen]).double()).numpy()


class InC:
    """One pass for each step: ``kernels.c``, compiled here; on the calling thread, or on all that torch uses."""

    def __init__(self, library: ctypes.CDLL) -> None:
        size, integer, real = ctypes.c_ssize_t, ctypes.c_int32, ctypes.c_double
        floats, singles, positions, integers, rectangles = map(
            _pointer, (np.float64, np.float32, np.intp, np.int32, np.uint16))
        self._propose = _function(library.propose, size, integers, rectangles, _pointer(np.int16), integer, floats,
                                  positions)
        self._judge = _function(library.judge, size, positions, floats, rectangles, _pointer(np.int64), floats, integer,
                                real, real, real, _pointer(np.bool_), positions)
        self._add = _function(library.add_on_lattice, None, floats, floats, real, real)
        self._release = _function(library.release, None, floats, floats, real, real, real, singles)
        self._release_singles = _function(library.release_singles, None, singles, floats, real, real, real, singles)
        self._total = _function(library.total, ctypes.c_int64, integers)
        self._measure = _function(library.measure, None, size, _pointer(np.float32, 3), _pointer(np.float64, 2))
        self._weigh = _function(library.weigh, None, size, size, _pointer(np.float32, 3), size, positions, floats,
                                _pointer(np.float64, 2))
        self._team: tuple[int | None, int] = (None, 1)

    @property
    def threads(self) -> int:
        """See :class:`Kernels`."""
        team, threads = self._team
        return 1 if team is None else threads

    def shared(self) -> "InC":
        """Return the same on all of torch's threads."""
        others = copy(self)
        others._team = torchs_threads()
        return others

    def propose(self, place: Integers, rectangle: Rectangles, bell: Cover, out: Floats) -> Positions:
        """See :class:`Kernels`."""
        position = np.empty(len(out), dtype=np.intp)
        found = self._propose(*self._team, len(out), place, rectangle, bell.column, bell.certain, out, position)
        return position[:found]

    def judge(self, position: Positions, out: Floats, rectangle: Rectangles, height: Heights, bell: Cover,
              margin: float) -> tuple[Flags, Positions]:
        """See :class:`Kernels`."""
        above, close = np.empty(len(position), dtype=np.bool_), np.empty(len(position), dtype=np.intp)
        found = self._judge(*self._team, len(position), position, out, rectangle, height, bell.level, bell.certain,
                            bell.spread * 2.0**CELL_BITS, bell.height, margin, above, close)
        return above, close[:found]

    def add(self, values: Floats, noise: Floats, unit: float, grid: float) -> None:
        """See :class:`Kernels`."""
        if values.flags.carray:
            self._add(*self._team, len(values), values, noise, unit, far_from_zero(grid))
        else:
            add_on_lattice(values, noise, unit, grid)

    def release(self, sums: Floats | Singles, noise: Floats, unit: float, grid: float, factor: float,
                out: Singles) -> None:
        """See :class:`Kernels`."""
        function = self._release_singles if sums.dtype == np.float32 else self._release
        function(*self._team, len(sums), sums, noise, unit, far_from_zero(grid), factor, out)

    def total(self, numbers: Integers) -> int:
        """See :class:`Kernels`."""
        return int(self._total(*self._team, len(numbers), numbers))

    def measure(self, rows: Singles) -> Floats:
        """See :class:`Kernels`."""
        blocks, count, width = rows.shape
        self._measure(*self._team, blocks * count, width, rows, squares := np.empty((blocks, count)))
        return squares

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """See :class:`Kernels`."""
        blocks, count, width = rows.shape
        self._weigh(*self._team, blocks, count, width, rows, len(chosen), chosen, weights,
                    totals := np.empty((blocks, width)))
        return totals


IN_NUMPY = InNumpy()


def kernels_for(count: int, shared: bool = False) -> Kernels:
    """Return the kernels for a vector of ``count`` values; it changes the time that it takes and nothing else.

    ``shared`` ones use all threads of torch, which must be idle or looking out for work.
    """
    found = None if count < LARGE else compiled()
    return IN_NUMPY if found is None else found.shared() if shared else found


@cache
def compiled() -> InC | None:
    """Return what the compiler ``cc``, or the one that the variable ``CC`` names, makes of ``kernels.c``, if it works.

    It is made anew in every process, in a quarter of a second: no file is left that somebody else could replace.
    """
    try:
        compiler = shlex.split(os.environ.get("CC", "cc"))
        with TemporaryDirectory(prefix="dpfy-") as folder:
            target = str(Path(folder, "kernels.so"))
            subprocess.run([*compiler, *_OPTIONS, str(_SOURCE), "-o", target, "-lm"], check=True, timeout=60,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            kernels = InC(ctypes.CDLL(target))  # it stays in memory when the file is gone
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError):
        return None
    return kernels if _agree(kernels, IN_NUMPY) else None


def _agree(kernels: Kernels, others: Kernels) -> bool:
    """Whether both give the same results: a compiler may have been told to reorder sums, which undoes the lattice."""
    words = np.arange(_TESTED, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # evenly spread
    bell, height, place = cover(48.7), words.view(np.int64), (words >> np.uint64(32)).astype(np.uint32).view(np.int32)
    rectangle = (words >> np.uint64(52)).astype(np.uint16) | np.uint16(RECTANGLES - 4096)  # the last ones
    few, middle = np.arange(100), np.linspace(-bell.reach, bell.reach, 100) * 2.0**CELL_BITS
    curve = np.exp(-0.5 * np.square(middle / (bell.spread * 2.0**CELL_BITS)))
    beside = [replace(bell, level=curve * (1 + side) / bell.height) for side in (_CLOSE, -_CLOSE)]
    uncertain, at_level = (few + bell.certain).astype(np.uint16), np.zeros(len(few), dtype=np.int64)

    def results(these: Kernels) -> list[npt.NDArray[Any]]:
        out, values, sums = np.empty(_TESTED), place / 3, place / 3
        position = these.propose(place, rectangle, bell, out)
        verdicts = these.judge(position, out, rectangle, height[:len(position)], bell, 2.0**-8)
        points, released = out.copy(), np.empty((3, _TESTED), dtype=np.float32)
        released[2] = sums * 2.0**-20
        these.add(values, out.copy(), 2.0**-33, 0.5)
        these.release(released[2], out.copy(), 2.0**-33, 0.5, 0.3, released[0])
        these.release(released[2], out.copy(), 2.0**-33, 0.5, 0.3, released[2])  # in the same place
        these.release(sums, out, 2.0**-33, 0.5, 0.3, released[1])
        sides = [these.judge(few, middle, uncertain, at_level, near, 2.0**-32)[0] for near in beside]
        return [points, position, *verdicts, *sides, values, sums, *released, np.array(these.total(place))]

    def in_any_order(these: Kernels) -> list[Floats]:
        rows = (place * 2.0**-20).astype(np.float32).reshape(2, -1, 64)
        return [these.measure(rows), these.weigh(rows, few[:9], curve[:9] + 1)]

    return all(map(np.array_equal, results(kernels), results(others))) and \
        all(map(partial(np.allclose, rtol=2.0**-40), in_any_order(kernels), in_any_order(others)))


def _pointer(dtype: npt.DTypeLike, dimensions: int = 1) -> Any:
    """Return the type of an argument: an array of this type without gaps; numpy's own leaves cyclic garbage behind."""
    class Pointer:
        @staticmethod
        def from_param(array: npt.NDArray[Any]) -> ctypes.c_void_p:
            if array.dtype != dtype or array.ndim != dimensions or not array.flags.carray:
                raise TypeError(f"Expected {dimensions} dimensions of {np.dtype(dtype)} without gaps, got {array.ndim} "
                                f"of {array.dtype}.")
            return ctypes.c_void_p(array.__array_interface__["data"][0])

    return Pointer


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    """Declare a function that is given a team, a number of threads, a number of values, and then its arguments."""
    function.restype, function.argtypes = result, (ctypes.c_void_p, ctypes.c_uint, ctypes.c_ssize_t, *arguments)
    return function
