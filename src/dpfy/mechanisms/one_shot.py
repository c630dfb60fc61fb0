"""Mechanisms that answer once: numbers with noise, choices, a search for what is above a threshold,
coded answers.

Each is a frozen declaration that names the event it costs and draws its noise exactly;
:func:`release` records the event before the data is touched. The proofs are in
``docs/proofs/one-shot.md``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol, Self, TypeVar

import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument, LedgerMismatch
from dpfy.ledger import Ledger
from dpfy.ledger.events import LaplaceSum, Poisson, RecordedQuery, Sampled, SumQuery
from dpfy.ledger.one_shot import (
    AboveThreshold,
    DiscreteGaussianSum,
    ExponentialChoice,
    NoisyMax,
    RandomizedAnswer,
)
from dpfy.mechanisms.discrete import (
    below,
    coin,
    discrete_gaussian,
    exponential_coin,
    rounded_laplace,
)
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.noise import LatticeGaussian, SecureStream, lattice_step
from dpfy.noise.random_stream import require_purpose

_UP = 1 + 1e-15

Values = TypeVar("Values", contravariant=True)
Answer = TypeVar("Answer", covariant=True)


class Mechanism(Protocol[Values, Answer]):
    """A declaration of what is answered, with how much noise."""

    @property
    def event(self) -> Sampled:
        """What one answer costs."""

    def release(self, values: Values, stream: SecureStream) -> Answer:
        """Answer once, with fresh noise from ``stream``."""


def release(
    mechanism: Mechanism[Values, Answer],
    ledger: Ledger,
    compute: Callable[[], Values],
    stream: SecureStream | None = None,
    *,
    adaptive: bool = False,
    note: dict[str, Any] | None = None,
) -> Answer:
    """Record a mechanism's event in ``ledger``, then compute the values and answer.

    *Formal guarantee*: when ``compute`` is called the event is on stable storage and the ledger's
    guard has admitted it. ``adaptive`` marks a mechanism that was chosen from earlier outputs,
    which only a filter accounts.

    *Assumes* that nothing but ``compute`` touches the records, and that what it returns meets the
    mechanism's bound.

    >>> with Ledger.in_memory() as ledger:
    ...     stream = SecureStream(insecure_test_key=3)
    ...     noisy = release(Laplace(sensitivity=1.0, scale=2.0), ledger, lambda: 41.0, stream)
    Traceback (most recent call last):
    dpfy.errors.LedgerMismatch: ...
    """
    stream = SecureStream() if stream is None else require_purpose(stream, "noise")
    declared = ledger.header.key_source if ledger.header is not None else "operating system"
    if stream.key_source != declared and stream.key_source != "operating system":
        raise LedgerMismatch(
            f"The stream has an {stream.key_source}, but the ledger says that keys come from the "
            f"{declared}. Declare Header(key_source={stream.key_source!r}), or pass no stream."
        )
    event = mechanism.event
    ledger.reserve(replace(event, adaptive=True) if adaptive else event, note)
    values = compute()
    stream.refresh()  # a restored copy of the machine has the old key
    return mechanism.release(values, stream)


def _once(query: RecordedQuery) -> Sampled:
    return Sampled(Poisson(1.0), (query,))


@dataclass(frozen=True)
class Laplace:
    """One number with Laplace noise.

    *Formal guarantee*: a real Laplace number of ``scale`` for every ``sensitivity``, rounded to a
    lattice that is fixed before the value is seen; (sensitivity/scale)-differentially private, and
    less by :func:`dpfy.account`.

    *Assumes* that one record moves the value, as computed, by at most ``sensitivity``. A value that
    is not finite counts as 0.

    Reference: Dwork, McSherry, Nissim & Smith 2006, Proposition 1.

    >>> Laplace.with_epsilon(0.5, sensitivity=1.0).release(41.0, SecureStream(insecure_test_key=3))
    4...
    """

    sensitivity: float
    scale: float
    name: str = "count"

    def __post_init__(self) -> None:
        _positive(self, "sensitivity", "scale")

    @classmethod
    def with_epsilon(cls, epsilon: float, sensitivity: float = 1.0, name: str = "count") -> Self:
        """Return the mechanism that is ε-differentially private."""
        return cls(sensitivity, sensitivity / _validate.epsilon(epsilon) * _UP, name)

    @property
    def event(self) -> Sampled:
        """What one answer costs."""
        return _once(LaplaceSum(self.sensitivity, self.scale, self.name))

    def release(self, values: float, stream: SecureStream) -> float:
        """Answer once, with fresh noise from ``stream``."""
        lattice = _Lattice(self.sensitivity, self.scale)
        return float((lattice.steps(values) + lattice.laplace(self.scale, stream)) * lattice.step)


@dataclass(frozen=True)
class LaplaceVector:
    """Several numbers with Laplace noise.

    *Formal guarantee*: real Laplace numbers of ``scale`` for every ``l1_bound``, rounded to a
    lattice that is fixed before the values are seen; (l1_bound/scale)-differentially private, and
    what :class:`Laplace` costs, however many numbers there are and whichever of them one record
    moves.

    *Assumes* that one record moves the numbers, as computed, by at most ``l1_bound`` in all, and
    that their shape is public. Values that are not finite count as 0.

    Reference: Dwork, McSherry, Nissim & Smith 2006, Proposition 1; ``docs/proofs/one-shot.md``,
    Lemma 6.

    >>> LaplaceVector.with_epsilon(0.5, l1_bound=2.0).release([[3.0, 4.0]], SecureStream(insecure_test_key=3)).shape
    torch.Size([1, 2])
    """

    l1_bound: float
    scale: float
    name: str = "counts"

    def __post_init__(self) -> None:
        _positive(self, "l1_bound", "scale")

    @classmethod
    def with_epsilon(cls, epsilon: float, l1_bound: float = 1.0, name: str = "counts") -> Self:
        """Return the mechanism that is ε-differentially private."""
        return cls(l1_bound, l1_bound / _validate.epsilon(epsilon) * _UP, name)

    @property
    def event(self) -> Sampled:
        """What one answer costs."""
        return _once(LaplaceSum(self.l1_bound, self.scale, self.name))

    def release(self, values: Sequence[Any] | torch.Tensor, stream: SecureStream) -> torch.Tensor:
        """Answer once, with fresh noise from ``stream``."""
        numbers = torch.as_tensor(values, dtype=torch.float64).detach()
        lattice = _Lattice(self.l1_bound, self.scale, max(numbers.numel(), 1))
        noisy = [
            float((lattice.steps(value) + lattice.laplace(self.scale, stream)) * lattice.step)
            for value in numbers.flatten().tolist()
        ]
        return torch.tensor(noisy, dtype=torch.float64).reshape(numbers.shape)


@dataclass(frozen=True)
class Gaussian:
    """Numbers with Gaussian noise.

    *Formal guarantee*: post-processing of the real Gaussian mechanism of noise multiplier
    ``stddev``/``l2_bound``. ``calibrate_noise(epsilon=…, delta=…, rate=1.0, steps=1)`` of
    :mod:`dpfy.accounting` is the least one for any ε.

    *Assumes* that one record moves the vector, as computed, by at most ``l2_bound``. Values that
    are not finite count as 0.

    Reference: Balle & Wang 2018, Theorem 8.

    >>> Gaussian(l2_bound=1.0, stddev=2.0).release([3.0, 4.0], SecureStream(insecure_test_key=3)).shape
    torch.Size([2])
    """

    l2_bound: float
    stddev: float
    name: str = "sum"

    def __post_init__(self) -> None:
        _positive(self, "l2_bound", "stddev")

    @property
    def event(self) -> Sampled:
        """What one answer costs."""
        return _once(SumQuery(self.l2_bound, self.stddev, self.name))

    def release(self, values: Sequence[float] | torch.Tensor, stream: SecureStream) -> torch.Tensor:
        """Answer once, with fresh noise from ``stream``."""
        total = torch.as_tensor(values, dtype=torch.float64).detach().clone()
        total = torch.where(total.isfinite(), total, 0.0)
        mechanism = GaussianSum(
            self.l2_bound, self.stddev / self.l2_bound * _UP, max(total.numel(), 1)
        )
        return mechanism.release(total, LatticeGaussian(stream))


@dataclass(frozen=True)
class DiscreteGaussian:
    """Whole numbers with discrete Gaussian noise.

    *Formal guarantee*: noise k with probability in proportion to e^−k²/2·stddev², drawn exactly;
    (l2_bound²/2·stddev²)-zCDP.

    *Assumes* that one record moves the ``coordinates`` whole numbers by at most ``l2_bound`` in
    all.

    Reference: Canonne, Kamath & Steinke 2020, Theorem 14.

    >>> DiscreteGaussian(1.0, stddev=3.0).release([41], SecureStream(insecure_test_key=3))
    [4...]
    """

    l2_bound: float
    stddev: float
    coordinates: int = 1
    name: str = "count"

    def __post_init__(self) -> None:
        _positive(self, "l2_bound", "stddev")
        _validate.count("coordinates", self.coordinates)

    @property
    def event(self) -> Sampled:
        """What one answer costs."""
        return _once(DiscreteGaussianSum(self.l2_bound, self.stddev, self.coordinates, self.name))

    def release(self, values: Sequence[int], stream: SecureStream) -> list[int]:
        """Answer once, with fresh noise from ``stream``."""
        if len(values) != self.coordinates:
            raise InvalidArgument(
                f"Expected {self.coordinates} whole numbers, as declared by coordinates."
            )
        variance = Fraction(self.stddev) ** 2
        return [int(value) + discrete_gaussian(variance, stream) for value in values]


@dataclass(frozen=True)
class _Choice:
    """A choice among candidates by their scores, each of which one record moves by at most
    ``sensitivity``.
    """

    sensitivity: float
    scale: float
    monotone: bool = False
    name: str = "choice"

    def __post_init__(self) -> None:
        _positive(self, "sensitivity", "scale")

    @classmethod
    def with_epsilon(
        cls, epsilon: float, sensitivity: float = 1.0, monotone: bool = False, name: str = "choice"
    ) -> Self:
        """Return the mechanism that is ε-differentially private when a record is added or
        removed.
        """
        times = 1 if monotone else 2
        return cls(
            sensitivity, times * sensitivity / _validate.epsilon(epsilon) * _UP, monotone, name
        )


@dataclass(frozen=True)
class ExponentialMechanism(_Choice):
    """A candidate, chosen in proportion to e^{score/scale}: the largest score after Gumbel noise.

    *Formal guarantee*: with ε = 2·sensitivity/scale (half of it for ``monotone`` scores) losses
    span at most ε, so the choice is ε-differentially private and ε²/8-zCDP. The odds are exact.

    *Assumes* that one record moves every score, as computed, by at most ``sensitivity``;
    ``monotone``: and all of them one way. Nobody measures how long the choice takes. A score that
    is not finite is the lowest.

    Reference: McSherry & Talwar 2007, Theorem 6; Cesar & Rogers 2021, Lemma 3.2.

    >>> ExponentialMechanism.with_epsilon(2.0).release([1.0, 9.0, 2.0], SecureStream(insecure_test_key=3))
    1
    """

    @property
    def event(self) -> Sampled:
        """What one answer costs."""
        return _once(ExponentialChoice(self.sensitivity, self.scale, self.monotone, self.name))

    def release(self, values: Sequence[float], stream: SecureStream) -> int:
        """Return the place of the chosen candidate: any, taken with odds e^{(score −
        best)/scale}.
        """
        behind = _behind(values, self.scale)
        while True:
            candidate = below(len(behind), stream)
            if exponential_coin(behind[candidate], stream):
                return candidate


@dataclass(frozen=True)
class PermuteAndFlip(_Choice):
    """A candidate, chosen by flipping coins of odds e^{(score − best)/scale} in a random order
    until one shows heads.

    *Formal guarantee*: the same as the largest score after exponential noise: ε-differentially
    private with ε = 2·sensitivity/scale (half of it for ``monotone`` scores), and never worse on
    average than the exponential mechanism of that ε. The odds are exact.

    *Assumes* what :class:`ExponentialMechanism` does.

    Reference: McKenna & Sheldon 2020, Theorem 2; Ding et al. 2021.

    >>> PermuteAndFlip.with_epsilon(2.0).release([1.0, 9.0, 2.0], SecureStream(insecure_test_key=3))
    1
    """

    @property
    def event(self) -> Sampled:
        """What one answer costs."""
        return _once(NoisyMax(self.sensitivity, self.scale, self.monotone, self.name))

    def release(self, values: Sequence[float], stream: SecureStream) -> int:
        """Return the place of the chosen candidate; the best one always shows heads."""
        behind = _behind(values, self.scale)
        left = list(range(len(behind)))
        while True:
            candidate = left.pop(below(len(left), stream))
            if exponential_coin(behind[candidate], stream):
                return candidate


@dataclass(frozen=True)
class ReportNoisyMax(_Choice):
    """The candidate with the largest score after Laplace noise; the first of equals.

    *Formal guarantee*: ε-differentially private with ε = 2·sensitivity/scale, half of it for
    ``monotone`` scores. Scores and noise are on a lattice, on which equals are put in a fixed
    order.

    *Assumes* what :class:`ExponentialMechanism` does.

    Reference: Dwork & Roth 2014, Claim 3.9.

    >>> ReportNoisyMax.with_epsilon(2.0).release([1.0, 9.0, 2.0], SecureStream(insecure_test_key=3))
    1
    """

    @property
    def event(self) -> Sampled:
        """What one answer costs."""
        return _once(NoisyMax(self.sensitivity, self.scale, self.monotone, self.name))

    def release(self, values: Sequence[float], stream: SecureStream) -> int:
        """Return the place of the chosen candidate."""
        scores = _scores(values)
        lattice = _Lattice(self.sensitivity, self.scale)
        noisy = [lattice.steps(score) + lattice.laplace(self.scale, stream) for score in scores]
        return noisy.index(max(noisy))


@dataclass(frozen=True)
class SparseVector:
    """The first of a series of numbers that is above ``threshold``, and nothing after it.

    *Formal guarantee*: one noise on the threshold, a fresh one on every number, nothing but "below"
    or "above" is answered, and the first "above" is the last answer; then it is ε-differentially
    private with ε = sensitivity/threshold_scale + 2·sensitivity/query_scale (once for ``monotone``
    numbers), however many numbers were below, and whether or not they were chosen from earlier
    answers.

    *Assumes* that one record moves every number, as computed, by at most ``sensitivity``. A number
    that is not finite counts as 0.

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
        _positive(self, "sensitivity", "threshold_scale", "query_scale")
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
        """Return the ε-differentially private search that spends 1 : 2^⅔ (monotone: 1 : 1) on
        threshold and numbers, which minimises the variance of what is compared (Lyu, Su & Li 2017,
        section 4.2).
        """
        times = 1 if monotone else 2
        epsilon = _validate.epsilon(epsilon)
        first = epsilon / (1 + times ** (2 / 3))
        return cls(
            threshold,
            sensitivity,
            sensitivity / first * _UP,
            times * sensitivity / (epsilon - first) * _UP,
            monotone,
            name,
        )

    @property
    def event(self) -> Sampled:
        """What the whole search costs."""
        return _once(
            AboveThreshold(
                self.sensitivity, self.threshold_scale, self.query_scale, self.monotone, self.name
            )
        )

    def begin(self, stream: SecureStream) -> "Search":
        """Return a search that is asked number by number, each perhaps chosen from the answers
        before.
        """
        return Search(self, stream)

    def release(self, values: Iterable[float], stream: SecureStream) -> int | None:
        """Return the place of the first number above, or None; no number after it is asked for."""
        search = self.begin(stream)
        for place, value in enumerate(values):
            if search.is_above(value):
                return place
        return None


