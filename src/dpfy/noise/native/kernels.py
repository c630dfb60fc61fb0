"""The loops over the numbers of a step: in numpy, and in C for long vectors where there is a
compiler.

Both compute the same doubles from the same words, but for the order in which rows are added up;
numpy walks over memory once for each operation, and C once for all. Their ``exp`` may differ in the
last bits. Either errs by less than 2⁻⁴⁰ of its value, and what is closer to the curve than 2⁻³² of
it is judged in more digits: the verdicts are the same.
"""

import ctypes
import os
import shlex
import subprocess
from copy import copy
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from dpfy.noise import rejection
from dpfy.noise.lattice import far_from_zero
from dpfy.noise.native.openmp import torchs_threads
from dpfy.noise.native.openssl import Cipher, cipher
from dpfy.noise.random_stream import Parts
from dpfy.noise.rejection_table import CELL_BITS, RECTANGLES, Cover, Floats, cover
from dpfy.noise.vector import Piece, Vector

Integers = npt.NDArray[np.int32]
Positions = npt.NDArray[np.intp]
Singles = npt.NDArray[np.float32]

LARGE = 1 << 16  # values for which calling a compiler pays within some hundred vectors
_SOURCE = Path(__file__).with_name("kernels.c")
# No operation is fused or reordered, whatever CC says before. Loading code that was linked for
# unsafe mathematics would even have denormal numbers taken for zero in all that this thread
# computes.
_OPTIONS = (
    "-std=c11",
    "-O3",
    "-fno-fast-math",
    "-fno-unsafe-math-optimizations",
    "-fno-associative-math",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
)
_TESTED = rejection.PART + 4096  # values on which a compiler shows that it understood
_CLOSE = (
    2.0**-38
)  # of the curve: by so much the two ways to compute it may differ, far less than cells.MARGIN


class Kernels(Protocol):
    """What is done with every number; none of it keeps other threads from running."""

    @property
    def threads(self) -> int:
        """On how many threads, this one among them."""

    def draw(self, room: Floats, spread: float, parts: Parts) -> Floats:
        """Fill ``room`` with the cells of independent reals from N(0, spread²), and return it."""

    def add(self, vector: Vector, start: int, noise: Floats) -> None:
        """Add noise to the coordinates from ``start`` on; it may be overwritten."""

    def draw_and_add(
        self, vector: Vector, start: int, room: Floats, spread: float, parts: Parts
    ) -> None:
        """Add the noise that ``draw`` would fill ``room`` with, which it may do."""

    def total(self, numbers: Integers) -> int:
        """Return the sum."""

    def measure(self, rows: Singles) -> Floats:
        """Return the squared norms [blocks, rows] of all rows [blocks, rows, numbers], added up in
        float64.
        """

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """Return the sums [blocks, numbers] of the chosen rows times their weights, in float64."""


class InNumpy:
    """One call for each operation: available everywhere, and what the other has to agree with."""

    threads = 1

    def draw(self, room: Floats, spread: float, parts: Parts) -> Floats:
        """See :class:`Kernels`."""
        rejection.draw_parts(room, spread, parts, rejection.numbers_of(len(room)))
        return room

    def add(self, vector: Vector, start: int, noise: Floats) -> None:
        """See :class:`Kernels`."""
        vector.add(start, noise)

    def draw_and_add(
        self, vector: Vector, start: int, room: Floats, spread: float, parts: Parts
    ) -> None:
        """See :class:`Kernels`."""
        self.add(vector, start, self.draw(room, spread, parts))

    def total(self, numbers: Integers) -> int:
        """See :class:`Kernels`."""
        return int(numbers.sum(dtype=np.int64))

    def measure(self, rows: Singles) -> Floats:
        """See :class:`Kernels`."""
        found = torch.linalg.vector_norm(
            torch.from_numpy(rows), dim=2, dtype=torch.float64
        )  # numpy is far slower
        return found.square().numpy()

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """See :class:`Kernels`."""
        return (torch.from_numpy(weights) @ torch.from_numpy(rows[:, chosen]).double()).numpy()


class _Bell(ctypes.Structure):
    _fields_ = [
        ("column", ctypes.c_void_p),
        ("level", ctypes.c_void_p),
        ("stddev", ctypes.c_double),
        ("unit", ctypes.c_double),
        ("margin", ctypes.c_double),
        ("tail", ctypes.c_int64),
        ("certain", ctypes.c_int32),
        ("last", ctypes.c_int32),
    ]


class _Piece(ctypes.Structure):
    _fields_ = [
        ("begin", ctypes.c_ssize_t),
        ("end", ctypes.c_ssize_t),
        ("values", ctypes.c_void_p),
        ("singles", ctypes.c_void_p),
        ("factor", ctypes.c_double),
        ("out", ctypes.c_void_p),
    ]


