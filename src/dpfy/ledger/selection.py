"""Repeat and select: a run is repeated a secret number of times, and the best is released.

Tests: tests/ledger/test_scopes.py.
"""

import math
from dataclasses import dataclass
from typing import Self

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.composite_events import fixed
from dpfy.ledger.events import Event, Fact


class Trials(Fact):
    """The law from which the number of runs is drawn.

    The law is public; the number itself stays secret.
    """

    @property
    def mean(self) -> float:
        """The expected number of runs."""
        raise NotImplementedError


@dataclass(frozen=True)
class NegativeBinomialTrials(Trials, tag="negative_binomial_trials"):
    """A negative binomial number of runs, conditioned on being positive.

    Pr[K = k] ∝ (1 − ``success``)^k · Γ(k + ``shape``)/k! for k ≥ 1. A ``shape`` of 1 is the
    geometric law, and 0 the logarithmic law. A smaller shape makes a given mean cheaper, and makes
    small numbers of runs more frequent.

    Args:
        shape: above −1, and 0 or at least 1e-6 away from it.
        success: in [1e-12, 1).

    Reference: Papernot & Steinke 2022, Definition 1.

    >>> trials = NegativeBinomialTrials.with_mean(100.0, shape=0.0)
    >>> round(trials.success, 8), round(trials.mean, 6)
    (0.00154212, 100.0)
    """

    shape: float
    success: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "shape", _validate.real("shape", self.shape, -1, 1e6, open_low=True)
        )
        if 0 < abs(self.shape) < 1e-6:
            raise InvalidArgument(
                f"Expected shape={self.shape!r} to be 0 or at least 1e-6 from it. Use 0."
            )
        object.__setattr__(
            self, "success", _validate.real("success", self.success, 1e-12, 1, open_high=True)
        )

    @classmethod
    def with_mean(cls, mean: float, shape: float = 1.0) -> Self:
        """Return the law of this ``shape`` whose mean is ``mean`` or, by rounding, just below.

        Raises:
            InvalidArgument: if no law of this shape has such a mean.
        """
        mean = _validate.real("mean", mean, 1, 1e9, open_low=True)
        low, high = math.log(1e-12), math.log1p(-1e-15)
        if cls(shape, math.exp(low)).mean < mean:
            raise InvalidArgument(
                f"Expected mean={mean!r} to be within reach of shape={shape!r}. Use a larger shape."
            )
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (
                (middle, high) if cls(shape, math.exp(middle)).mean > mean else (low, middle)
            )
        return cls(shape, math.exp(high))

    @property
    def odds(self) -> float:
        """The odds against success, without cancellation."""
        return (1 - self.success) / self.success

    @property
    def mean(self) -> float:
        """The expected number of runs."""
        log = math.log(self.success)
        ratio = self.shape / -math.expm1(self.shape * log) if self.shape else -1 / log
        return self.odds * ratio


@dataclass(frozen=True)
class PoissonTrials(Trials, tag="poisson_trials"):
    """A Poisson number of runs; if it is zero, nothing is released.

    Args:
        rate: the mean, in (0, 1e9].
    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1e9, open_low=True))

    @property
    def mean(self) -> float:
        """The expected number of runs."""
        return self.rate


@dataclass(frozen=True)
class Selected(Event, tag="selected"):
    """A run that was repeated, of which the best output is released.

    Args:
        run: the event of each run.
        trials: the law of the number of runs.

    *Assumes* that the number of runs, the other runs and all scores stay secret; that runs are
    independent and identically distributed: settings are drawn anew for each from one public law,
    not taken from a list in turn; that the score of a run is computed from what the run releases,
    not from when it ran; and that ties are broken by an order that does not depend on the data, or
    at random.
    """

    run: Event
    trials: Trials

    def __post_init__(self) -> None:
        fixed((self.run,))
        if self.run.at_most is not None:
            raise InvalidArgument(
                f"Expected a whole run, got one {self.run.tag!r} of it. Give Composed.of the run's "
                "envelope."
            )
        if not isinstance(self.trials, Trials):
            raise InvalidArgument(
                f"Expected the law of the number of runs, got {type(self.trials).__name__}."
            )