class Search:
    """One search for a number above a threshold; it ends with the first."""

    def __init__(self, mechanism: SparseVector, stream: SecureStream) -> None:
        finest = min(mechanism.threshold_scale, mechanism.query_scale)
        self._mechanism, self._stream = mechanism, stream
        self._lattice = _Lattice(mechanism.sensitivity, finest)
        noise = self._lattice.laplace(mechanism.threshold_scale, stream)
        self._limit = self._lattice.steps(mechanism.threshold) + noise
        self.ended = False

    def is_above(self, value: float) -> bool:
        """Answer whether ``value`` is above the threshold, both with noise."""
        if self.ended:
            raise InvalidArgument(
                "The search has found a number above the threshold and is over: another answer "
                "would cost another event. Reserve one and begin another search."
            )
        noise = self._lattice.laplace(self._mechanism.query_scale, self._stream)
        self.ended = self._lattice.steps(value) + noise >= self._limit
        return self.ended


@dataclass(frozen=True)
class RandomizedResponse:
    """Answers from 0 to ``answers`` − 1, each true with probability ``truth`` and else any other,
    equally often.

    *Formal guarantee*: ε-differentially private with e^ε = truth·(answers − 1)/(1 − truth). The
    odds are exact.

    *Assumes* that one record has a say in one of the answers, and that how many there are is
    public.

    Reference: Warner 1965; Kairouz, Oh & Viswanath 2016.

    >>> RandomizedResponse.with_epsilon(8.0).release([0, 1, 1], SecureStream(insecure_test_key=3))
    [0, 1, 1]
    """

    truth: float
    answers: int = 2
    name: str = "response"

    def __post_init__(self) -> None:
        self.event  # noqa: B018 - it refuses values outside their domain

    @classmethod
    def with_epsilon(cls, epsilon: float, answers: int = 2, name: str = "response") -> Self:
        """Return the mechanism that is ε-differentially private."""
        lies = (_validate.count("answers", answers, minimum=2) - 1) * math.exp(
            -_validate.epsilon(epsilon)
        )
        return cls(max(1 / (1 + lies) * (1 - 1e-15), 1 / answers * (1 + 1e-15)), answers, name)

    @property
    def event(self) -> Sampled:
        """What the answers cost a record that has a say in one of them."""
        return _once(RandomizedAnswer(self.truth, self.answers, self.name))

    def release(self, values: Sequence[int], stream: SecureStream) -> list[int]:
        """Answer once, with fresh coins from ``stream``; a value that is no answer counts as 0."""
        truth = Fraction(self.truth)
        return [
            self._answer(value if 0 <= value < self.answers else 0, truth, stream)
            for value in map(int, values)
        ]

    def _answer(self, value: int, truth: Fraction, stream: SecureStream) -> int:
        if coin(truth, stream):
            return value
        other = below(self.answers - 1, stream)
        return other + (other >= value)


