"""The sums that noise is added to: one vector, which lies in memory as several pieces.

Tests: tests/noise/test_gaussian.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpfy.noise.lattice import add_on_lattice
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
        """Add noise, which may be overwritten, to a slice of the piece."""
        values = self.sums[where].double()
        if values.is_cpu:
            with np.errstate(all="ignore"):  # what is too large becomes infinite, as in training
                add_on_lattice(values.numpy(), noise, unit, grid)
        else:
            add_on_lattice(values, torch.from_numpy(noise).to(values.device), unit, grid)
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
        for piece in self.pieces:
            first, last = max(start, piece.begin), min(start + len(noise), piece.end)
            if first < last:
                piece.add(
                    slice(first - piece.begin, last - piece.begin),
                    noise[first - start : last - start],
                    self.unit,
                    self.grid,
                )
