"""What all noise on a lattice shares: it is added to sums that are whole, or in pieces.

Tests: tests/noise/test_gaussian.py, tests/noise/test_correlated.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import torch

from dpfy.errors import InvalidArgument
from dpfy.noise.lattice import round_to_lattice
from dpfy.noise.vector import Piece


class LatticeNoise(ABC):
    """A stream of noise whose values are multiples of a lattice step."""

    roundings = 0.0
    """How many lattice steps per coordinate the arithmetic of the noise adds to the sensitivity."""

    spread = 1.0
    """The standard deviation of the noise added last, over that of independent noise."""

    def begin(self, step: int) -> None:
        """Say which step, counted from 1, the next noise is for."""
        return

    def add_noise(self, values: torch.Tensor, stddev: float, grid: float) -> torch.Tensor:
        """Add fresh noise to the float64 tensor ``values`` in place and return it.

        ``values`` are multiples of ``grid`` already, or are rounded to them here: the low bits of a
        value between lattice points would pass through any noise. No rounding error can leak: IEEE
        addition is a function of the exact lattice sum, which is exact below 2⁵¹ steps.

        Args:
            values: The sums, in float64; overwritten.
            stddev: The standard deviation of the noise per coordinate; zero adds nothing.
            grid: The lattice step, a power of two.

        Returns:
            ``values``, with noise.

        Raises:
            InvalidArgument: If ``values`` are not in float64.
        """
        if values.dtype != torch.float64:
            raise InvalidArgument(
                f"Expected values of dtype torch.float64, got {values.dtype}. Sum in float64."
            )
        raw = values.detach()
        if stddev == 0:
            round_to_lattice(raw, grid)
            return values
        flat = raw.reshape(-1)
        self._add_to([Piece(0, flat)], stddev, grid)
        if not values.is_contiguous():
            raw.copy_(flat.view(values.shape))
        return values

    def release(
        self,
        sums: Sequence[torch.Tensor],
        factors: Sequence[float],
        outs: Sequence[torch.Tensor],
        stddev: float,
        grid: float,
    ) -> None:
        """Add fresh noise to the sums as if they were one vector, and scale each into its output.

        Both happen in one pass over memory. Contiguous float64 sums are overwritten by their noisy
        values; float32 sums, which float64 holds exactly, stay as they are, unless they are among
        ``outs``.

        Args:
            sums: The pieces of the vector, in float64 or float32.
            factors: The public factor of each piece.
            outs: A contiguous tensor for each piece, which the noisy values times the factor are
                written to.
            stddev: The standard deviation of the noise per coordinate; zero adds nothing.
            grid: The lattice step, a power of two.

        Raises:
            InvalidArgument: If an output has another number of coordinates than its sum.
        """
        flat = [
            (each.detach().reshape(-1).contiguous(), factor, out.view(-1))
            for each, factor, out in zip(sums, factors, outs, strict=True)
        ]
        for each, _, out in flat:
            if each.numel() != out.numel():  # the rest of the output would be uninitialised memory
                raise InvalidArgument(
                    f"Expected an output of {each.numel()} numbers, as the sum has, got "
                    f"{out.numel()}."
                )
        if stddev == 0:
            for each, factor, out in flat:
                out.copy_(round_to_lattice(each.double(), grid) * factor)
            return
        begins = accumulate((each.numel() for each, _, _ in flat), initial=0)
        pieces = [Piece(begin, *each) for begin, each in zip(begins, flat, strict=False)]
        self._add_to(pieces, stddev, grid)

    @abstractmethod
    def _add_to(self, pieces: Sequence[Piece], stddev: float, grid: float) -> None:
        """Add the next noise, which is not zero, to the pieces of one vector."""
