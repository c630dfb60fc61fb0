"""Optimised unary encoding: a report is a set of values, which holds the true one half of the time.

Tests: tests/local/test_unary.py.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpfy.ledger import Ledger
from dpfy.local.frequencies import Frequencies
from dpfy.local.person import StrPath, check_declared, own_value, send
from dpfy.mechanisms.discrete import coin
from dpfy.noise import SecureStream

_HALF = Fraction(1, 2)
_UP = 1 + 1e-15


@dataclass(frozen=True)
class UnaryEncoding:
    """Report one bit for each value: half of the time 1 for one's own, seldom 1 for another.

    Its error does not grow with the number of values; a report has as many bits as there are
    values. Where these are fewer than 3·e^ε + 2, :class:`RandomizedResponse` has less error.

    *Formal guarantee*: each report is ε-differentially private for replacing its value, whatever
    the collector knows; several reports of one person add up, on the person's ledger. The odds are
    exact.

    *Assumes* that who reports, and how often, is public.

    Args:
        values: The declared number of values, at least 2.
        epsilon: The ε of one report, from 1e-9 to 700.
        reports: The most reports that one person sends.

    Raises:
        InvalidArgument: If an argument is out of its range.

    Reference: Wang, Blocki, Li & Jha 2017, §4.3 (OUE); ``docs/proofs/local.md``, Lemma 2.

    >>> encoding = UnaryEncoding(values=4, epsilon=30.0)
    >>> with Ledger.in_memory() as ledger:
    ...     bits = encoding.report(2, ledger)
    >>> sum(bits) - bits[2]
    0
    """

    values: int
    epsilon: float
    reports: int = 1

    def __post_init__(self) -> None:
        check_declared(self.values, self.epsilon, self.reports)

    @property
    def truth(self) -> float:
        """The probability of a 1 for one's own value: a half."""
        return 0.5

    @property
    def lie(self) -> float:
        """The probability of a 1 for each other value: 1/(e^ε + 1), rounded up."""
        return min(math.exp(-self.epsilon) / (1 + math.exp(-self.epsilon)) * _UP, 0.5)

    def report(
        self,
        value: object,
        ledger: Ledger | StrPath,
        *,
        insecure_test_key: int | bytes | None = None,
    ) -> tuple[int, ...]:
        """Draw a report about a value, on the device of the person that it belongs to.

        Args:
            value: The value, from 0; what is none of the declared ones counts as 0.
            ledger: The ledger of the person, open or the path of one.
            insecure_test_key: A key that makes the draw reproducible, and the report not private.

        Returns:
            The report: a bit for each value.

        Raises:
            BudgetExhausted: If the person has sent all reports; the value was not read.
            LedgerMismatch: If the ledger was begun for something else.
        """
        plan = {"method": "unary_encoding", "values": self.values}
        return send(
            ledger,
            plan,
            self.epsilon,
            self.reports,
            lambda stream: self.draw(value, stream),
            insecure_test_key,
        )

    def draw(self, value: object, stream: SecureStream) -> tuple[int, ...]:
        """Return a report with fresh coins from ``stream``; :meth:`report` also pays for it.

        Args:
            value: The value.
            stream: The source of the coins.

        Returns:
            The report.
        """
        own = own_value(value, self.values)
        lie = Fraction(self.lie)
        return tuple(
            int(coin(_HALF if each == own else lie, stream)) for each in range(self.values)
        )

    def estimate(self, reports: Iterable[Sequence[int]]) -> Frequencies:
        """Return how many people have each value, from the reports of all.

        Args:
            reports: One report of each person; what has another number of bits is left out.

        Returns:
            The counts, with their errors.
        """
        found = [each for each in reports if len(each) == self.values]
        bits = np.array(found, dtype=np.float64).reshape(len(found), self.values) > 0
        return Frequencies(bits.sum(axis=0).astype(np.float64), len(found), self.truth, self.lie)
