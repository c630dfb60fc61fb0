"""Exact Laplace noise for many numbers at once, in whole-number arithmetic on arrays.

The laws are those of :mod:`dpfy.mechanisms.discrete`, for scales that are whole numbers. Odds are
ratios of integers below 2⁶², and every comparison is between integers.
"""

import numpy as np
from numpy.typing import NDArray

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.noise.random_stream import SecureStream

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

LARGEST_SCALE = 2**40
"""The largest scale, so that the odds of coins stay ratios of integers below 2⁶²."""


def rounded_laplace_numbers(scale: int, count: int, stream: SecureStream) -> Integers:
    """Return real Laplace numbers of one scale, each rounded to the nearest integer.

    *Formal guarantee*: each is 0 with probability 1 − e^−1/(2·scale), and otherwise of either sign
    and of a size k ≥ 1 with probability in proportion to e^−k/scale, exactly; that is the law of a
    real Laplace number of this scale, rounded (docs/proofs/one-shot.md, section 4).

    Args:
        scale: The scale, a whole number from 1 to 2⁴⁰.
        count: How many numbers.
        stream: The source of the coins.

    Returns:
        The numbers.

    Raises:
        InvalidArgument: If the scale is not a whole number in its range.

    >>> rounded_laplace_numbers(3, 4, SecureStream(insecure_test_key=1)).shape
    (4,)
    """
    if _validate.count("scale", scale) > LARGEST_SCALE:
        raise InvalidArgument(f"Expected scale={scale!r} to be at most 2^40.")
    halves = np.ones(count, dtype=np.int64)
    far = _exponential_coins(halves, 2 * scale, stream)
    sizes = np.zeros(count, dtype=np.int64)
    sizes[far] = 1 + _geometric(scale, int(far.sum()), stream)
    signs = 1 - 2 * below_array(2, count, stream)
    return sizes * signs


def below_array(bound: int, count: int, stream: SecureStream) -> Integers:
    """Return uniform numbers from ``range(bound)``, for a ``bound`` of at most 2⁶²."""
    shift = np.uint64(64 - max(1, (bound - 1).bit_length()))
    found = np.empty(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        found[left] = (stream.words(len(left)) >> shift).astype(np.int64)
        left = left[found[left] >= bound]
    return found


def _geometric(scale: int, count: int, stream: SecureStream) -> Integers:
    """Return k ≥ 0 with probability in proportion to e^−k/scale.

    As in :func:`dpfy.mechanisms.discrete.geometric`: U + scale·V, with U uniform below the scale
    and taken with odds e^−U/scale, and V geometric of ratio 1/e.
    """
    rests = np.empty(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        rests[left] = below_array(scale, len(left), stream)
        left = left[~_exponential_coins(rests[left], scale, stream)]
    wholes = np.zeros(count, dtype=np.int64)
    left = np.arange(count)
    while len(left):
        left = left[_exponential_coins(np.ones(len(left), dtype=np.int64), 1, stream)]
        wholes[left] += 1
    return rests + scale * wholes


def _exponential_coins(numerators: Integers, denominator: int, stream: SecureStream) -> Flags:
    """Return True with probability e^−γ for each γ = numerator/denominator ≤ 1.

    The number of coins of odds γ, γ/2, γ/3, … up to the first that fails is odd with that
    probability.
    """
    heads = np.ones(len(numerators), dtype=np.bool_)
    left, tosses = np.arange(len(numerators)), 1
    while len(left):
        drawn = below_array(denominator * tosses, len(left), stream)
        left = left[drawn < numerators[left]]
        heads[left] = ~heads[left]
        tosses += 1
    return heads
