"""Draw noise: randomness from a cipher, made Gaussian on a lattice.

Tests: tests/noise/test_conformance.py.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dpfy.noise.correlated import CorrelatedGaussian
from dpfy.noise.gaussian import LatticeGaussian
from dpfy.noise.histories import Bands
from dpfy.noise.lattice import lattice_step, round_to_lattice
from dpfy.noise.random_stream import SecureStream

__all__ = [
    "NOISES",
    "CorrelatedGaussian",
    "LatticeGaussian",
    "NoiseStrategy",
    "SecureStream",
    "lattice_step",
    "round_to_lattice",
]


class NoiseStrategy(Protocol):
    """A stateful stream of noise.

    Noise may be correlated over releases; independent noise is the identity strategy.
    """

    @property
    def key_source(self) -> str:
        """The source of the key; all but ``"operating system"`` mean that nothing is private."""

    @property
    def roundings(self) -> float:
        """How many lattice steps per coordinate its arithmetic adds to the sensitivity."""

    @property
    def spread(self) -> float:
        """The standard deviation of the noise added last, over that of independent noise."""

    def begin(self, step: int) -> None:
        """Say which step, counted from 1, the next noise is for."""

    def prefetch(self, count: int, stddev: float, grid: float) -> None:
        """Begin to draw the noise of the next release, if that pays; it changes no result."""

    def add_noise(self, values: torch.Tensor, stddev: float, grid: float) -> torch.Tensor:
        """Add the next noise to float64 ``values`` in place, on the lattice of step ``grid``."""

    def release(
        self,
        sums: Sequence[torch.Tensor],
        factors: Sequence[float],
        outs: Sequence[torch.Tensor],
        stddev: float,
        grid: float,
    ) -> None:
        """Add noise to several sums as if they were one vector, and scale each into its output.

        Each noisy sum times its public factor is written to one of ``outs``. Sums in float64 are
        overwritten by their noisy values.
        """

    def close(self) -> None:
        """End what ``prefetch`` began, and free its memory."""


def _correlated(stream: SecureStream) -> CorrelatedGaussian:
    """Return noise with the first three coefficients of a square root."""
    return CorrelatedGaussian(stream, Bands((1.0, 0.5, 0.375), steps=1000))


NOISES: dict[str, Callable[[SecureStream], NoiseStrategy]] = {
    "independent": LatticeGaussian,
    "correlated": _correlated,
}
"""Every kind of noise that the conformance suite runs over."""
