"""Sums that noise is added to: one vector, which lies in pieces."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpfy.noise.lattice import add_on_lattice
from dpfy.noise.rejection_table import Floats


@dataclass(frozen=True)
class Piece:
    """Coordinates from ``begin`` on, in one dimension.

    Sums in float64 are overwritten by what is released; those in float32, which float64 holds
    exactly, stay as they are, unless ``out`` is their memory. What is released times a public
    factor goes to ``out``, if there is one.
    """

    begin: int
    sums: torch.Tensor
    factor: float = 1.0
    out: torch.Tensor | None = None

    @property
    def end(self) -> int:
        """Where the coordinates of others begin."""
        return self.begin + len(self.sums)

    def add(self, some: slice, noise: Floats, unit: float, grid: float) -> None:
        """Add noise to some numbers of the piece; it may be overwritten."""
        values = self.sums[some].double()
        if values.is_cpu:
            with np.errstate(
                all="ignore"
            ):  # what is too large becomes infinite, as everywhere in training
                add_on_lattice(values.numpy(), noise, unit, grid)
        else:
            add_on_lattice(values, torch.from_numpy(noise).to(values.device), unit, grid)
        if self.out is not None:
            self.out[some].copy_(values * self.factor)


@dataclass(frozen=True)
class Vector:
    """Pieces one after the other; noise is in units of ``unit``, and results are on the lattice of
    step ``grid``.
    """

    pieces: Sequence[Piece]
    unit: float
    grid: float

    def __len__(self) -> int:
        """How many coordinates there are."""
        return self.pieces[-1].end if self.pieces else 0

    @property
    def is_cpu(self) -> bool:
        """Whether no device has to add."""
        return all(piece.sums.is_cpu for piece in self.pieces)

    def add(self, start: int, noise: Floats) -> None:
        """Add noise to the coordinates from ``start`` on; it may be overwritten."""
        for piece in self.pieces:
            first, last = max(start, piece.begin), min(start + len(noise), piece.end)
            if first < last:
                piece.add(
                    slice(first - piece.begin, last - piece.begin),
                    noise[first - start : last - start],
                    self.unit,
                    self.grid,
                )
