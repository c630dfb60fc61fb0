"""Noise: where the randomness comes from, and how it becomes Gaussian on a lattice."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dpfy.noise.gaussian import LatticeGaussian
from dpfy.noise.lattice import lattice_step, round_to_lattice
from dpfy.noise.random_stream import SecureStream

__all__ = [
    "NOISES",
    "LatticeGaussian",
    "NoiseStrategy",
    "SecureStream",
    "lattice_step",
    "round_to_lattice",
]


class NoiseStrategy(Protocol):
    """A stateful stream of noise; independent noise is the identity strategy of a correlated
    one.
    """

    @property
    def key_source(self) -> str:
        """Where the key came from: ``"operating system"``, or a name that says that nothing is
        private.
        """

    def prefetch(self, count: int, stddev: float, grid: float) -> None:
        """Begin to draw the noise that will be taken next, if that pays; it changes no result."""

    def add_noise(self, values: torch.Tensor, stddev: float, grid: float) -> torch.Tensor:
        """Add the next noise of the stream to float64 ``values`` in place, on the lattice of step
        ``grid``.
        """

    def release(
        self,
        sums: Sequence[torch.Tensor],
        factors: Sequence[float],
        outs: Sequence[torch.Tensor],
        stddev: float,
        grid: float,
    ) -> None:
        """Do the same to several sums as if they were one vector, and write each times its public
        factor to ``outs``.

        Sums in float64 are overwritten by what is released of them.
        """

    def close(self) -> None:
        """End what ``prefetch`` began, and free its memory."""


NOISES: dict[str, Callable[[SecureStream], NoiseStrategy]] = {"independent": LatticeGaussian}
"""Every kind of noise that the conformance suite runs over."""
