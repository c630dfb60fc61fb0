"""The Gaussian mechanism on a clipped sum, with its arithmetic inside the guarantee."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpfy.noise import NoiseStrategy, lattice_step

_FINEST_NOISE = (
    2.0**-4
)  # below this multiplier the lattice follows the bound, so that sums stay below 2^53 steps


@dataclass(frozen=True)
class GaussianSum:
    """Releases Σ clip(gradient) + N(0, (z·S)²) on a lattice fixed before the data is seen.

    The sum is that of all pieces of a query, each in its unit
    (:meth:`dpfy.mechanisms.query.Query.unit`), so that they are one vector. ``bound`` is by how
    much one record may move it before arithmetic.

    *Formal guarantee*: one record changes the sum by at most S = ``sensitivity`` in ℓ2 norm
    (add-or-remove and zero-out; 2S under replace-one), and the noise per coordinate is a real
    Gaussian of standard deviation z·S, rounded to the lattice. The release is post-processing of
    the Gaussian mechanism of noise multiplier exactly z.

    *Assumes*: the engine computes each weight from the very gradient that it adds, or from an upper
    bound of its norm, and one record more moves the contributions of at most ``companions`` others,
    by ``rounding`` clip bounds each. The lattice costs √d steps: the sum is rounded as a whole, as
    often as ``roundings`` says if it leaves the lattice in between; or one vector of it is, as
    :func:`~dpfy.mechanisms.clipping.lattice_sum` does for microbatches.

    Proof: docs/proofs/gaussian-sum.md and docs/proofs/lattice-noise.md.
    """

    bound: float
    noise_multiplier: float
    dimension: int
    co_batched: int = 0
    rounding: float = 2.0**-23
    roundings: int = 1

    @property
    def grid(self) -> float:
        """The lattice step, a power of two that depends on public constants only."""
        return lattice_step(self.bound * max(self.noise_multiplier, _FINEST_NOISE))

    @property
    def sensitivity(self) -> float:
        """The bound and the arithmetic: float64 norms and products, the lattice, and the other
        records' rounding.

        One record more makes a block of another size, or another term of a float32 sum; the
        contributions of its ``companions`` in the block then move in their last bits, each by at
        most ``rounding`` in units of the bound.
        """
        arithmetic = (self.dimension + 16) * 2.0**-53 + self.co_batched * self.rounding
        return (
            self.bound * (1 + arithmetic) + self.roundings * math.sqrt(self.dimension) * self.grid
        )

    @property
    def stddev(self) -> float:
        """The noise per coordinate."""
        return self.noise_multiplier * self.sensitivity

    def release(self, total: torch.Tensor, noise: NoiseStrategy) -> torch.Tensor:
        """Add fresh noise to every coordinate of the sum, in place, and return it."""
        return noise.add_noise(total, stddev=self.stddev, grid=self.grid)

    def release_pieces(
        self,
        sums: Sequence[torch.Tensor],
        factors: Sequence[float],
        outs: Sequence[torch.Tensor],
        noise: NoiseStrategy,
    ) -> None:
        """Add fresh noise to every coordinate of a sum in pieces, and write these times public
        factors to ``outs``.
        """
        noise.release(sums, factors, outs, stddev=self.stddev, grid=self.grid)
