"""Loss distributions other than of Gaussian and Laplace noise: tables, discrete Gaussians, ranges.

A loss distribution represents two distributions (P, Q) by how their loss log P/Q is spread. (P, Q)
dominates a mechanism on the data with a record against the data without it, and (Q, P) the reverse,
as for every pair. Accountants ask it for masses between losses (PLD) and for Rényi divergences
(RDP); it knows nothing of sampling and composition. The proofs are in ``docs/proofs/one-shot.md``.

Tests: tests/accounting/rules_for/test_one_shot.py.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dpfy.accounting.special import logsumexp
from dpfy.errors import InvalidArgument

Array = NDArray[np.float64]

_REACH = 42.0  # standard deviations, beyond which a discrete Gaussian has less than 1e-380
_MAX_ATOMS = 400_000
_SUMMED = 64  # the largest order at which a sampled discrete Gaussian is summed up


class Masses(NamedTuple):
    """Masses of the cells between losses, the two unbounded ones included.

    Args:
        p: Masses under P.
        q: Masses under Q.
        gain: P − Q, to relative precision.
    """

    p: Array
    q: Array
    gain: Array


class LossDistribution:
    """Two distributions, represented by their loss.

    Subclasses are frozen dataclasses, compared by their fields.
    """

    symmetric: bool = True  # whether (Q, P) has the same loss distribution as (P, Q)

    def __lt__(self, other: object) -> bool:
        return repr(self) < repr(other)

    @property
    @abstractmethod
    def spread(self) -> float:
        """About √Var of the loss if losses are small; 0 if there are none, ∞ without protection."""

    @property
    def largest(self) -> float:
        """The largest loss; ∞ if some output has P only."""
        return math.inf

    @property
    def attained(self) -> "LossDistribution | float | None":
        """The loss of some mechanism, where no known mechanism has this loss distribution itself.

        It is a loss distribution that this one dominates, or the noise multiplier of such a
        Gaussian sum. None if a mechanism has this one.
        """
        return None

    @property
    def whole(self) -> float | None:
        """The noise multiplier of a Gaussian sum that also dominates the mechanism, if any."""
        return None

    @property
    def zcdp(self) -> float:
        """A ρ such that the Rényi divergences are at most order·ρ, both ways.

        Pure ε-DP gives ε²/2 (Bun & Steinke 2016, Proposition 1.4).
        """
        return self.largest**2 / 2

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the losses beyond which at most e^log_tail of P or of Q lies."""
        raise NotImplementedError

    def atoms(self) -> Array:
        """Return the losses of single outputs, as far as each is worth a cut of its own."""
        return np.empty(0)

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between rising ``cuts``, up to a few rounding errors."""
        raise NotImplementedError

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return the Rényi divergences in the worse direction, rounded up; or None.

        They are those on a sample of this rate, or on all records. None means that they are to be
        bounded by means of ``masses``.
        """
        return None


