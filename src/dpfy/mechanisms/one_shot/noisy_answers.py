"""Numbers with noise, and answers that are true with a known probability.

Tests: tests/mechanisms/one_shot/test_one_shot.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import LaplaceSum, Sampled, SumQuery
from dpfy.ledger.one_shot import DiscreteGaussianSum, RandomizedAnswer
from dpfy.mechanisms.discrete import below, coin, discrete_gaussian
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.one_shot.base import UP, NumberLattice, once, require_positive
from dpfy.noise import LatticeGaussian, SecureStream


@dataclass(frozen=True)
class Laplace:
    """One number with Laplace noise.

    *Formal guarantee*: a real Laplace number of ``scale`` for every ``sensitivity``, rounded to a
    lattice that is fixed before the value is seen; (sensitivity/scale)-differentially private, and
    less by :func:`dpfy.account`.

    *Assumes* that one record moves the value, as computed, by at most ``sensitivity``. A value that
    is not finite counts as 0.

    Args:
        sensitivity: The most that one record moves the value, above zero.
        scale: The scale of the noise, above zero.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If a number is not above zero.

    Reference: Dwork, McSherry, Nissim & Smith 2006, Proposition 1.

    >>> Laplace.with_epsilon(0.5, sensitivity=1.0).release(41.0, SecureStream(insecure_test_key=3))
    4...
    """

    sensitivity: float
    scale: float
    name: str = "count"

    def __post_init__(self) -> None:
        require_positive(self, "sensitivity", "scale")

    @classmethod
    def with_epsilon(cls, epsilon: float, sensitivity: float = 1.0, name: str = "count") -> Self:
        """Return the mechanism that is ε-differentially private."""
        return cls(sensitivity, sensitivity / _validate.epsilon(epsilon) * UP, name)

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""
        return once(LaplaceSum(self.sensitivity, self.scale, self.name))

    def release(self, values: float, stream: SecureStream) -> float:
        """Answer once, with fresh noise from ``stream``."""
        lattice = NumberLattice(self.sensitivity, self.scale)
        return float((lattice.steps(values) + lattice.laplace(self.scale, stream)) * lattice.step)


@dataclass(frozen=True)
class LaplaceVector:
    """Several numbers with Laplace noise.

    *Formal guarantee*: real Laplace numbers of ``scale`` for every ``l1_bound``, rounded to a
    lattice that is fixed before the values are seen; (l1_bound/scale)-differentially private, and
    the cost of :class:`Laplace`, however many numbers there are and whichever of them one record
    moves.

    *Assumes* that one record moves the numbers, as computed, by at most ``l1_bound`` in all, and
    that their shape is public. Values that are not finite count as 0.

    Args:
        l1_bound: The most that one record moves the numbers in all, above zero.
        scale: The scale of the noise of each number, above zero.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If a number is not above zero.

    Reference: Dwork, McSherry, Nissim & Smith 2006, Proposition 1; ``docs/proofs/one-shot.md``,
    Lemma 6.

    >>> counts = LaplaceVector.with_epsilon(0.5, l1_bound=2.0)
    >>> counts.release([[3.0, 4.0]], SecureStream(insecure_test_key=3)).shape
    torch.Size([1, 2])
    """

    l1_bound: float
    scale: float
    name: str = "counts"

    def __post_init__(self) -> None:
        require_positive(self, "l1_bound", "scale")

    @classmethod
    def with_epsilon(cls, epsilon: float, l1_bound: float = 1.0, name: str = "counts") -> Self:
        """Return the mechanism that is ε-differentially private."""
        return cls(l1_bound, l1_bound / _validate.epsilon(epsilon) * UP, name)

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""
        return once(LaplaceSum(self.l1_bound, self.scale, self.name))

    def release(self, values: Sequence[Any] | torch.Tensor, stream: SecureStream) -> torch.Tensor:
        """Answer once, with fresh noise from ``stream``."""
        numbers = torch.as_tensor(values, dtype=torch.float64).detach()
        lattice = NumberLattice(self.l1_bound, self.scale, max(numbers.numel(), 1))
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

    Args:
        l2_bound: The most that one record moves the vector in ℓ2 norm, above zero.
        stddev: The standard deviation of the noise of each number, above zero.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If a number is not above zero.

    Reference: Balle & Wang 2018, Theorem 8.

    >>> sums = Gaussian(l2_bound=1.0, stddev=2.0)
    >>> sums.release([3.0, 4.0], SecureStream(insecure_test_key=3)).shape
    torch.Size([2])
    """

    l2_bound: float
    stddev: float
    name: str = "sum"

    def __post_init__(self) -> None:
        require_positive(self, "l2_bound", "stddev")

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""
        return once(SumQuery(self.l2_bound, self.stddev, self.name))

    def release(self, values: Sequence[float] | torch.Tensor, stream: SecureStream) -> torch.Tensor:
        """Answer once, with fresh noise from ``stream``."""
        total = torch.as_tensor(values, dtype=torch.float64).detach().clone()
        total = torch.where(total.isfinite(), total, 0.0)
        mechanism = GaussianSum(
            self.l2_bound, self.stddev / self.l2_bound * UP, max(total.numel(), 1)
        )
        return mechanism.release(total, LatticeGaussian(stream))


