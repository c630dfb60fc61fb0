"""The sums that noise is added to: one vector, which lies in memory as several pieces.

Tests: tests/noise/test_gaussian.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from dpfy.noise.lattice import add_on_lattice, add_steps
from dpfy.noise.rejection_table import Floats


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
        return self.begin + len(self.sums)

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


@dataclass(frozen=True)
class Vector:
    """Pieces of one vector, in order.

    Args:
        pieces: The pieces; each begins where the last one ends.
        unit: The unit of the noise.
        grid: The step of the lattice on which results are.
    """

    pieces: Sequence[Piece]
    unit: float
    grid: float

    def __len__(self) -> int:
        """Return the number of coordinates."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def is_cpu(self) -> bool:
        """Whether all pieces are in the memory of the CPU."""
        return all(piece.sums.is_cpu for piece in self.pieces)

    def add(self, start: int, noise: Floats) -> None:
        """Add noise, which may be overwritten, to the coordinates from ``start`` on."""
        found = [
            (piece, first, last)
            for piece in self.pieces
            if (first := max(start, piece.begin)) < (last := min(start + len(noise), piece.end))
        ]
        for device, some in groupby(found, lambda each: each[0].sums.device):
            here = [*some]
            if device.type == "cpu":
                for piece, first, last in here:
                    where = slice(first - piece.begin, last - piece.begin)
                    piece.add(where, noise[first - start : last - start], self.unit, self.grid)
                continue
            begin, end = here[0][1], here[-1][2]  # one copy serves all pieces of a device
            steps = steps_on(device, noise[begin - start : end - start], self.unit / self.grid)
            for piece, first, last in here:
                where = slice(first - piece.begin, last - piece.begin)
                piece.add_steps(where, steps[first - begin : last - begin], self.grid)


def steps_on(device: torch.device, noise: Floats, scale: float) -> torch.Tensor:
    """Return noise on a device, in float64 and in steps of the lattice; it is copied in four bytes.

    Noise beyond 2³¹ steps, which no more than one number in 15 000 is, has its low 32 bits copied
    as all others do, and the rest beside them with its place.

    Args:
        device: The device.
        noise: The middles of cells.
        scale: The width of a cell in steps, a power of two.
    """
    whole = np.rint(noise * scale)  # never a tie: lemma 2 of docs/proofs/lattice-noise.md
    low = whole.astype(np.int64).astype(np.int32)  # of a larger number, the low bits
    steps = torch.from_numpy(low).to(device, non_blocking=True).double()
    (far,) = np.nonzero(low != whole)
    if len(far):
        rest = (whole[far] - low[far]).astype(np.float32)  # a few times 2³²
        places = torch.from_numpy(far.astype(np.int32)).to(device)
        steps[places] += torch.from_numpy(rest).to(device).double()
    return steps
