"""Gaussian noise that is correlated over the steps of a stream."""

from collections.abc import Sequence
from typing import Never

from dpfy._process import this_process
from dpfy.errors import InvalidArgument
from dpfy.noise.gaussian import LatticeGaussian, LatticeNoise
from dpfy.noise.histories import LARGEST_SCALE, History
from dpfy.noise.lattice import steps_per_stddev
from dpfy.noise.random_stream import SecureStream
from dpfy.noise.vector import Piece


class CorrelatedGaussian(LatticeNoise):
    """A stream of Gaussian noise whose later rows take back part of the earlier ones.

    *Formal guarantee.* Row t adds ξ_t = Z_t − R(Σ_{j<t} C_tj ξ_j) to lattice sums s_t, where Z_t is
    fresh :class:`LatticeGaussian` noise, R rounds to the lattice, and C is the unit lower
    triangular strategy of the history. Given what was released before, row t is the Gaussian
    mechanism on s_t − R(…). If one record moves each sum by at most S₁ in ℓ2 norm, and in steps
    that make its sensitivity under C at most Δ, all rows together are the Gaussian mechanism of
    sensitivity Δ·(S₁ + ``roundings``·√d·g). Earlier rows may be forgotten at any time at no cost,
    and are so before any row that does not follow the last one: after a row that failed or was
    left out, for another number of values or another scale, and in a forked child.

    *Assumes* what :class:`LatticeGaussian` assumes; and that noise stays within forty standard
    deviations, which fails with probability below 10⁻³⁰⁰.

    Args:
        stream: The source of randomness, made for the purpose ``"noise"``.
        history: What is remembered of earlier rows, such as :class:`~dpfy.noise.histories.Bands`.
        first: The row that comes first, counted from 1.

    Raises:
        InvalidArgument: If the stream was made for another purpose, or if the noise is copied,
            pickled or saved.

    >>> import torch
    >>> from dpfy.noise.histories import Bands
    >>> noise = CorrelatedGaussian(SecureStream(insecure_test_key=1), Bands([1.0, 0.5], steps=9))
    >>> for row in range(3):
    ...     _ = noise.add_noise(torch.zeros(4, dtype=torch.float64), 1.0, 2.0**-28)
    ...     round(noise.spread, 3)
    1.0
    1.118
    1.146

    Reference: Denisov et al. 2022, Theorem 2.1; docs/proofs/streams.md, lemmas 6 and 7.
    """

    def __init__(self, stream: SecureStream, history: History, first: int = 1) -> None:
        self._fresh = LatticeGaussian(stream)
        self._history = history
        self._row = first
        self._last: tuple[object, ...] | None = None  # what the last complete row was like

    @property
    def key_source(self) -> str:
        """The source of the stream's key."""
        return self._fresh.key_source

    @property
    def roundings(self) -> float:
        """How many lattice steps per coordinate its arithmetic adds to the sensitivity."""
        return self._history.roundings

    def begin(self, step: int) -> None:
        """Say which row comes next; if it does not follow the last one, earlier ones are forgotten.

        Args:
            step: The row, counted from 1.
        """
        if step != self._row:
            self.forget()
        self._row = step

    def forget(self) -> None:
        """Drop all earlier rows; the next one is fresh noise."""
        self._history.forget()
        self._last = None

    def prefetch(self, count: int, stddev: float, grid: float) -> None:
        """Begin to draw the fresh noise of the next row, as :meth:`LatticeGaussian.prefetch` does.

        Args:
            count: The number of coordinates of the next row, at least 0.
            stddev: The standard deviation of fresh noise; zero draws nothing.
            grid: The lattice step, a power of two.
        """
        _check_scale(stddev, grid)
        self._fresh.prefetch(count, stddev, grid)

    def close(self) -> None:
        """Forget all rows, end the thread of :meth:`prefetch` and free its memory."""
        self.forget()
        self._fresh.close()

    def _add_to(self, pieces: Sequence[Piece], stddev: float, grid: float) -> None:
        """Add the next row to one vector, in the walk that draws its fresh noise."""
        _check_scale(stddev, grid)
        count = pieces[-1].end if pieces else 0
        this = count, stddev, grid, this_process()
        if this != self._last:
            self.forget()
        row, self._row = self._row, self._row + 1
        self._last = None  # until it is complete
        past = self._history.past_of(row, count)
        self._fresh._add_to(pieces, stddev, grid, past)
        self.spread = 1.0 if past is None else past.spread
        self._last = this

    def __repr__(self) -> str:
        return "CorrelatedGaussian(sensitive)"

    def __reduce_ex__(self, protocol: object) -> Never:
        raise InvalidArgument(
            "Correlated noise cannot be copied, pickled or saved: with what it remembers, noise "
            "can be told from sums. Make a new one, which begins without a memory."
        )


def _check_scale(stddev: float, grid: float) -> None:
    """Refuse noise of more steps than histories have room for."""
    if stddev and steps_per_stddev(stddev, grid) > LARGEST_SCALE:
        raise InvalidArgument(
            f"Expected a lattice of at most 2^30 steps in stddev={stddev!r}, got grid={grid!r}. "
            "Use lattice_step(stddev)."
        )
