"""Poisson sampling: every record flips its own coin."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.ledger.events import Poisson
from dpfy.noise.random_stream import SecureStream, require_purpose

_CHUNK = 1 << 16  # coins at a time: half a megabyte of words


class PoissonSampler:
    """Includes each record independently with probability exactly ``rate``.

    *Formal guarantee.* A uniform real, given bit by bit, is compared with the float64 ``rate``,
    itself a finite binary fraction, until they differ: each coin has probability ``rate`` without
    any rounding, and no two share a bit. The sample size is Binomial(n, rate) and is never
    adjusted; empty samples are ordinary.

    *Assumes* that the stream is uniform and made for sampling, so that noise and sample share no
    randomness.

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
        if self._policy.rate == 1:
            return np.arange(n)
        parts = [np.empty(0, dtype=np.int64)]
        for start in range(0, n, _CHUNK):
            parts.append(start + self._heads(min(_CHUNK, n - start)))
        return np.concatenate(parts)

    def _heads(self, count: int) -> npt.NDArray[np.int64]:
        """Return which of ``count`` coins came up heads."""
        words = self._stream.words(count)
        first, rest = divmod(Fraction(self._policy.rate) * 2**64, 1)
        candidates = np.flatnonzero(words <= np.uint64(first))
        ties = np.flatnonzero(words[candidates] == np.uint64(first))
        tails = [tie for tie in ties if not self._continue_comparison(rest)]
        return np.delete(candidates, tails)

    def _continue_comparison(self, rest: Fraction) -> bool:
        """Return whether a uniform real is below ``rest``, compared word by word."""
        while rest:
            first, rest = divmod(rest * 2**64, 1)
            word = int(self._stream.words(1)[0])
            if word != first:
                return word < first
        return False
