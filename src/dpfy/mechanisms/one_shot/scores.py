"""Scores of counts, medians and means that a record moves by no more than its group's price.

A price is a whole number, and so is every score: no sum is rounded. The score of a count or a
median is minus the least total price of the changes after which it would be the true answer; that
of a mean is minus how far records, weighed by their prices, are from balance around it. The proofs
are in ``docs/proofs/personalised.md``.

Tests: tests/mechanisms/one_shot/test_scores.py.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

UNIT_STEPS = 2**24
"""The number of steps into which the range of a mean is divided; values are rounded to them."""

_EXACT = 2**53  # whole numbers up to it are float64 numbers; a cut moves no score by more


def count_scores(counted: Whole, others: Whole, prices: Whole, candidates: Whole) -> Whole:
    """Return the score of each candidate for the number of people who count.

    It is minus the least total price of people, of a public list, for whom it must change whether
    they count.

    Args:
        counted: The number of people of each group who count.
        others: The number of all others of each group, with or without a record.
        prices: The price of each group.
        candidates: Numbers from 0 to that of all people.

    Returns:
        The scores, at most 0.

    >>> pair = np.array([1, 1])
    >>> count_scores(pair, pair, np.array([1, 10]), np.arange(5)).tolist()
    [-11, -1, 0, -1, -11]
    """
    missing = candidates - counted.sum()
    price = _cheapest(np.maximum(missing, 0), others, prices)
    price += _cheapest(np.maximum(-missing, 0), counted, prices)
    return _scores(price)


def median_scores(
    values: Reals, numbers: Whole, people: Whole, prices: Whole, candidates: Reals
) -> Whole:
    """Return the score of each candidate for the median.

    It is minus the least total price of records, of people on a public list, that must be added or
    removed so that no more records are below the candidate than at or above it, and no more above
    than at or below it. To change a record is to remove it and to add another one.

    Args:
        values: The value of each record.
        numbers: The number of each record's group, from 0.
        people: The number of people of each group on the list.
        prices: The price of each group.
        candidates: The candidates.

    Returns:
        The scores, at most 0.

    >>> three, numbers = np.array([1.0, 2.0, 9.0]), np.array([0, 0, 1])
    >>> median_scores(three, numbers, np.array([2, 1]), np.array([1, 10]), three).tolist()
    [-1, 0, -1]
    """
    below, upto, present = (np.zeros((len(candidates), len(prices)), np.int64) for _ in range(3))
    for group in range(len(prices)):
        own = np.sort(values[numbers == group])
        below[:, group] = np.searchsorted(own, candidates, "left")
        upto[:, group] = np.searchsorted(own, candidates, "right")
        present[:, group] = len(own)
    excess = below.sum(axis=1) - (present - upto).sum(axis=1)
    missing = np.maximum(np.abs(excess) - (upto - below).sum(axis=1), 0)
    heavier = np.where(excess[:, None] > 0, below, present - upto)
    # Someone on the heavier side can be removed, then added elsewhere; someone absent, added.
    return _scores(_cheapest(missing, 2 * heavier + people - present, prices))


def mean_scores(steps: Whole, numbers: Whole, prices: Whole, candidates: Sequence[int]) -> Whole:
    """Return the score of each candidate for the mean.

    It is minus |Σ price·(value − candidate)| over the range of values, rounded towards 0: the best
    score is that of the mean in which a record weighs what its group's price is.

    Args:
        steps: The value of each record, from 0 to ``UNIT_STEPS``.
        numbers: The number of each record's group, from 0.
        prices: The price of each group.
        candidates: The candidates, from 0 to ``UNIT_STEPS``.

    Returns:
        The scores, at most 0.

    >>> steps = np.array([0, UNIT_STEPS])
    >>> mean_scores(steps, np.array([0, 1]), np.array([1, 3]), [0, 3 * UNIT_STEPS // 4]).tolist()
    [-3, 0]
    """
    weight, total = 0, 0  # Python's numbers, which do not overflow
    for group, price in enumerate(prices.tolist()):
        own = steps[numbers == group]
        weight += price * len(own)
        total += price * int(own.sum())
    distances = [abs(total - weight * candidate) // UNIT_STEPS for candidate in candidates]
    return _scores(np.array([min(distance, _EXACT) for distance in distances], dtype=np.int64))


def _cheapest(amount: Whole, available: Whole, prices: Whole) -> Whole:
    """Return the total price of the cheapest units of each amount, of those that are available."""
    total, left = np.zeros_like(amount), amount
    for group in np.argsort(prices, kind="stable").tolist():
        taken = np.minimum(left, available[..., group])
        total, left = total + taken * prices[group], left - taken
    return total


def _scores(price: Whole) -> Whole:
    return -np.minimum(price, _EXACT)
