"""Randomised response: a report is a value, the true one with a known probability."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpfy.ledger import Ledger
from dpfy.local.frequencies import Frequencies
from dpfy.local.person import StrPath, check_declared, own_value, send
from dpfy.mechanisms.one_shot import RandomizedResponse as Response
from dpfy.noise import SecureStream


@dataclass(frozen=True)
class RandomizedResponse:
    """Report a value that is true with a known probability, and otherwise any other one.

    It has the least error where values are few: fewer than 3·e^ε + 2. Where they are more, use
    :class:`UnaryEncoding`.

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

    Reference: Warner 1965; Kairouz, Oh & Viswanath 2016; Wang, Blocki, Li & Jha 2017, §4.1 (GRR);
    ``docs/proofs/local.md``, Lemma 1.

    >>> response = RandomizedResponse(values=3, epsilon=20.0)
    >>> with Ledger.in_memory() as ledger:
    ...     response.report(2, ledger)
    2
    """

    values: int
    epsilon: float
    reports: int = 1

    def __post_init__(self) -> None:
        check_declared(self.values, self.epsilon, self.reports)

    @property
    def truth(self) -> float:
        """The probability of a true report."""
        return self._response.truth

    @property
    def lie(self) -> float:
        """The probability of each other report."""
        return (1 - self.truth) / (self.values - 1)

    def report(
        self,
        value: object,
        ledger: Ledger | StrPath,
        *,
        insecure_test_key: int | bytes | None = None,
    ) -> int:
        """Draw a report about a value, on the device of the person that it belongs to.

        Args:
            value: The value, from 0; what is none of the declared ones counts as 0.
            ledger: The ledger of the person, open or the path of one.
            insecure_test_key: A key that makes the draw reproducible, and the report not private.

        Returns:
            The report, a value.

        Raises:
            BudgetExhausted: If the person has sent all reports; the value was not read.
            LedgerMismatch: If the ledger was begun for something else.
        """
        plan = {"method": "randomized_response", "values": self.values}
        return send(
            ledger,
            plan,
            self.epsilon,
            self.reports,
            lambda stream: self.draw(value, stream),
            insecure_test_key,
        )

    def draw(self, value: object, stream: SecureStream) -> int:
        """Return a report with fresh coins from ``stream``; :meth:`report` also pays for it.

        Args:
            value: The value.
            stream: The source of the coins.

        Returns:
            The report.
        """
        return self._response.release([own_value(value, self.values)], stream)[0]

    def estimate(self, reports: Iterable[int]) -> Frequencies:
        """Return how many people have each value, from the reports of all.

        Args:
            reports: One report of each person; what is no report is left out.

        Returns:
            The counts, with their errors.
        """
        found = np.array([int(each) for each in reports], dtype=np.int64)
        found = found[(found >= 0) & (found < self.values)]
        support = np.bincount(found, minlength=self.values).astype(np.float64)
        return Frequencies(support, len(found), self.truth, self.lie)

    @cached_property
    def _response(self) -> Response:
        return Response.with_epsilon(self.epsilon, self.values, "report")
