"""Exact draws of whole numbers: coins with rational and exponential odds, and noise made of them.

Nothing here is a float: odds are fractions, so the distributions are exact and without holes
(Canonne, Kamath & Steinke 2020, section 5). The time of a draw depends on the value drawn.
"""

from fractions import Fraction

from dpfy.noise.random_stream import SecureStream


def below(bound: int, stream: SecureStream) -> int:
    """Return a uniform number from ``range(bound)``."""
    bits = (bound - 1).bit_length()
    words = -(-bits // 64)
    while True:
        value = int.from_bytes(stream.words(words).tobytes(), "little") >> (64 * words - bits)
        if value < bound:
            return value


def coin(odds: Fraction, stream: SecureStream) -> bool:
    """Return True with probability ``odds``, which is at most 1."""
    return below(odds.denominator, stream) < odds.numerator


def exponential_coin(exponent: Fraction, stream: SecureStream) -> bool:
    """Return True with probability e^−exponent, for an ``exponent`` of at least 0."""
    while exponent > 1:
        if not _small_coin(Fraction(1), stream):
            return False
        exponent -= 1
    return _small_coin(exponent, stream)


def _small_coin(exponent: Fraction, stream: SecureStream) -> bool:
    """Return True with probability e^−γ, for an exponent γ ≤ 1.

    The number of coins of odds γ, γ/2, γ/3, … up to the first that fails is odd with that
    probability.
    """
    tosses = 1
    while coin(exponent / tosses, stream):
        tosses += 1
    return tosses % 2 == 1


def geometric(exponent: Fraction, stream: SecureStream) -> int:
    """Return k ≥ 0 with probability (1 − e^−exponent)·e^−exponent·k, for an ``exponent`` above 0.

    With exponent = d/n, the number U + n·V is geometric of ratio e^−1/n if U is uniform on
    range(n), taken with odds e^−U/n, and V is geometric of ratio 1/e; every d of its values are one
    of the result.
    """
    parts, size = exponent.denominator, exponent.numerator
    while not exponential_coin(Fraction(rest := below(parts, stream), parts), stream):
        pass
    whole = 0
    while exponential_coin(Fraction(1), stream):
        whole += 1
    return (rest + parts * whole) // size


def rounded_laplace(scale: Fraction, stream: SecureStream) -> int:
    """Return a real Laplace number of this ``scale``, rounded to the nearest integer.

    Beyond ½ its cells have geometric masses: e^−1/(2·scale) in all, and e^−1/scale from one to the
    next.
    """
    if not exponential_coin(1 / (2 * scale), stream):
        return 0
    size = 1 + geometric(1 / scale, stream)
    return size if coin(Fraction(1, 2), stream) else -size


def discrete_laplace(scale: int, stream: SecureStream) -> int:
    """Return k with probability in proportion to e^−|k|/scale."""
    while True:
        size, negative = geometric(Fraction(1, scale), stream), coin(Fraction(1, 2), stream)
        if size or not negative:  # 0 has one sign
            return -size if negative else size


def discrete_gaussian(variance: Fraction, stream: SecureStream) -> int:
    """Return k with probability in proportion to e^−k²/(2·variance).

    It is drawn by rejection from a discrete Laplace number.

    >>> stream = SecureStream(insecure_test_key=1)
    >>> [discrete_gaussian(Fraction(9), stream) for _ in range(6)]
    [...]
    """
    scale = 1
    while scale * scale <= variance:  # ⌊σ⌋ + 1; doubling keeps it quick, and any scale is exact
        scale *= 2
    while True:
        value = discrete_laplace(scale, stream)
        if exponential_coin((abs(value) - variance / scale) ** 2 / (2 * variance), stream):
            return value
