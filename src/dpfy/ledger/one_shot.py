"""Queries that are answered once, on all records or on one sample: a choice, a comparison, a noisy
answer.

Like the sums of :mod:`dpfy.ledger.events` they state what their cost depends on and nothing else:
by how much one record moves a score, and the scale of the noise. A query on all records is
``Sampled(Poisson(1.0), (query,))``.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import RecordedQuery

_UP = 1 + 1e-15


class Bounded(RecordedQuery):
    """A query whose loss is bounded."""

    @property
    def largest_loss(self) -> float:
        """A bound on the loss when one record is added or removed, rounded up."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Scored(Bounded):
    """A function of scores, each of which one record moves by at most ``sensitivity``, with noise
    of ``scale``.

    ``monotone`` says that a record that is added moves all scores one way, if any.
    """

    sensitivity: float
    scale: float
    monotone: bool = False
    name: str = "choice"

    def __post_init__(self) -> None:
        for name in ("sensitivity", "scale"):
            object.__setattr__(
                self, name, _validate.real(name, getattr(self, name), 0, math.inf, open_high=True)
            )
        _flag("monotone", self.monotone)

    @property
    def largest_loss(self) -> float:
        """2·sensitivity/scale, or half of it for monotone scores."""
        return _ratio((1 if self.monotone else 2) * self.sensitivity, self.scale)


@dataclass(frozen=True)
class ExponentialChoice(_Scored, tag="exponential_mechanism"):
    """One of several candidates, chosen in proportion to e^{score/scale}; the same as the largest
    score after Gumbel noise.
    """


@dataclass(frozen=True)
class NoisyMax(_Scored, tag="noisy_max"):
    """The candidate with the largest score after Laplace or exponential noise; permute-and-flip is
    the latter.
    """


@dataclass(frozen=True)
class AboveThreshold(Bounded, tag="above_threshold"):
    """Which of a series of numbers is the first above a threshold, nothing beyond it.

    The threshold has Laplace noise of ``threshold_scale``, drawn once, and each number one of
    ``query_scale``, drawn afresh. One record moves each number by at most ``sensitivity``;
    ``monotone`` says that it moves all of them one way.
    """

    sensitivity: float
    threshold_scale: float
    query_scale: float
    monotone: bool = False
    name: str = "threshold"

    def __post_init__(self) -> None:
        for name in ("sensitivity", "threshold_scale", "query_scale"):
            object.__setattr__(
                self, name, _validate.real(name, getattr(self, name), 0, math.inf, open_high=True)
            )
        _flag("monotone", self.monotone)

    @property
    def largest_loss(self) -> float:
        """Sensitivity over the threshold's scale, and twice (monotone: once) over that of the
        numbers.
        """
        return (
            _ratio(self.sensitivity, self.threshold_scale)
            + _ratio((1 if self.monotone else 2) * self.sensitivity, self.query_scale)
        ) * _UP


@dataclass(frozen=True)
class RandomizedAnswer(Bounded, tag="randomized_response"):
    """One of ``answers`` values: the true one with probability ``truth``, and each other one
    equally often.

    One record can change the true value to any other.
    """

    truth: float
    answers: int = 2
    name: str = "response"

    def __post_init__(self) -> None:
        _validate.count("answers", self.answers, minimum=2)
        object.__setattr__(self, "truth", _validate.real("truth", self.truth, 0, 1))
        if Fraction(self.truth) < Fraction(1, self.answers):
            raise InvalidArgument(
                f"Expected truth={self.truth!r} to be at least 1/{self.answers}: an answer that is "
                "less likely when it is true says as much as one that is more likely."
            )

    @property
    def largest_loss(self) -> float:
        """Log of how much likelier an answer is when it is true, rounded up."""
        lie = 1 - Fraction(self.truth)
        if lie == 0:
            return math.inf
        odds = Fraction(self.truth) * (self.answers - 1) / lie
        return math.log1p(float(odds - 1)) * _UP if odds < 2 else math.log(float(odds)) * _UP

    @property
    def unmoved(self) -> float:
        """The probability of an answer that is neither the true one nor another record's."""
        return (1 - self.truth) * (self.answers - 2) / (self.answers - 1)


@dataclass(frozen=True)
class DiscreteGaussianSum(RecordedQuery, tag="discrete_gaussian"):
    """Integers that one record moves by at most ``l2_bound`` in all, with discrete Gaussian noise
    of ``stddev``.
    """

    l2_bound: float
    stddev: float
    coordinates: int = 1
    name: str = "count"

    def __post_init__(self) -> None:
        for name in ("l2_bound", "stddev"):
            object.__setattr__(
                self, name, _validate.real(name, getattr(self, name), 0, math.inf, open_high=True)
            )
        _validate.count("coordinates", self.coordinates)


def _ratio(signal: float, noise: float) -> float:
    if signal == 0:
        return 0.0
    return signal / noise * _UP if noise > 0 else math.inf


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgument(f"Expected {name}={value!r} to be True or False.")
