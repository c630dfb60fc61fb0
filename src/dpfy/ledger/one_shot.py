"""Queries that are answered once: a choice, a comparison, a noisy answer.

Like the sums of :mod:`dpfy.ledger.events` they state only what their cost depends on: how far one
record moves a score, and the scale of the noise. They run on all records or on one sample. A query
on all records is ``Sampled(Poisson(1.0), (query,))``.

Tests: tests/accounting/rules_for/test_one_shot.py.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import RecordedQuery

_UP = 1 + 1e-15


class Bounded(RecordedQuery):
    """A query whose privacy loss is bounded."""

    @property
    def largest_loss(self) -> float:
        """An upper bound on the privacy loss when one record is added or removed."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Scored(Bounded):
    """A function of scores with noise.

    Args:
        sensitivity: the largest distance by which one record moves any score.
        scale: the scale of the noise.
        monotone: whether adding a record moves all scores in one direction, if any.
        name: what is chosen.
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
    """One of several candidates, chosen with probability proportional to e^{score/scale}.

    This equals taking the largest score after Gumbel noise.

    Args:
        sensitivity: the largest distance by which one record moves any score.
        scale: the scale of the noise.
        monotone: whether adding a record moves all scores in one direction, if any.
        name: what is chosen.
    """


@dataclass(frozen=True)
class ListedChoice(_Scored, tag="listed_choice"):
    """An exponential choice whose scores rest on a public list of people.

    Neighbours have the same people on the list, each with a record or without one. A record moves
    the scores no further than declared where this is so, and may where people are added to the
    list: relations under which the list is private have no rule.

    Args:
        sensitivity: the largest distance by which one record moves any score.
        scale: the scale of the noise.
        monotone: whether adding a record moves all scores in one direction, if any.
        name: what is chosen.
    """


@dataclass(frozen=True)
class NoisyMax(_Scored, tag="noisy_max"):
    """The candidate with the largest score after Laplace or exponential noise.

    Permute-and-flip is the mechanism with exponential noise.

    Args:
        sensitivity: the largest distance by which one record moves any score.
        scale: the scale of the noise.
        monotone: whether adding a record moves all scores in one direction, if any.
        name: what is chosen.
    """


@dataclass(frozen=True)
class AboveThreshold(Bounded, tag="above_threshold"):
    """The position of the first of a series of numbers above a threshold, and nothing else.

    Args:
        sensitivity: the largest distance by which one record moves any number.
        threshold_scale: scale of the Laplace noise of the threshold, drawn once.
        query_scale: scale of the Laplace noise of each number, drawn afresh.
        monotone: whether a record moves all numbers in one direction.
        name: what is compared.
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
        """Sensitivity over the threshold's scale, plus twice sensitivity over the numbers' scale.

        Monotone numbers need the second term only once.
        """
        return (
            _ratio(self.sensitivity, self.threshold_scale)
            + _ratio((1 if self.monotone else 2) * self.sensitivity, self.query_scale)
        ) * _UP


@dataclass(frozen=True)
class RandomizedAnswer(Bounded, tag="randomized_response"):
    """Randomized response: the true value with probability ``truth``, else another one.

    Each other value is equally likely. One record can change the true value to any other.

    Args:
        truth: probability of the true value, at least 1/``answers``.
        answers: the number of possible values, at least 2.
        name: what is asked.

    Raises:
        InvalidArgument: if the true value is less likely than another one.
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
        """The log of how much likelier an answer is when it is true, rounded up."""
        lie = 1 - Fraction(self.truth)
        if lie == 0:
            return math.inf
        odds = Fraction(self.truth) * (self.answers - 1) / lie
        return math.log1p(float(odds - 1)) * _UP if odds < 2 else math.log(float(odds)) * _UP

    @property
    def unmoved(self) -> float:
        """The probability of an answer that is true on neither of two neighbouring data sets."""
        return (1 - self.truth) * (self.answers - 2) / (self.answers - 1)


@dataclass(frozen=True)
class LabelAnswer(Bounded, tag="label_answer"):
    """Answers about one value of each record, such as its label, each of them ε-private.

    The set of likely answers may differ from record to record. One record can change its own value
    to any other, and has no part in the other answers.

    Args:
        epsilon: the largest log-ratio of the probabilities of an answer for two values.
        name: what is asked.
    """

    epsilon: float
    name: str = "label"

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "epsilon", _validate.real("epsilon", self.epsilon, 0, math.inf, open_high=True)
        )

    @property
    def largest_loss(self) -> float:
        """The declared ε."""
        return self.epsilon


@dataclass(frozen=True)
class DiscreteGaussianSum(RecordedQuery, tag="discrete_gaussian"):
    """Integers with discrete Gaussian noise.

    Args:
        l2_bound: the largest L2 norm by which one record moves the integers.
        stddev: parameter of the noise of each integer.
        coordinates: the number of integers.
        name: what the integers count.
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