@dataclass(frozen=True)
class Table(LossDistribution):
    """Finitely many losses, and the mass that P has at each.

    Q has mass·e^−loss there. What either lacks is of outputs that the other never gives.

    Args:
        loss: The losses, rising.
        mass: The mass of P at each.
        infinite: P of outputs that Q never gives, rounded to the safe side.
        missing: Q of outputs that P never gives, rounded to the safe side.
        symmetric: Whether (Q, P) has the same loss distribution.

    Raises:
        InvalidArgument: Losses do not rise or are infinite, or a mass is negative.

    >>> Table.of([(-1.0, 0.25), (1.0, 0.75)]).largest
    1.0
    """

    loss: tuple[float, ...]
    mass: tuple[float, ...]
    infinite: float = 0.0
    missing: float = 0.0
    symmetric: bool = True

    def __post_init__(self) -> None:
        # Discretization and merging need masses of at least 0; that they sum to 1 is the caller's
        # business.
        if (
            any(a >= b for a, b in zip(self.loss, self.loss[1:], strict=False))
            or min(self.mass, default=0.0) < 0
        ):
            raise InvalidArgument("Expected a table of rising losses with masses of at least 0.")
        if not all(map(math.isfinite, self.loss)):
            raise InvalidArgument(
                "Expected finite losses in a table; what is infinite goes into its two last fields."
            )

    @classmethod
    def of(
        cls,
        outputs: Iterable[tuple[float, float]],
        infinite: float = 0.0,
        missing: float = 0.0,
        symmetric: bool = True,
    ) -> Self:
        """Return the table of (loss, mass) in any order; masses at equal losses are added up."""
        total: dict[float, float] = {}
        for loss, mass in outputs:
            total[loss] = total.get(loss, 0.0) + mass
        rising = sorted(total)
        return cls(
            tuple(rising), tuple(total[loss] for loss in rising), infinite, missing, symmetric
        )

    @classmethod
    def mirrored(cls, outputs: Iterable[tuple[float, float]], infinite: float = 0.0) -> Self:
        """Return the symmetric table with these positive losses.

        The negative losses are the same with P and Q exchanged, and the rest is at 0.

        *Formal guarantee*: if δ(ε) of the outputs is at least that of a mechanism, in both
        directions and for every ε ≥ 0, the table dominates the mechanism: at negative losses either
        direction is determined by the other.
        """
        ahead = [(loss, mass) for loss, mass in outputs if mass > 0]
        behind = [(-loss, mass * math.exp(-loss)) for loss, mass in ahead]
        rest = (
            1
            - math.fsum(mass for _, mass in ahead)
            - math.fsum(mass for _, mass in behind)
            - infinite
        )
        return cls.of([*behind, (0.0, max(rest, 0.0)), *ahead], infinite, infinite)

    @classmethod
    def from_profile(cls, epsilons: Array, deltas: Array) -> Self:
        """Return a symmetric table that dominates all mechanisms with δ(``epsilons``) ≤ ``deltas``.

        *Formal guarantee*: for ``epsilons`` that rise from 0, and ``deltas`` of both directions. A
        profile is convex in e^ε, so it lies below the lower hull of points above it; what is beyond
        the last ε is at ∞.
        """
        place, bound = np.expm1(epsilons), np.minimum.accumulate(np.minimum(deltas, 1.0))
        bound = np.maximum(
            bound, bound[0] - (1 - bound[0]) / 2 * place
        )  # no symmetric profile falls faster from 0
        corners = _lower_hull(place, bound)
        x, y = place[corners], bound[corners]
        beyond = np.append(-np.diff(y) / np.diff(x), 0.0)  # Q of the losses above each corner
        mass = np.exp(epsilons[corners][1:]) * -np.diff(beyond)
        return cls.mirrored(
            zip(epsilons[corners][1:].tolist(), mass.tolist(), strict=True), float(y[-1])
        )

    @property
    def spread(self) -> float:
        """About √Var of the loss where losses are small."""
        if self.infinite > 0.5:
            return math.inf
        near = np.minimum(self._loss, 50.0)
        apart = (
            float(self._mass @ np.abs(np.expm1(near))) + self.infinite + self.missing
        )  # 0 would say that it is free
        return math.sqrt(math.log1p(apart))

    @property
    def largest(self) -> float:
        """The largest loss of either direction."""
        return (
            math.inf
            if self.infinite > 0
            else max(self.loss[-1], 0.0 if self.missing > 0 else -self.loss[0])
        )

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the losses beyond which at most e^log_tail of P or of Q lies."""
        if len(self.loss) <= 64:
            return self.loss[0], self.loss[-1]
        tail = math.exp(max(log_tail, -640.0))
        first = int(np.argmax(np.cumsum(self._other) > tail))
        last = len(self.loss) - 1 - int(np.argmax(np.cumsum(self._mass[::-1]) > tail))
        return self.loss[first], self.loss[max(first, last)]

    def atoms(self) -> Array:
        """Return the losses, if there are few."""
        return self._loss if len(self.loss) <= 64 else np.empty(0)

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between ``cuts``."""
        cell = np.searchsorted(cuts, self._loss)
        p, q, gain = (
            np.bincount(cell, weights=part, minlength=len(cuts) + 1).astype(np.float64)
            for part in (self._mass, self._other, self._mass * -np.expm1(-self._loss))
        )
        p[-1] += self.infinite
        gain[-1] += self.infinite
        q[0] += self.missing
        gain[0] -= self.missing
        return Masses(p, q, gain)

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return the Rényi divergences, summed over the losses."""
        if self.infinite > 0 or self.missing > 0:
            return np.full_like(orders, math.inf)
        ratio = np.log1p(rate * np.expm1(np.minimum(self._loss, 700.0))) if rate < 1 else self._loss
        with np.errstate(divide="ignore"):
            other = np.log(self._mass) - self._loss
        tilt = orders[:, None] - 1
        forth = logsumexp(other + orders[:, None] * ratio, axis=1)
        back = logsumexp(other - tilt * ratio, axis=1)
        worse: Array = (np.maximum(forth, back) * (1 + 1e-12) + 1e-15 * len(self.loss)) / tilt[:, 0]
        return np.minimum(np.maximum(worse, 0.0), self.largest)

    @cached_property
    def _loss(self) -> Array:
        return np.array(self.loss)

    @cached_property
    def _mass(self) -> Array:
        return np.array(self.mass)

    @cached_property
    def _other(self) -> Array:
        return self._mass * np.exp(-self._loss)


def _lower_hull(x: Array, y: Array) -> list[int]:
    """Return the corners of the largest convex function below points, from the left."""
    corners: list[int] = []
    for here in range(len(x)):
        while len(corners) > 1:
            before, last = corners[-2:]
            if (y[last] - y[before]) * (x[here] - x[before]) < (y[here] - y[before]) * (
                x[last] - x[before]
            ):
                break
            corners.pop()
        corners.append(here)
    return corners


@lru_cache(maxsize=256)
def response(epsilon: float, unmoved: float = 0.0) -> Table:
    """Return randomised response: losses ±ε, and 0 with probability ``unmoved``.

    Without the latter it dominates every ε-DP mechanism (Kairouz, Oh & Viswanath 2015; Murtagh &
    Vadhan 2016).
    """
    if epsilon == 0 or unmoved == 1:
        return Table((0.0,), (1.0,))
    low = (1 - unmoved) / (1 + math.exp(min(epsilon, 700.0)))
    return Table.of(
        [(-epsilon, low), (0.0, unmoved), (epsilon, 1 - unmoved - low)]
        if unmoved
        else [(-epsilon, low), (epsilon, 1 - low)]
    )


@dataclass(frozen=True)
class DiscreteGaussian(LossDistribution):
    """The discrete Gaussian N_ℤ(shift, σ²) against N_ℤ(0, σ²).

    The loss of an output x is (2x − shift)·shift/2σ² (Canonne, Kamath & Steinke 2020, Definition
    1).

    Args:
        shift: How far one record moves the sum, in lattice steps.
        stddev: σ, in lattice steps.

    Raises:
        InvalidArgument: There are too many outputs for a table.
    """

    shift: int
    stddev: float

    def __post_init__(self) -> None:
        if 2 * self._reach > _MAX_ATOMS:
            raise InvalidArgument(
                f"Expected stddev={self.stddev!r} and a bound of {self.shift!r} to be at most a "
                "few thousand lattice steps. Use a coarser lattice, or continuous Gaussian noise."
            )

    @property
    def spread(self) -> float:
        """About √Var of the loss."""
        return self.shift / self.stddev

    @property
    def zcdp(self) -> float:
        """The ρ shift²/2σ² (the same paper, Proposition 5)."""
        return (self.shift / self.stddev) ** 2 / 2 * (1 + 1e-15)

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the losses beyond which at most e^log_tail of P or of Q lies."""
        return self._table.span(log_tail)

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between ``cuts``."""
        return self._table.masses(cuts)

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return order·ρ, or sums over the outputs at small orders of a sample."""
        curve = orders * self.zcdp
        near = orders <= _SUMMED if rate < 1 else np.zeros(len(orders), dtype=bool)
        if near.any():
            curve[near] = np.minimum(curve[near], self._summed(orders[near], rate))
        return curve

    def _summed(self, orders: Array, rate: float) -> Array:
        """Sum over outputs up to where the terms of the largest order are negligible."""
        x = np.arange(-self._reach, self._reach + _SUMMED * self.shift + 1, dtype=np.float64)
        other = -((x / self.stddev) ** 2) / 2
        other -= logsumexp(other)
        loss = self._loss(x)
        ratio = np.where(
            loss > 30, loss + math.log(rate), np.log1p(rate * np.expm1(np.minimum(loss, 30.0)))
        )
        ratio += np.where(
            loss > 30, np.log1p((1 - rate) / rate * np.exp(-np.maximum(loss, 30.0))), 0.0
        )
        moments = [
            max(
                float(logsumexp(other + order * ratio)),
                float(logsumexp(other + (1 - order) * ratio)),
            )
            for order in orders
        ]
        return (np.array(moments) * (1 + 1e-10) + 1e-14) / (orders - 1)

    @property
    def _reach(self) -> int:
        return math.ceil(_REACH * self.stddev) + self.shift

    def _loss(self, x: Array) -> Array:
        """Return the loss of outputs; 2·shift·x − shift² is an integer, exact in float64."""
        return (2 * x * self.shift - self.shift**2) / (2 * self.stddev**2)

    @cached_property
    def _table(self) -> Table:
        """The table without masses below 1e-300, for which 1e-280 is put at ∞ on either side."""
        x = np.arange(-self._reach, self._reach + self.shift + 1, dtype=np.float64)
        logs = -(((x - self.shift) / self.stddev) ** 2) / 2
        mass = np.exp(logs - logsumexp(logs))
        kept = mass > 1e-300
        return Table(
            tuple(self._loss(x)[kept].tolist()), tuple(mass[kept].tolist()), 1e-280, 1e-280
        )


