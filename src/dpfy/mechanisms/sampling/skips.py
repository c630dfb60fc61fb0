"""Flip coins of a small rate without reading them all: draw how many are tails before each head.

The number of tails before a head is ⌊ln U / ln(1−q)⌋ for a uniform real U, of which 64 bits are
drawn. Float64 logarithms decide nearly every gap, with a bound on their error; where the bound is
not good enough, whole numbers decide, with further bits of U. Proof in docs/proofs/sampling.md.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dpfy.noise.exact_comparison import Expansion
from dpfy.noise.random_stream import SecureStream, Words

Indices = npt.NDArray[np.int64]

LARGEST_RATE = 1 / 8  # at larger ones, a word for every coin is quicker
_HEADS = 1 << 13  # expected in a stretch: its arrays take half a megabyte
_LONGEST = 1 << 48  # coins of a stretch: sums of gaps stay far below 2⁶³
_ERROR = 2.0**-48  # of a float64 logarithm, with room for the roundings that follow it
_GUARD = 64  # bits of a power beyond those of U, of which its products lose up to 51


class Skips:
    """Independent coins of one rate, of which only the heads are drawn.

    *Formal guarantee.* Each coin is heads with probability exactly the float64 ``rate``,
    independently of all others: a gap is at least k with probability (1−rate)ᵏ without any
    rounding, and no two gaps share a bit. Time and memory follow the number of heads.

    *Assumes* that the stream is uniform, and that the logarithms of numpy and Python err by at most
    2⁻⁵⁰ of their value.

    Args:
        rate: The probability of heads, above 0 and at most ``LARGEST_RATE``.
        stream: The source of randomness.

    >>> Skips(2.0**-20, SecureStream(insecure_test_key=1, purpose="sampling")).heads(5 * 10**6)
    array([3851056, 4845494])

    Reference: L. Devroye, Non-Uniform Random Variate Generation, 1986, X.2;
    docs/proofs/sampling.md.
    """

    def __init__(self, rate: float, stream: SecureStream) -> None:
        self._rate, self._stream = rate, stream
        self._decay = -math.log1p(-rate)
        self._tails = 1 - Fraction(rate)
        self.stretch = math.ceil(min(_LONGEST, _HEADS / rate))

    def heads(self, count: int) -> Indices:
        """Return which of ``count`` coins, at most ``stretch``, came up heads."""
        parts, first = [], 0
        while first < count:
            heads = first + np.cumsum(self._gaps(count - first) + 1) - 1
            parts.append(heads[heads < count])
            first = int(heads[-1]) + 1
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _gaps(self, coins: int) -> Indices:
        """Return about as many gaps as ``coins`` have; none is told to be longer than that."""
        expected = coins * self._rate
        words = self._stream.words(math.ceil(expected + 4 * math.sqrt(expected)) + 4)
        gaps, longest = self._bounds(words, coins)
        for place in np.flatnonzero(gaps < longest).tolist():
            between = int(gaps[place]), int(longest[place])
            gaps[place] = self._decided(Expansion(int(words[place]), 64), *between)
        return gaps

    def _bounds(self, words: Words, most: int) -> tuple[Indices, Indices]:
        """Return the least and the largest gap that each word leaves possible, up to ``most``."""
        with np.errstate(divide="ignore", over="ignore"):  # infinity is no bound, and is cut
            exponent = -np.log(np.maximum(words, np.uint64(1)) * 2.0**-64)
            error = _ERROR * (1 + exponent) + 1 / words  # the last: bits that were not drawn
            low, high = (exponent - error) / self._decay, (exponent + error) / self._decay
        return _cut(low, most), _cut(high, most)

    def _decided(self, u: Expansion, low: int, high: int) -> int:
        """Return the gap that U stands for, given that it is between two numbers."""
        while low < high:
            middle = (low + high + 1) // 2
            if self._is_below_power(u, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _is_below_power(self, u: Expansion, k: int) -> bool:
        """Return whether U < (1−rate)ᵏ, after as many further bits of U as that takes."""
        while True:
            low, high = power(self._tails, k, u.bits + _GUARD)
            if (u.numerator + 1) << _GUARD <= low:
                return True
            if u.numerator << _GUARD >= high:
                return False
            u.extend(self._stream)


def _cut(gaps: npt.NDArray[np.float64], most: int) -> Indices:
    """Return gaps between 0 and ``most`` as whole numbers, rounded down."""
    return np.minimum(np.maximum(gaps, 0, out=gaps), most, out=gaps).astype(np.int64)


def power(base: Fraction, k: int, bits: int) -> tuple[int, int]:
    """Return whole numbers on both sides of ``base``ᵏ·2^bits, for a base in [0, 1].

    Every product is rounded down in the first and up in the second, and they are less than 6·k
    apart.

    >>> power(Fraction(7, 8), 3, bits=9)
    (343, 343)
    >>> power(Fraction(2, 3), 1000, bits=8)
    (0, 1)
    """
    scaled = base * 2**bits
    factors = math.floor(scaled), math.ceil(scaled)
    low = high = 1 << bits
    for digit in f"{k:b}":
        low, high = low * low >> bits, -(-high * high >> bits)
        if digit == "1":
            low, high = low * factors[0] >> bits, -(-high * factors[1] >> bits)
    return low, high