class _Vector(ctypes.Structure):
    _fields_ = [
        ("piece", ctypes.POINTER(_Piece)),
        ("pieces", ctypes.c_ssize_t),
        ("unit", ctypes.c_double),
        ("far", ctypes.c_double),
    ]


class InC:
    """One pass over memory: ``kernels.c``, compiled here; on the calling thread, or on all that
    torch uses.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        size, floats, vector = ctypes.c_ssize_t, _pointer(np.float64), ctypes.POINTER(_Vector)
        self._curve = _function(library.curve, None, ctypes.c_double, floats, floats)
        self._add = _function(library.add, None, vector, size, floats)
        self._draw = _function(
            library.draw,
            None,
            Cipher,
            ctypes.c_char_p,
            ctypes.POINTER(_Bell),
            floats,
            vector,
            size,
            _pointer(np.bool_),
        )
        self._total = _function(library.total, ctypes.c_int64, _pointer(np.int32))
        self._measure = _function(
            library.measure, None, size, _pointer(np.float32, 3), _pointer(np.float64, 2)
        )
        self._weigh = _function(
            library.weigh,
            None,
            size,
            size,
            _pointer(np.float32, 3),
            size,
            _pointer(np.intp),
            floats,
            _pointer(np.float64, 2),
        )
        self._cipher = cipher()
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

    def draw(self, room: Floats, spread: float, parts: Parts) -> Floats:
        """See :class:`Kernels`."""
        rejection.draw_parts(room, spread, parts, self._draw_most(room, spread, parts))
        return room

    def add(self, vector: Vector, start: int, noise: Floats) -> None:
        """See :class:`Kernels`."""
        if (structure := _structure(vector)) is None:
            vector.add(start, noise)
        else:
            self._add(*self._team, len(noise), structure, start, noise)

    def draw_and_add(
        self, vector: Vector, start: int, room: Floats, spread: float, parts: Parts
    ) -> None:
        """See :class:`Kernels`."""
        if (structure := _structure(vector)) is None:
            vector.add(start, self.draw(room, spread, parts))
            return
        for number in self._draw_most(room, spread, parts, structure, start):
            rejection.draw_parts(room, spread, parts, [number])
            vector.add(start + number * rejection.PART, rejection.part_of(room, number))

    def _draw_most(
        self,
        room: Floats,
        spread: float,
        parts: Parts,
        vector: _Vector | None = None,
        start: int = 0,
    ) -> list[int]:
        """Draw into a room, or for a vector instead, and return the numbers of the parts that are
        left: one in 1000.

        These take digits that float64 does not have, or points from the tail. Without a cipher all
        parts are left.
        """
        key, numbers = parts.aes_key, rejection.numbers_of(len(room))
        if key is None or self._cipher is None:
            return list(numbers)
        bell, left = cover(spread), np.ones(len(numbers), dtype=np.bool_)
        law = _Bell(
            _address(bell.column),
            _address(bell.level),
            bell.spread * 2.0**CELL_BITS,
            bell.height,
            rejection.MARGIN,
            rejection.TAIL,
            bell.certain,
            RECTANGLES - 1,
        )
        self._draw(*self._team, len(room), self._cipher, key, law, room, vector, start, left)
        return np.flatnonzero(left).tolist()

    def curve(self, point: Floats, bell: Cover) -> Floats:
        """Return how high it takes the curve to be."""
        self._curve(
            *self._team,
            len(point),
            bell.spread * 2.0**CELL_BITS,
            point,
            found := np.empty(len(point)),
        )
        return found

    def total(self, numbers: Integers) -> int:
        """See :class:`Kernels`."""
        return int(self._total(*self._team, len(numbers), numbers))

    def measure(self, rows: Singles) -> Floats:
        """See :class:`Kernels`."""
        blocks, count, width = rows.shape
        self._measure(
            *self._team, blocks * count, width, rows, squares := np.empty((blocks, count))
        )
        return squares

    def weigh(self, rows: Singles, chosen: Positions, weights: Floats) -> Floats:
        """See :class:`Kernels`."""
        blocks, count, width = rows.shape
        self._weigh(
            *self._team,
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


def kernels_for(count: int, shared: bool = False) -> Kernels:
    """Return the kernels for a vector of ``count`` values; it changes the time that it takes and
    nothing else.

    ``shared`` ones use all threads of torch, which must be idle or looking out for work.
    """
    found = None if count < LARGE else compiled()
    return IN_NUMPY if found is None else found.shared() if shared else found


@cache
def compiled() -> InC | None:
    """Return what the compiler ``cc``, or the one that the variable ``CC`` names, makes of
    ``kernels.c``, if it works.

    It is made anew in every process, in a quarter of a second: no file is left that somebody else
    could replace.
    """
    try:
        compiler = shlex.split(os.environ.get("CC", "cc"))
        with TemporaryDirectory(prefix="dpfy-") as folder:
            target = str(Path(folder, "kernels.so"))
            subprocess.run(
                [*compiler, *_OPTIONS, str(_SOURCE), "-o", target, "-lm"],
                check=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            kernels = InC(ctypes.CDLL(target))  # it stays in memory when the file is gone
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError):
        return None
    return kernels if _agree(kernels, IN_NUMPY) else None


def _agree(kernels: InC, others: InNumpy) -> bool:
    """Whether both give the same results: a compiler may have been told to reorder sums, which
    undoes the lattice.
    """
    bell, parts = cover(48.7), Parts(b"a key for anybody: nothing of it")
    words = parts.stream(0).words(_TESTED).view(np.int32)[:_TESTED]
    middle = np.linspace(-bell.reach, bell.reach, 100) * 2.0**CELL_BITS

    def results(these: Kernels) -> list[npt.NDArray[Any]]:
        sums = torch.from_numpy(words / 3)
        released = (sums * 2.0**-20).float().repeat(3, 1)
        values, ends = torch.stack([sums] * 3), (1000, _TESTED)
        noise = these.draw(np.empty(_TESTED), bell.spread, parts)
        for each in (
            Piece(0, values[0]),
            Piece(0, values[1], 0.3, released[0]),
            Piece(0, released[1], 0.3, released[1]),
            Piece(0, released[1], 0.3, released[2]),
        ):
            these.add(Vector([each], 2.0**-33, 0.5), 0, noise.copy())
        two = [
            Piece(begin, values[2, begin:end]) for begin, end in zip((0, *ends), ends, strict=False)
        ]
        these.draw_and_add(Vector(two, 2.0**-33, 0.5), 0, np.empty(_TESTED), bell.spread, parts)
        return [noise, values.numpy(), released.numpy(), np.array(these.total(words))]

    def in_any_order(these: Kernels) -> list[Floats]:
        rows = (words[:4096] * 2.0**-20).astype(np.float32).reshape(2, -1, 64)
        return [these.measure(rows), these.weigh(rows, np.arange(9), np.linspace(1.0, 2.0, 9))]

    return (
        all(map(np.array_equal, results(kernels), results(others)))
        and all(
            map(partial(np.allclose, rtol=2.0**-40), in_any_order(kernels), in_any_order(others))
        )
        and np.allclose(
            kernels.curve(middle, bell), rejection.curve_at(middle, bell), rtol=_CLOSE, atol=0
        )
    )


def _structure(vector: Vector) -> _Vector | None:
    """Return how C sees a vector, if all of it is in memory without gaps; it lives no longer than
    the tensors.
    """
    if not all(map(_is_plain, vector.pieces)):
        return None
    pieces = [
        _Piece(
            piece.begin,
            piece.end,
            None if single else piece.sums.data_ptr(),
            piece.sums.data_ptr() if single else None,
            piece.factor,
            None if piece.out is None else piece.out.data_ptr(),
        )
        for piece in vector.pieces
        for single in [piece.sums.dtype == torch.float32]
    ]
    return _Vector(
        (_Piece * len(pieces))(*pieces), len(pieces), vector.unit, far_from_zero(vector.grid)
    )


def _is_plain(piece: Piece) -> bool:
    sums, out = piece.sums, piece.out
    if out is None:
        return sums.dtype == torch.float64 and _is_in_memory(sums)
    return (
        sums.dtype in (torch.float64, torch.float32)
        and out.dtype == torch.float32
        and _is_in_memory(sums)
        and _is_in_memory(out)
    )


def _is_in_memory(numbers: torch.Tensor) -> bool:
    return numbers.is_cpu and numbers.is_contiguous()


def _address(array: npt.NDArray[Any]) -> int:
    """Return where an array without gaps begins; numpy's own way leaves cyclic garbage behind."""
    address: int = array.__array_interface__["data"][0]
    return address


def _pointer(dtype: npt.DTypeLike, dimensions: int = 1) -> Any:
    """Return the type of an argument: an array of this type without gaps."""

    class Pointer:
        @staticmethod
        def from_param(array: npt.NDArray[Any]) -> ctypes.c_void_p:
            if array.dtype != dtype or array.ndim != dimensions or not array.flags.carray:
                raise TypeError(
                    f"Expected {dimensions} dimensions of {np.dtype(dtype)} without gaps, got "
                    f"{array.ndim} of {array.dtype}."
                )
            return ctypes.c_void_p(_address(array))

    return Pointer


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    """Declare a function that is given a team, a number of threads, a number of values, and then
    its arguments.
    """
    function.restype, function.argtypes = (
        result,
        (ctypes.c_void_p, ctypes.c_uint, ctypes.c_ssize_t, *arguments),
    )
    return function
