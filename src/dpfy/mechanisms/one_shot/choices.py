"""Choices among candidates by their scores.

Tests: tests/mechanisms/one_shot/test_one_shot.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Sampled
from dpfy.ledger.one_shot import ExponentialChoice, NoisyMax
from dpfy.mechanisms.discrete import below, exponential_coin
from dpfy.mechanisms.one_shot.base import UP, NumberLattice, once, require_positive
from dpfy.noise import SecureStream


@dataclass(frozen=True)
class _Choice:
    """A choice among candidates by scores that one record moves by at most ``sensitivity``."""

    sensitivity: float
    scale: float
    monotone: bool = False
    name: str = "choice"

    def __post_init__(self) -> None:
        require_positive(self, "sensitivity", "scale")

    @classmethod
    def with_epsilon(
        cls, epsilon: float, sensitivity: float = 1.0, monotone: bool = False, name: str = "choice"
    ) -> Self:
        """Return the mechanism that is ε-differentially private if a record is added or removed."""
        times = 1 if monotone else 2
        return cls(
            sensitivity, times * sensitivity / _validate.epsilon(epsilon) * UP, monotone, name
        )


@dataclass(frozen=True)
class ExponentialMechanism(_Choice):
    """A choice in proportion to e^{score/scale}: the largest score after Gumbel noise.

    *Formal guarantee*: with ε = 2·sensitivity/scale (half of it for ``monotone`` scores) losses
    span at most ε, so the choice is ε-differentially private and ε²/8-zCDP. The odds are exact.

    *Assumes* that one record moves every score, as computed, by at most ``sensitivity``;
    ``monotone``: and all of them one way. Nobody measures how long the choice takes. A score that
    is not finite is the lowest.

    Args:
        sensitivity: The most that one record moves a score, above zero.
        scale: The scale of the noise, above zero.
        monotone: Whether one record moves all scores the same way, which halves ε.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If a number is not above zero.

    Reference: McSherry & Talwar 2007, Theorem 6; Cesar & Rogers 2021, Lemma 3.2.

    >>> choice = ExponentialMechanism.with_epsilon(2.0)
    >>> choice.release([1.0, 9.0, 2.0], SecureStream(insecure_test_key=3))
    1
    """

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""
        return once(ExponentialChoice(self.sensitivity, self.scale, self.monotone, self.name))

    def release(self, values: Sequence[float], stream: SecureStream) -> int:
        """Return the index of a random candidate, accepted with odds e^{(score − best)/scale}."""
        distances = _distances(values, self.scale)
        while True:
            candidate = below(len(distances), stream)
            if exponential_coin(distances[candidate], stream):
                return candidate


@dataclass(frozen=True)
class PermuteAndFlip(_Choice):
    """A choice by coins of odds e^{(score − best)/scale}, in a random order, up to the first heads.

    *Formal guarantee*: the same as the largest score after exponential noise: ε-differentially
    private with ε = 2·sensitivity/scale (half of it for ``monotone`` scores), and never worse on
    average than the exponential mechanism of that ε. The odds are exact.

    *Assumes* what :class:`ExponentialMechanism` does.

    Args:
        sensitivity: The most that one record moves a score, above zero.
        scale: The scale of the noise, above zero.
        monotone: Whether one record moves all scores the same way, which halves ε.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If a number is not above zero.

    Reference: McKenna & Sheldon 2020, Theorem 2; Ding et al. 2021.

    >>> choice = PermuteAndFlip.with_epsilon(2.0)
    >>> choice.release([1.0, 9.0, 2.0], SecureStream(insecure_test_key=3))
    1
    """

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""
        return once(NoisyMax(self.sensitivity, self.scale, self.monotone, self.name))

    def release(self, values: Sequence[float], stream: SecureStream) -> int:
        """Return the index of the chosen candidate; the best one always shows heads."""
        distances = _distances(values, self.scale)
        left = list(range(len(distances)))
        while True:
            candidate = left.pop(below(len(left), stream))
            if exponential_coin(distances[candidate], stream):
                return candidate


@dataclass(frozen=True)
class ReportNoisyMax(_Choice):
    """The candidate with the largest score after Laplace noise; the first of equals.

    *Formal guarantee*: ε-differentially private with ε = 2·sensitivity/scale, half of it for
    ``monotone`` scores. Scores and noise are on a lattice, on which equals are put in a fixed
    order.

    *Assumes* what :class:`ExponentialMechanism` does.

    Args:
        sensitivity: The most that one record moves a score, above zero.
        scale: The scale of the noise, above zero.
        monotone: Whether one record moves all scores the same way, which halves ε.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If a number is not above zero.

    Reference: Dwork & Roth 2014, Claim 3.9.

    >>> choice = ReportNoisyMax.with_epsilon(2.0)
    >>> choice.release([1.0, 9.0, 2.0], SecureStream(insecure_test_key=3))
    1
    """

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""
        return once(NoisyMax(self.sensitivity, self.scale, self.monotone, self.name))

    def release(self, values: Sequence[float], stream: SecureStream) -> int:
        """Return the index of the chosen candidate."""
        scores = _scores(values)
        lattice = NumberLattice(self.sensitivity, self.scale)
        noisy = [lattice.steps(score) + lattice.laplace(self.scale, stream) for score in scores]
        return noisy.index(max(noisy))


def _scores(values: Sequence[float]) -> list[float]:
    """Return finite scores: those that are not finite become the lowest."""
    if len(values) == 0:
        raise InvalidArgument("Expected at least one candidate to choose from.")
    scores = [float(value) for value in values]
    finite = [score for score in scores if math.isfinite(score)] or [0.0]
    return [score if math.isfinite(score) else min(finite) for score in scores]


def _distances(values: Sequence[float], scale: float) -> list[Fraction]:
    """Return the distance of each score from the best one, in scales, exactly."""
    scores = _scores(values)
    best = Fraction(max(scores))
    return [(best - Fraction(score)) / Fraction(scale) for score in scores]