class _Lattice:
    """Numbers in steps of a power of two that depends on declared scales alone.

    Rounding moves a difference of two values by up to a step, and one of several numbers by as
    many, which the noise makes up for.
    """

    def __init__(self, sensitivity: float, finest: float, numbers: int = 1) -> None:
        self.step = Fraction(lattice_step(finest))
        self._stretch = 1 + numbers * self.step / Fraction(sensitivity)

    def steps(self, value: float) -> int:
        return round(Fraction(value) / self.step) if math.isfinite(value) else 0

    def laplace(self, scale: float, stream: SecureStream) -> int:
        return rounded_laplace(Fraction(scale) * self._stretch / self.step, stream)


def _scores(values: Sequence[float]) -> list[float]:
    if len(values) == 0:
        raise InvalidArgument("Expected at least one candidate to choose from.")
    scores = [float(value) for value in values]
    finite = [score for score in scores if math.isfinite(score)] or [0.0]
    return [score if math.isfinite(score) else min(finite) for score in scores]


def _behind(values: Sequence[float], scale: float) -> list[Fraction]:
    """By how many scales each score is behind the best one, exactly."""
    scores = _scores(values)
    best = Fraction(max(scores))
    return [(best - Fraction(score)) / Fraction(scale) for score in scores]


def _positive(declared: object, *names: str) -> None:
    for name in names:
        object.__setattr__(declared, name, _validate.positive(name, getattr(declared, name)))
