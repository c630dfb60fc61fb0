"""How often values are, from noisy reports: without bias, and with the standard error."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Frequencies:
    """How many people have each value, as far as noisy reports tell.

    A report supports each value or not: its own value with probability ``truth``, and every other
    one with probability ``lie``.

    Args:
        support: The number of reports that support each value.
        reports: The number of reports.
        truth: The probability that a report supports its own value.
        lie: The probability that it supports another one, below ``truth``.

    >>> found = Frequencies(np.array([70.0, 40.0]), 100, truth=0.75, lie=0.25)
    >>> found.counts, found.errors.round(1)
    (array([90., 30.]), array([8.7, 8.7]))
    """

    support: Floats
    reports: int
    truth: float
    lie: float

    @property
    def counts(self) -> Floats:
        """The number of people with each value, without bias; it may be below 0."""
        return (self.support - self.reports * self.lie) / (self.truth - self.lie)

    @property
    def shares(self) -> Floats:
        """The share of people with each value, without bias; it may be below 0."""
        return self.counts / max(self.reports, 1)

    @property
    def variances(self) -> Floats:
        """The variance that the coins of the reports give each count, estimated from the count.

        It is that of so many true and false answers, for the people who reported; that they are a
        sample of more people is not in it.
        """
        have = np.clip(self.counts, 0, self.reports)
        yes, no = self.truth * (1 - self.truth), self.lie * (1 - self.lie)
        return (have * yes + (self.reports - have) * no) / (self.truth - self.lie) ** 2

    @property
    def errors(self) -> Floats:
        """The standard error of each count."""
        return np.sqrt(self.variances)

    @property
    def least_error(self) -> float:
        """The standard error of the count of a value that nobody has."""
        return math.sqrt(self.reports * self.lie * (1 - self.lie)) / (self.truth - self.lie)
