"""Counts, means and medians of records whose groups have budgets of their own.

``method`` chooses how a group gets no more than its ε:

* ``"sampling"``: records of strict groups are kept with a smaller probability, and one mechanism
  answers on those that are kept.
* ``"partitioning"``: groups are put into bins, each is answered at its smallest ε, and the answers
  are combined by public weights.
* ``"exponential"``: one of several public candidates is chosen by scores that a record moves by no
  more than its group's ε.

The first two take groups to be alike, as do means by the third: an answer leans towards groups with
a large ε if these differ from others. No guarantee rests on it. Proofs:
``docs/proofs/personalised.md``.

Tests: tests/mechanisms/one_shot/test_personalised.py.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.mechanisms.one_shot.budgets import Groups
from dpfy.mechanisms.one_shot.choices import ExponentialMechanism
from dpfy.mechanisms.one_shot.noisy_answers import Laplace, LaplaceVector
from dpfy.mechanisms.one_shot.questions import Question, Records, refuse_beside
from dpfy.mechanisms.one_shot.scores import (
    UNIT_STEPS,
    Reals,
    Whole,
    count_scores,
    mean_scores,
    median_scores,
)

_GRID = 1001  # candidates for a mean


def count(
    values: Sequence[Any],
    group_of: Sequence[Any],
    groups: Groups,
    ledger: Ledger,
    *,
    method: str = "sampling",
    records: int | None = None,
    threshold: float | None = None,
    insecure_test_key: int | None = None,
) -> float:
    """Count the records that have a value other than 0.

    *Formal guarantee*: the answer is ε-differentially private for the records of each group, with
    the group's own ε, if one is added or removed; :func:`dpfy.account` has all groups.

    *Assumes* that groups are public or depend on nothing that is asked. By the exponential method,
    also that ``group_of`` is a public list of people, whose values alone are private.

    Args:
        values: One number for each record; a value that is no finite number is no record.
        group_of: The name of each record's group; a record of another group is none.
        groups: The ε and the share of the records of each group, by name; public.
        ledger: Where the event is recorded before anything is read.
        method: "sampling" (the default), "partitioning" or "exponential".
        records: The public number of records, if it is known, to which a sample or bins and their
            weights are fitted.
        threshold: By sampling, the ε of the answer on the sample; by default that of
            :func:`~dpfy.mechanisms.one_shot.best_threshold`, or without ``records`` the largest.
        insecure_test_key: Makes the answer reproducible, and *not private*.

    Returns:
        The count, with noise. By sampling and partitioning it is right on average if as many of
        each group count and the shares are true; by the exponential method it is a whole number.

    Raises:
        InvalidArgument: If a declaration is out of its range, or there is not one group for each
            value. Nothing was read.
        LedgerMismatch: If the ledger does not say that keys are for tests.
        BudgetExhausted: If the ledger's guard refuses the event; nothing was read.

    Reference: docs/proofs/personalised.md, Theorems 1, 2 and 5.

    >>> from dpfy.ledger import Header
    >>> groups = {"strict": (0.5, 0.5), "open": (2.0, 0.5)}
    >>> with Ledger.in_memory(header=Header(key_source="insecure test key")) as ledger:
    ...     about = count([1] * 800, ["strict", "open"] * 400, groups, ledger, insecure_test_key=1)
    >>> 700 < about < 900
    True
    """
    question = Question(
        values, group_of, groups, ledger, method, records, threshold, insecure_test_key
    )
    if method == "exponential":
        answers = np.arange(len(values) + 1)

        def scores(records: Records, prices: Whole) -> Whole:
            groups = len(prices)
            own = np.bincount(records.numbers[records.values != 0], minlength=groups)
            return count_scores(own, records.people - own, prices, answers)

        return float(question.choose("count", scores, listed=True))

    def counted(records: Reals) -> float:
        return float(np.count_nonzero(records))

    parts = question.ask(Laplace.with_epsilon, counted)
    return math.fsum(part.factor * part.answer for part in parts)


def mean(
    values: Sequence[Any],
    group_of: Sequence[Any],
    groups: Groups,
    ledger: Ledger,
    *,
    bounds: tuple[float, float],
    method: str = "sampling",
    records: int | None = None,
    threshold: float | None = None,
    candidates: Sequence[float] | None = None,
    insecure_test_key: int | None = None,
) -> float:
    """Return the mean of the records' values.

    *Formal guarantee*: the answer is ε-differentially private for the records of each group, with
    the group's own ε, if one is added or removed; :func:`dpfy.account` has all groups.

    *Assumes* that groups are public or depend on nothing that is asked.

    Args:
        values: One number for each record, which is clipped to the bounds; a value that is no
            finite number is no record.
        group_of: The name of each record's group; a record of another group is none.
        groups: The ε and the share of the records of each group, by name; public.
        ledger: Where the event is recorded before anything is read.
        bounds: The public least and largest value.
        method: "sampling" (the default), "partitioning" or "exponential".
        records: The public number of records, if it is known, to which a sample or bins and their
            weights are fitted.
        threshold: By sampling, the ε of the answer on the sample; by default that of
            :func:`~dpfy.mechanisms.one_shot.best_threshold`, or without ``records`` the largest.
        candidates: By the exponential method, the public numbers to choose from; by default 1001
            from bound to bound.
        insecure_test_key: Makes the answer reproducible, and *not private*.

    Returns:
        The mean, with noise, between the bounds. It is the middle if no record seems to be there.

    Raises:
        InvalidArgument: If a declaration is out of its range, or there is not one group for each
            value. Nothing was read.
        LedgerMismatch: If the ledger does not say that keys are for tests.
        BudgetExhausted: If the ledger's guard refuses the event; nothing was read.

    Reference: docs/proofs/personalised.md, Theorems 1, 2 and 7.

    >>> from dpfy.ledger import Header
    >>> ages, groups = [30.0, 50.0] * 400, {"strict": (0.5, 0.5), "open": (2.0, 0.5)}
    >>> group_of = ["strict", "strict", "open", "open"] * 200
    >>> with Ledger.in_memory(header=Header(key_source="insecure test key")) as ledger:
    ...     age = mean(ages, group_of, groups, ledger, bounds=(0, 100), insecure_test_key=1)
    >>> 36 < age < 44
    True
    """
    question = Question(
        values, group_of, groups, ledger, method, records, threshold, insecure_test_key
    )
    low, high = _bounds(bounds)

    def steps(numbers: Reals) -> Whole:
        share = (np.clip(numbers, low, high) - low) / (high - low)
        return np.rint(share * UNIT_STEPS).astype(np.int64)

    if method == "exponential":
        grid = np.linspace(low, high, _GRID) if candidates is None else _candidates(candidates)
        places = steps(grid).tolist()

        def scores(records: Records, prices: Whole) -> Whole:
            return mean_scores(steps(records.values), records.numbers, prices, places)

        return float(np.clip(grid[question.choose("mean", scores, listed=False)], low, high))
    refuse_beside("candidates", candidates, method)

    def distances(records: Reals) -> list[float]:
        """Return the sums of how far records are above the least and below the largest value."""
        total = int(steps(records).sum())
        return [total / UNIT_STEPS, (len(records) * UNIT_STEPS - total) / UNIT_STEPS]

    def make(epsilon: float) -> LaplaceVector:
        return LaplaceVector.with_epsilon(epsilon, 1.0, "mean")  # both sums move by 1 in all

    parts = question.ask(make, distances)
    above, below = (
        math.fsum(part.factor * float(part.answer[i]) for part in parts) for i in (0, 1)
    )
    share = above / (above + below) if above + below > 0 else 0.5
    return low + (high - low) * min(max(share, 0.0), 1.0)


def median(
    values: Sequence[Any],
    group_of: Sequence[Any],
    groups: Groups,
    ledger: Ledger,
    *,
    candidates: Sequence[float],
    method: str = "sampling",
    records: int | None = None,
    threshold: float | None = None,
    insecure_test_key: int | None = None,
) -> float:
    """Return a candidate that is near the median of the records' values.

    *Formal guarantee*: the answer is ε-differentially private for the records of each group, with
    the group's own ε, if one is added or removed; :func:`dpfy.account` has all groups.

    *Assumes* that groups are public or depend on nothing that is asked. By the exponential method,
    also that ``group_of`` is a public list of people, whose values alone are private.

    Args:
        values: One number for each record; a value that is no finite number is no record.
        group_of: The name of each record's group; a record of another group is none.
        groups: The ε and the share of the records of each group, by name; public.
        ledger: Where the event is recorded before anything is read.
        candidates: The public numbers to choose from.
        method: "sampling" (the default), "partitioning" or "exponential".
        records: The public number of records, if it is known, to which a sample or bins and their
            weights are fitted.
        threshold: By sampling, the ε of the answer on the sample; by default that of
            :func:`~dpfy.mechanisms.one_shot.best_threshold`, or without ``records`` the largest.
        insecure_test_key: Makes the answer reproducible, and *not private*.

    Returns:
        One of the candidates.

    Raises:
        InvalidArgument: If a declaration is out of its range, or there is not one group for each
            value. Nothing was read.
        LedgerMismatch: If the ledger does not say that keys are for tests.
        BudgetExhausted: If the ledger's guard refuses the event; nothing was read.

    Reference: docs/proofs/personalised.md, Theorems 1, 2 and 6.

    >>> from dpfy.ledger import Header
    >>> ages, groups = [30.0, 40.0, 50.0] * 200, {"strict": (0.5, 0.5), "open": (2.0, 0.5)}
    >>> with Ledger.in_memory(header=Header(key_source="insecure test key")) as ledger:
    ...     median(
    ...         ages, ["strict", "open"] * 300, groups, ledger,
    ...         candidates=range(20, 70, 5), insecure_test_key=1,
    ...     )
    40.0
    """
    question = Question(
        values, group_of, groups, ledger, method, records, threshold, insecure_test_key
    )
    grid = _candidates(candidates)
    if method == "exponential":

        def scores(records: Records, prices: Whole) -> Whole:
            return median_scores(records.values, records.numbers, records.people, prices, grid)

        return float(grid[question.choose("median", scores, listed=True)])

    def excess(records: Reals) -> list[float]:
        """Return minus the number of records that must be added to make each candidate right."""
        one = np.zeros(len(records), np.int64)
        plenty = np.array([2 * len(records)])
        return median_scores(records, one, plenty, np.array([1]), grid).tolist()  # type: ignore[no-any-return]

    def make(epsilon: float) -> ExponentialMechanism:
        return ExponentialMechanism.with_epsilon(epsilon, 1.0, name="median")

    parts = question.ask(make, excess)
    ranked = sorted((float(grid[part.answer]), part.weight) for part in parts)
    reached = accumulate(weight for _, weight in ranked)
    half = math.fsum(weight for _, weight in ranked) / 2
    return next(answer for (answer, _), sofar in zip(ranked, reached, strict=True) if sofar >= half)


def _bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the least and the largest value, as floats."""
    if not isinstance(bounds, Sequence) or len(bounds) != 2:
        raise InvalidArgument(f"Expected bounds=(least, largest), got {bounds!r}.")
    limits = -math.inf, math.inf
    low = _validate.real("least bound", bounds[0], *limits, open_low=True, open_high=True)
    high = _validate.real("largest bound", bounds[1], *limits, open_low=True, open_high=True)
    if not 0 < high - low < math.inf:
        raise InvalidArgument(
            f"Expected bounds={bounds!r} with a least value below the largest, and a finite range."
        )
    return low, high


def _candidates(candidates: Sequence[float]) -> Reals:
    """Return the candidates as floats."""
    grid = np.asarray(candidates, dtype=np.float64)
    if grid.ndim != 1 or not len(grid) or not bool(np.isfinite(grid).all()):
        raise InvalidArgument(
            f"Expected candidates to be a list of finite public numbers, got {candidates!r}."
        )
    return grid