@dataclass(frozen=True)
class DiscreteGaussian:
    """Whole numbers with discrete Gaussian noise.

    *Formal guarantee*: noise k with probability in proportion to e^−k²/2·stddev², drawn exactly;
    (l2_bound²/2·stddev²)-zCDP.

    *Assumes* that one record moves the ``coordinates`` whole numbers by at most ``l2_bound`` in
    all.

    Args:
        l2_bound: The most that one record moves the vector in ℓ2 norm, above zero.
        stddev: The parameter σ of the noise of each number, above zero.
        coordinates: The number of whole numbers that are answered, at least 1.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If a number is not above zero.

    Reference: Canonne, Kamath & Steinke 2020, Theorem 14.

    >>> DiscreteGaussian(1.0, stddev=3.0).release([41], SecureStream(insecure_test_key=3))
    [4...]
    """

    l2_bound: float
    stddev: float
    coordinates: int = 1
    name: str = "count"

    def __post_init__(self) -> None:
        require_positive(self, "l2_bound", "stddev")
        _validate.count("coordinates", self.coordinates)

    @property
    def event(self) -> Sampled:
        """The cost of one answer."""
        return once(DiscreteGaussianSum(self.l2_bound, self.stddev, self.coordinates, self.name))

    def release(self, values: Sequence[int], stream: SecureStream) -> list[int]:
        """Answer once, with fresh noise from ``stream``."""
        if len(values) != self.coordinates:
            raise InvalidArgument(
                f"Expected {self.coordinates} whole numbers, as declared by coordinates."
            )
        variance = Fraction(self.stddev) ** 2
        return [int(value) + discrete_gaussian(variance, stream) for value in values]


@dataclass(frozen=True)
class RandomizedResponse:
    """Answers that are true with a known probability, and otherwise uniform over the others.

    Answers are numbers from 0 to ``answers`` − 1.

    *Formal guarantee*: ε-differentially private with e^ε = truth·(answers − 1)/(1 − truth). The
    odds are exact.

    *Assumes* that one record has a say in one of the answers, and that their number is public.

    Args:
        truth: The probability of a true answer, from 1/answers to 1.
        answers: The number of possible answers, at least 2.
        name: The name of the query in the ledger.

    Raises:
        InvalidArgument: If an argument is out of its range.

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
        """The cost for a record that has a say in one of the answers."""
        return once(RandomizedAnswer(self.truth, self.answers, self.name))

    def release(self, values: Sequence[int], stream: SecureStream) -> list[int]:
        """Answer once, with fresh coins from ``stream``; a value that is no answer counts as 0."""
        truth = Fraction(self.truth)
        return [
            self._answer(value if 0 <= value < self.answers else 0, truth, stream)
            for value in map(int, values)
        ]

    def _answer(self, value: int, truth: Fraction, stream: SecureStream) -> int:
        """Return one randomized answer."""
        if coin(truth, stream):
            return value
        other = below(self.answers - 1, stream)
        return other + (other >= value)
