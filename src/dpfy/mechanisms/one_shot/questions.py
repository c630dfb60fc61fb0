"""Ask records of several groups one question, on a sample, on bins or by scores.

Tests: tests/mechanisms/one_shot/test_personalised.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.mechanisms.one_shot.base import Mechanism, release, stream_for
from dpfy.mechanisms.one_shot.budgets import (
    Budgets,
    Groups,
    best_bins,
    best_threshold,
    check_records,
)
from dpfy.mechanisms.one_shot.grouped import (
    Indices,
    PersonalisedChoice,
    PersonalisedParts,
    PersonalisedSample,
    check_threshold,
    release_personalised,
)
from dpfy.mechanisms.one_shot.scores import Reals, Whole
from dpfy.noise import SecureStream
from dpfy.types import Relation

METHODS = ("sampling", "partitioning", "exponential")


@dataclass(frozen=True)
class Part:
    """An answer on some of the records.

    Args:
        answer: The answer.
        factor: What sums are multiplied by, so that those of all parts add up to one of all
            records if groups are alike.
        weight: The share of the part in what all parts tell together.
    """

    answer: Any
    factor: float
    weight: float


@dataclass(frozen=True)
class Records:
    """The records of known groups with a finite value. Sensitive.

    Args:
        values: The value of each record.
        numbers: The number of each record's group.
        people: The number of people of each group on the list, with or without a record.
    """

    values: Reals
    numbers: Indices
    people: Whole


class Question:
    """A question to records; declarations and lengths are checked at once, and nothing is read.

    Args:
        values: One number for each record.
        group_of: The name of each record's group.
        groups: The ε and the share of the records of each group, by name.
        ledger: Where the event is recorded before anything is read.
        method: One of ``METHODS``.
        records: The declared number of records, or None; no argument of the exponential method.
        threshold: That of a sample; None for the best one for the declared number of records, or
            else the largest ε, and by all other methods.
        key: The test key, if any.

    Raises:
        InvalidArgument: If a declaration is out of its range, or lengths differ.
        LedgerMismatch: If the ledger does not say that keys are for tests.
    """

    def __init__(
        self,
        values: Sequence[Any],
        group_of: Sequence[Any],
        groups: Groups,
        ledger: Ledger,
        method: str,
        records: int | None,
        threshold: float | None,
        key: int | None,
    ) -> None:
        self._method = _validate.choice("method", method, METHODS)
        self._budgets = Budgets.of(groups)
        if method == "exponential":
            refuse_beside("records", records, method)
        if method != "sampling":
            refuse_beside("threshold", threshold, method)
        self._records = 0 if records is None else check_records(records, 1)
        if threshold is None and self._records:
            threshold = best_threshold(self._budgets, self._records)
        self._threshold = check_threshold(self._budgets, threshold)
        if (axes := getattr(values, "ndim", 1)) != 1:
            raise InvalidArgument(f"Expected one value for each record, got {axes} axes.")
        if len(values) != len(group_of):
            raise InvalidArgument(
                "Expected one value and one label for each record. As many values as there are do "
                f"not fit the {len(group_of)} labels of group_of."
            )
        self._values, self._group_of, self._ledger = values, group_of, ledger
        self._noise, self._coins = (
            None if key is None else stream_for(ledger, SecureStream(key, purpose), purpose)
            for purpose in ("noise", "sampling")
        )

    def ask(
        self, make: Callable[[float], Mechanism[Any, Any]], compute: Callable[[Reals], Any]
    ) -> list[Part]:
        """Answer on a sample, or on each of the best bins.

        Args:
            make: The mechanism of an ε.
            compute: The exact values of some records.

        Returns:
            The answers, as parts of one.
        """

        def of_indices(indices: Indices) -> Any:
            values = _numbers(self._values)[indices]
            return compute(values[np.isfinite(values)])

        budgets, streams = self._budgets, (self._noise, self._coins)
        if self._method == "sampling":
            sample = PersonalisedSample(make(self._threshold), budgets, self._threshold)
            told = release_personalised(sample, self._ledger, of_indices, self._group_of, *streams)
            return [Part(told, 1 / sample.kept, 1.0)]
        bins = best_bins(budgets, self._records)
        epsilons, shares = zip(*(budgets.of_bin(names) for names in bins), strict=True)
        parts = PersonalisedParts(tuple(make(epsilon) for epsilon in epsilons), budgets, bins)
        told = release_personalised(parts, self._ledger, of_indices, self._group_of, *streams)
        precisions = [budgets.precision(names, self._records) for names in bins]
        weights = [precision / math.fsum(precisions) for precision in precisions]
        return [
            Part(answer, weight / share, weight)
            for answer, weight, share in zip(told, weights, shares, strict=True)
        ]

    def choose(self, name: str, scores: Callable[[Records, Whole], Whole], *, listed: bool) -> int:
        """Return the number of a candidate, by scores in the prices of groups.

        Args:
            name: The name of the query in the ledger.
            scores: The scores of all candidates, from the records and the price of each group.
            listed: Whether scores rest on a public list of people.

        Returns:
            The number of the chosen candidate.

        Raises:
            InvalidArgument: If they do, and the list is private by the relation of the ledger.
        """
        choice = PersonalisedChoice(self._budgets, name, listed)
        header = self._ledger.header
        private = header is None or header.relation == Relation.ADD_OR_REMOVE_ONE
        if listed and private:
            raise InvalidArgument(
                "The exponential method asks a public list of people, of whom each may be without "
                "a record, but the relation of the ledger is 'add_or_remove_one', under which the "
                "list itself is private. Declare Header(relation='zero_out'), or choose "
                "method='sampling'."
            )

        def compute() -> list[float]:
            numbers, values = self._budgets.numbers(self._group_of), _numbers(self._values)
            people = np.bincount(numbers[numbers >= 0], minlength=len(self._budgets.names))
            there = (numbers >= 0) & np.isfinite(values)
            found = scores(Records(values[there], numbers[there], people), choice.prices)
            return [score * choice.unit for score in found.tolist()]

        return release(choice, self._ledger, compute, self._noise)


def refuse_beside(name: str, value: object, method: str) -> None:
    """Raise if an argument was given that a method does not have.

    Raises:
        InvalidArgument: If the value is not None.
    """
    if value is not None:
        raise InvalidArgument(
            f"{name}={value!r} has no meaning with method={method!r}. Leave it out."
        )


def _numbers(values: Any) -> Reals:
    """Return values as floats; those that are no numbers become NaN, silently."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            return values.astype(np.float64)
    return np.array([_number(value) for value in values], dtype=np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # a bad record must neither stop nor announce itself
        return math.nan