@dataclass(frozen=True)
class Range(LossDistribution):
    """The pair that dominates every mechanism of bounded range.

    The losses of such a mechanism, for any two neighbours, lie within some interval of length ε.
    δ(x) = (e^{ε/2} − e^{x/2})²/(e^ε − 1) for x between −ε and ε. In s = e^{loss/2}, P is uniform on
    [e^−ε/2, e^ε/2], and Q is uniform in 1/s. ``docs/proofs/one-shot.md``, Lemma 2.

    Args:
        epsilon: The length of the interval.
    """

    epsilon: float

    @property
    def spread(self) -> float:
        """About √Var of the loss."""
        return self.epsilon / 2

    @property
    def largest(self) -> float:
        """The largest loss."""
        return self.epsilon

    @property
    def attained(self) -> LossDistribution | float | None:
        """Randomised response between two answers, whose losses are ±ε/2."""
        return response(self.epsilon / 2)

    @property
    def zcdp(self) -> float:
        """The ρ ε²/8 (Cesar & Rogers 2021, Lemma 3.2)."""
        return self.epsilon**2 / 8

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the least and the largest loss."""
        return -self.epsilon, self.epsilon

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between ``cuts``."""
        edges = np.concatenate(
            ([-self.epsilon], np.clip(cuts, -self.epsilon, self.epsilon), [self.epsilon])
        )
        left, right = edges[:-1], edges[1:]
        width = np.expm1((right - left) / 2) / (2 * np.sinh(self.epsilon / 2))
        p, q = width * np.exp(left / 2), width * np.exp(-right / 2)
        return Masses(p, q, p * -np.expm1(-(left + right) / 2))

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return the largest divergence over mechanisms with two losses t and t − ε.

        E_Q e^{order·loss} has one maximum, at a t in closed form (Lemma 3 of the proofs). It is at
        most order·ε²/8, which also holds where the exponents leave float64.
        """
        exponent = np.minimum(orders * self.epsilon, 600.0)
        few = -np.expm1(-exponent) / math.expm1(
            min(self.epsilon, 600.0)
        )  # of which Q gives to t, at t = 0, the rest
        low = np.maximum(few - np.exp(-exponent), 1e-300)
        with np.errstate(over="ignore"):
            t = np.clip(
                np.log((1 - 1 / orders) * (few + -np.expm1(-exponent)) / low), 0.0, self.epsilon
            )
            excess = (
                np.exp(-t) * -np.expm1(t - self.epsilon) / -np.expm1(-self.epsilon)
            )  # Q of the loss t
            logs = orders * t + np.log(excess + (1 - excess) * np.exp(-exponent))
        exact = np.where(
            orders * self.epsilon < 600,
            (logs * (1 + 1e-12) + 4e-15 * (1 + self.epsilon)) / (orders - 1),
            math.inf,
        )
        return np.minimum(np.minimum(exact, orders * self.zcdp), self.epsilon)
