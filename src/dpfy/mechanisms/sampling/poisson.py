"""Poisson sampling: every record flips its own coin."""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.ledger.events import Poisson
from dpfy.mechanisms.sampling.skips import LARGEST_RATE, Skips
from dpfy.noise.random_stream import SecureStream, require_purpose


class PoissonSampler:
    """Includes each record independently with probability exactly ``rate``.

    *Formal guarantee.* Each record has a coin of its own, which is heads with probability the
    float64 ``rate`` without any rounding, and no two coins share a bit. The sample size is
    Binomial(n, rate) and is never adjusted; empty samples are ordinary. Up to a rate of 1/8 only
    the heads are drawn, so a draw takes time and memory for its sample, whatever n is.

    *Assumes* that the stream is uniform and made for sampling, so that noise and sample share no
    randomness; and at rates up to 1/8 that float64 logarithms err by at most 2⁻⁵⁰ of their value.

    Args:
        rate: The probability of each record, in [0, 1].
        stream: The source of randomness, made for the purpose ``"sampling"``.

    Raises:
        InvalidArgument: If the rate is out of its range, or the stream has another purpose.

    >>> PoissonSampler(0.2, SecureStream(insecure_test_key=1, purpose="sampling")).draw(20)
    array([ 0, 11, 14])

    Reference: docs/proofs/sampling.md.
    """

    def __init__(self, rate: float, stream: SecureStream) -> None:
        self._policy = Poisson(_validate.real("rate", rate, 0, 1))
        self._stream = require_purpose(stream, "sampling")

    @property
    def policy(self) -> Poisson:
        """The policy that the draws may be accounted as."""
        return self._policy

    @property
    def steps_per_event(self) -> int:
        """One: the sampler has no memory."""
        return self._policy.steps_per_event

    def draw(self, n: int) -> npt.NDArray[np.int64]:
        """Return the sorted indices, of ``range(n)``, of a fresh sample."""
        _validate.count("n", n, minimum=0)
        rate = self._policy.rate
        if rate in (0, 1):
            return np.arange(n if rate else 0)
        heads, stretch = self._coins.heads, self._coins.stretch
        parts = [start + heads(min(stretch, n - start)) for start in range(0, n, stretch)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    @cached_property
    def _coins(self) -> "Skips | Coins":
        """The coins of the rate, which remember nothing of those that were flipped."""
        kind = Skips if self._policy.rate <= LARGEST_RATE else Coins
        return kind(self._policy.rate, self._stream)


class Coins:
    """Independent coins of one rate, a word for each.

    *Formal guarantee.* Each coin is heads with probability exactly the float64 ``rate``. A float64
    number from 2⁻¹² on has at most 64 binary digits, and so the first 64 digits of a uniform real
    tell whether it is below.

    Args:
        rate: The probability of heads, above ``LARGEST_RATE`` and below 1.
        stream: The source of randomness.
    """

    stretch = 1 << 16  # coins at a time: half a megabyte of words

    def __init__(self, rate: float, stream: SecureStream) -> None:
        self._threshold, self._stream = np.uint64(int(rate * 2.0**64)), stream

    def heads(self, count: int) -> npt.NDArray[np.int64]:
        """Return which of ``count`` coins came up heads."""
        return np.flatnonzero(self._stream.words(count) < self._threshold)
