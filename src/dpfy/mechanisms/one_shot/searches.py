"""Searches for the first number above a threshold.

Tests: tests/mechanisms/one_shot/test_one_shot.py.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from dpfy import _validate
from dpfy._process import Opener
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Sampled
from dpfy.ledger.one_shot import AboveThreshold
from dpfy.mechanisms.one_shot.base import UP, NumberLattice, once, require_positive
from dpfy.noise import SecureStream


@dataclass(frozen=True)
class SparseVector:
    """A search for the first number above ``threshold`` in a series; nothing after it is answered.

    *Formal guarantee*: one noise on the threshold, a fresh one on every number, nothing but "below"
    or "above" is answered, and the first "above" is the last answer; then it is ε-differentially
    private with ε = sensitivity/threshold_scale + 2·sensitivity/query_scale (once for ``monotone``
    numbers), however many numbers were below, and whether or not they were chosen from earlier
    answers.

    *Assumes* that one record moves every number, as computed, by at most ``sensitivity``. A number
    that is not finite counts as 0.

    Args:
        threshold: The threshold, any finite number.
        sensitivity: The most that one record moves a number, above zero.
        threshold_scale: The scale of the noise of the threshold, above zero.
        query_scale: The scale of the noise of each number, above zero.
        monotone: Whether one record moves all numbers the same way.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If an argument is out of its range.

    Reference: Lyu, Su & Li 2017, Theorems 4 and 5 (many published variants are wrong).

    >>> search = SparseVector.with_epsilon(4.0, threshold=10.0)
    >>> search.release([1.0, 2.0, 60.0, 3.0], SecureStream(insecure_test_key=3))
    2
    """

    threshold: float
    sensitivity: float
    threshold_scale: float
    query_scale: float
    monotone: bool = False
    name: str = "threshold"

    def __post_init__(self) -> None:
        require_positive(self, "sensitivity", "threshold_scale", "query_scale")
        _validate.real(
            "threshold", self.threshold, -math.inf, math.inf, open_low=True, open_high=True
        )

    @classmethod
    def with_epsilon(
        cls,
        epsilon: float,
        threshold: float,
        sensitivity: float = 1.0,
        monotone: bool = False,
        name: str = "threshold",
    ) -> Self:
        """Return the ε-differentially private search with the least variance of the comparison.

        It spends 1 : 2^⅔ (monotone: 1 : 1) on threshold and numbers (Lyu, Su & Li 2017, section
        4.2).
        """
        times = 1 if monotone else 2
        epsilon = _validate.epsilon(epsilon)
        first = epsilon / (1 + times ** (2 / 3))
        return cls(
            threshold,
            sensitivity,
            sensitivity / first * UP,
            times * sensitivity / (epsilon - first) * UP,
            monotone,
            name,
        )

    @property
    def event(self) -> Sampled:
        """The cost of the whole search."""
        return once(
            AboveThreshold(
                self.sensitivity, self.threshold_scale, self.query_scale, self.monotone, self.name
            )
        )

    def begin(self, stream: SecureStream) -> "Search":
        """Begin a search that is asked one number at a time.

        A number may be chosen from earlier answers.
        """
        return Search(self, stream)

    def release(self, values: Iterable[float], stream: SecureStream) -> int | None:
        """Return the index of the first number above, or None; no number after it is read."""
        search = self.begin(stream)
        for place, value in enumerate(values):
            if search.is_above(value):
                return place
        return None


class Search:
    """One search for a number above a threshold; it ends with the first such number."""

    def __init__(self, mechanism: SparseVector, stream: SecureStream) -> None:
        finest = min(mechanism.threshold_scale, mechanism.query_scale)
        self._mechanism, self._stream = mechanism, stream
        self._lattice = NumberLattice(mechanism.sensitivity, finest)
        noise = self._lattice.laplace(mechanism.threshold_scale, stream)
        self._limit = self._lattice.steps(mechanism.threshold) + noise
        self._opener = Opener()
        self.ended = False

    def is_above(self, value: float) -> bool:
        """Answer whether ``value`` is above the threshold, both with noise.

        Raises:
            InvalidArgument: if the search is over.
            LedgerError: in a fork of the process that began it.
        """
        self._opener.require(
            "The search",
            "go on with it",
            "Its answers are paid for once. Go on in the process that began it.",
        )
        if self.ended:
            raise InvalidArgument(
                "The search has found a number above the threshold and is over: another answer "
                "would cost another event. Reserve one and begin another search."
            )
        noise = self._lattice.laplace(self._mechanism.query_scale, self._stream)
        self.ended = self._lattice.steps(value) + noise >= self._limit
        return self.ended
