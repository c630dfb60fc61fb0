"""The sums that noise is added to: one vector, which lies in memory as several pieces.

Tests: tests/noise/test_gaussian.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpfy.noise.lattice import add_on_lattice, add_steps
from dpfy.noise.past import Correlate, Past
from dpfy.noise.rejection_table import Floats

Integers = npt.NDArray[np.int32]
_PIECE = 2**14  # numbers that are rounded in one go


class Steps(NamedTuple):
    """Noise in steps of the lattice, in four bytes a number.

    Noise beyond 2³¹ steps, which no more than one number in 15 000 is, has its low 32 bits where
    all others are, and the rest beside them.

    Args:
        low: The low 32 bits of every number.
        cells: The cells of the noise in a step, a power of two.
        places: The places of numbers that have more bits.
        rests: The rest of these numbers, multiples of 2³².
    """

    low: Integers
    cells: float
    places: Integers
    rests: Floats

    def completed(self, parts: Iterable[tuple[int, Floats]]) -> "Steps":
        """Write parts that are missing, each from its first place on, as noise in cells."""
        found = self
        for first, noise in parts:
            own = whole_steps(noise, self.cells, self.low[first : first + len(noise)])
            places = np.concatenate([found.places, own.places + np.int32(first)])
            order = np.argsort(places)
            rests = np.concatenate([found.rests, own.rests])
            found = Steps(self.low, self.cells, places[order], rests[order])
        return found

    def values(self) -> Floats:
        """Return the numbers."""
        found = self.low.astype(np.float64)
        found[self.places] += self.rests
        return found

    def between(self, first: int, last: int) -> "Steps":
        """Return the numbers from ``first`` to before ``last``."""
        if (first, last) == (0, len(self.low)):
            return self
        some = (self.places >= first) & (self.places < last)
        places = self.places[some] - np.int32(first)
        return Steps(self.low[first:last], self.cells, places, self.rests[some])


def whole_steps(noise: Floats, cells: float, low: Integers) -> Steps:
    """Return noise, in cells, rounded to steps of so many; the low bits are written to ``low``.

    There is never a tie: lemma 2 of docs/proofs/lattice-noise.md.
    """
    far = []
    for start in range(0, len(noise), _PIECE):  # numpy makes several arrays of the same length
        part = slice(start, start + _PIECE)
        whole = np.rint(noise[part] / cells)
        low[part] = whole.astype(np.int64).astype(np.int32)  # of a larger number, the low bits
        far.append(start + np.flatnonzero(low[part] != whole))
    places = np.concatenate([[], *far]).astype(np.int32)
    return Steps(low, cells, places, np.rint(noise[places] / cells) - low[places])


@dataclass(frozen=True)
class Piece:
    """Consecutive coordinates of a vector, as a one-dimensional tensor.

    Sums in float64 are overwritten by their noisy values; sums in float32, which float64 holds
    exactly, stay as they are, unless ``out`` is their memory.

    Args:
        begin: The first coordinate.
        sums: The values that noise is added to.
        factor: The public factor of the output.
        out: The tensor that noisy values times the factor are written to, if there is one.
    """

    begin: int
    sums: torch.Tensor
    factor: float = 1.0
    out: torch.Tensor | None = None

    @property
    def end(self) -> int:
        """The coordinate after the last one."""
        return self.begin + self.sums.numel()

    def add(self, where: slice, noise: Floats, unit: float, grid: float) -> None:
        """Add noise, which may be overwritten, to a slice of a piece in the memory of the CPU."""
        values = self.sums[where].double()
        with np.errstate(all="ignore"):  # what is too large becomes infinite, as in training
            add_on_lattice(values.numpy(), noise, unit, grid)
        self._write(where, values)

    def add_steps(self, where: slice, steps: torch.Tensor, grid: float) -> None:
        """Add noise in steps of the lattice, in float64, to a slice of a piece on any device."""
        values = self.sums[where].double()
        self._write(where, add_steps(values, steps, grid))

    def _write(self, where: slice, values: torch.Tensor) -> None:
        """Write noisy values times the factor to the output."""
        if self.out is not None:
            self.out[where].copy_(values * self.factor)


@dataclass(frozen=True, eq=False)
class Vector:
    """Pieces of one vector, in order.

    Args:
        pieces: The pieces; each begins where the last one ends.
        unit: The unit of the noise.
        grid: The step of the lattice on which results are.
        past: What the noise is correlated with, on its way to the sums; None for nothing.
    """

    pieces: Sequence[Piece]
    unit: float
    grid: float
    past: Past | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """Return the number of coordinates."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def is_cpu(self) -> bool:
        """Whether all pieces are in the memory of the CPU."""
        return all(piece.sums.is_cpu for piece in self.pieces)

    def add(self, start: int, noise: Floats, correlate: Correlate = Past.correlate) -> None:
        """Add noise, which may be overwritten, to the coordinates from ``start`` on."""
        if self.past is not None:
            noise *= self.unit / self.grid
            self._add_row(start, np.rint(noise, out=noise), correlate)
            return
        if not self.is_cpu:
            low = np.empty(len(noise), dtype=np.int32)
            self.add_steps(start, whole_steps(noise, self.grid / self.unit, low))
            return
        for piece, first, last in self._pieces(start, len(noise)):
            where = slice(first - piece.begin, last - piece.begin)
            piece.add(where, noise[first - start : last - start], self.unit, self.grid)

    def add_steps(self, start: int, steps: Steps, correlate: Correlate = Past.correlate) -> None:
        """Add noise in steps to the coordinates from ``start`` on."""
        if self.past is not None:
            self._add_row(start, steps.values(), correlate)
            return
        found = self._pieces(start, len(steps.low))
        for device, some in groupby(found, lambda each: each[0].sums.device):
            here = [*some]
            begin, end = here[0][1], here[-1][2]  # one copy serves all pieces of a device
            whole = _steps_on(device, steps.between(begin - start, end - start))
            for piece, first, last in here:
                where = slice(first - piece.begin, last - piece.begin)
                piece.add_steps(where, whole[first - begin : last - begin], self.grid)

    def _add_row(self, start: int, fresh: Floats, correlate: Correlate) -> None:
        """Correlate fresh noise, in whole steps, with the past, and add the result."""
        assert self.past is not None
        correlate(self.past, start, fresh)
        replace(self, unit=self.grid, past=None).add(start, fresh)

    def _pieces(self, start: int, count: int) -> list[tuple[Piece, int, int]]:
        """Return the pieces that have some of ``count`` coordinates, the first, and the end."""
        return [
            (piece, first, last)
            for piece in self.pieces
            if (first := max(start, piece.begin)) < (last := min(start + count, piece.end))
        ]


def _steps_on(device: torch.device, steps: Steps) -> torch.Tensor:
    """Return noise on a device, in float64 and in steps; it is copied in four bytes a number."""
    whole = torch.from_numpy(steps.low).to(device, non_blocking=True).double()
    if len(steps.places):
        places = torch.from_numpy(steps.places).to(device)
        rests = torch.from_numpy(steps.rests.astype(np.float32))  # a few times 2³²
        whole[places] += rests.to(device).double()
    return whole
