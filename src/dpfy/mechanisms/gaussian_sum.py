"""The Gaussian mechanism on a clipped sum, with its arithmetic inside the guarantee."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from dpfy.noise import NoiseStrategy, lattice_step

# Below this multiplier the lattice follows the bound, so that sums stay below 2^53 steps.
_FINEST_NOISE = 2.0**-4


@dataclass(frozen=True)
class GaussianSum:
    """Releases Σ clip(gradient) + N(0, (z·S)²) on a lattice fixed before the data is seen.

    The sum is that of all pieces of a query, each divided by its scale
    (:meth:`dpfy.mechanisms.query.Query.sum_scale`), so that they are one vector.

    *Formal guarantee*: one record changes the sum by at most S = ``sensitivity`` in ℓ2 norm
    (add-or-remove and zero-out; 2S under replace-one), and the noise per coordinate is a real
    Gaussian of standard deviation z·S, rounded to the lattice. The release is post-processing of
    the Gaussian mechanism of noise multiplier exactly z. A record that is bounded by s ≥ ``least``
    times the bound changes it by at most s·S: for this record the noise multiplier is z/s.

    *Assumes*: the engine computes each weight from the very gradient that it adds, or from an upper
    bound of its norm, and another record moves the contributions of at most ``co_batched`` others,
    by ``rounding`` bounds each. The lattice costs √d steps: the sum is rounded as a whole, as often
    as ``roundings`` says if it leaves the lattice in between; or one vector of it is, as
    :func:`~dpfy.mechanisms.clipping.lattice_sum` does for microbatches.

    Proof: docs/proofs/gaussian-sum.md and docs/proofs/lattice-noise.md; docs/proofs/individual.md
    where records have bounds of their own.

    Args:
        bound: The most that one record moves the sum in exact arithmetic, in ℓ2 norm.
        noise_multiplier: The ratio z of the noise to the sensitivity, at least 0.
        dimension: The number of coordinates of the sum.
        co_batched: The number of other records whose arithmetic one record may change.
        rounding: The most that it changes each of them, in units of the bound.
        roundings: The number of times that the sum is rounded to the lattice, and what correlated
            noise adds to that.
        least: The smallest bound of a record, in units of the bound, where records have bounds of
            their own: what rounding moves is in proportion to none of them.

    >>> GaussianSum(bound=1.0, noise_multiplier=2.0, dimension=1000).sensitivity
    1.0000002...
    """

    bound: float
    noise_multiplier: float
    dimension: int
    co_batched: int = 0
    rounding: float = 2.0**-23
    roundings: float = 1
    least: float = 1.0

    @cached_property
    def grid(self) -> float:
        """The lattice step, a power of two that depends on public constants only."""
        return lattice_step(self.bound * max(self.noise_multiplier, _FINEST_NOISE))

    @cached_property
    def sensitivity(self) -> float:
        """The bound, with an allowance for float64 norms and products, the lattice and rounding.

        Adding a record changes the size of its block, or adds a term to a float32 sum; the rounding
        error of its ``co_batched`` records in the block then changes, by at most ``rounding``
        bounds for each.
        """
        others = self.co_batched * self.rounding / self.least
        lattice = self.roundings * math.sqrt(self.dimension) * self.grid / self.least
        return self.bound * (1 + ((self.dimension + 16) * 2.0**-53 + others)) + lattice

    @cached_property
    def stddev(self) -> float:
        """The standard deviation of the noise per coordinate."""
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
        """Add fresh noise to a sum in pieces, and scale each by its public factor into ``outs``."""
        noise.release(sums, factors, outs, stddev=self.stddev, grid=self.grid)
