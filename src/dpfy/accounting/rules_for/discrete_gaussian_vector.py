"""Discrete Gaussian noise on several integers at once, with bounded Euclidean sensitivity.

How the length is divided among the numbers matters a little, because the noise is on a lattice.
Three bounds on δ(ε) hold at once: zCDP, a continuous Gaussian with a little less noise of which the
discrete one is nearly a rounding, and, for short lengths, the largest of all ways to divide it. The
proofs are in ``docs/proofs/one-shot.md``, section 3.

Tests: tests/accounting/rules_for/test_one_shot.py.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from dpfy.accounting.loss_distributions import (
    Array,
    DiscreteGaussian,
    LossDistribution,
    Masses,
    Table,
    response,
)
from dpfy.accounting.special import log_ndtr

_POINTS = 3000
_DEEPEST = 16.0  # standard deviations of the loss, beyond which all of it is infinite
_LARGEST = 600.0  # e^ε must stay a number; losses beyond are infinite
_ROUNDED = 1e-9  # relative: more than cancellation and sums can lose
_LEAST = 1e-280
_LONGEST = 12  # squared, of which all divisions are looked at
_MAX_ATOMS = 50_000
_WIDEST = 4000.0  # lattice steps of a standard deviation, and of a shift
_SMOOTH = np.linspace(0.5, 2.0, 16)  # standard deviations of the rounding


@dataclass(frozen=True)
class DiscreteGaussianVector(LossDistribution):
    """N_ℤ(s, σ²) against N_ℤ(0, σ²) on several integers, for all integer s of bounded length.

    Args:
        squared: The largest |s|².
        stddev: σ.
        coordinates: The number of integers.
        alone: The most that some record moves one integer alone.
    """

    squared: int
    stddev: float
    coordinates: int
    alone: int

    @property
    def spread(self) -> float:
        """About √Var of the loss."""
        return math.sqrt(self.squared) / self.stddev

    @property
    def attained(self) -> LossDistribution | float | None:
        """All of the length in one number; nothing, where that has too many outputs for a table."""
        return (
            DiscreteGaussian(self.alone, self.stddev)
            if self.stddev + self.alone < _WIDEST
            else response(0.0)
        )

    @property
    def zcdp(self) -> float:
        """The ρ |s|²/2σ² (Canonne, Kamath & Steinke 2020, Theorem 14)."""
        return self.squared / self.stddev**2 / 2 * (1 + 1e-12)

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the losses beyond which at most e^log_tail of P or of Q lies."""
        return self._table.span(log_tail)

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between ``cuts``."""
        return self._table.masses(cuts)

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return order·ρ."""
        return orders * self.zcdp

    @cached_property
    def _table(self) -> Table:
        last = min(self.zcdp + _DEEPEST * self.spread, _LARGEST)
        apart = 1 / (2 * self.stddev**2)  # of losses, which are on a lattice
        lattice = apart * np.arange(min(math.ceil(last / apart), _POINTS))
        epsilons = np.union1d(np.linspace(0.0, last, _POINTS), lattice)
        epsilons = epsilons[np.append(True, np.diff(epsilons) > 1e-9 * apart)]
        moved = min(self.squared, self.coordinates)
        bounds = [
            by_zcdp(self.zcdp, epsilons),
            rounded_gaussian(self.squared, self.stddev, moved, epsilons),
        ]
        ways = _ways(self.squared, self.coordinates) if self.squared <= _LONGEST else []
        if ways and 84 * self.stddev * self.squared <= _MAX_ATOMS:
            bounds.append(np.max([divided(way, self.stddev, epsilons) for way in ways], axis=0))
        return Table.from_profile(epsilons, np.minimum.reduce(bounds))


def by_zcdp(rho: float, epsilons: Array) -> Array:
    """Bound δ(ε) of every ρ-zCDP mechanism.

    Reference: Canonne, Kamath & Steinke 2020, Proposition 12, at many orders.
    """
    orders = 1 + np.geomspace(1e-3, 1e4, 400) / max(math.sqrt(2 * rho), 1e-3)
    logs = (orders - 1) * (orders * rho - epsilons[:, None] + np.log1p(-1 / orders)) - np.log(
        orders
    )
    deltas = np.exp(np.minimum(logs.min(axis=1), 0.0)) * (1 + 1e-12)
    return np.asarray(np.minimum(deltas, math.sqrt(-math.expm1(-rho))))


def rounded_gaussian(squared: int, stddev: float, moved: int, epsilons: Array) -> Array:
    """Bound δ(ε) by continuous noise of variance σ² − τ² plus discrete noise of variance τ².

    The latter rounds it at random. The sum has the discrete Gaussian's masses up to factors between
    1 − η and 1 + η for each number that is moved, where η = 2·Σ e^−2π²τ²k². The best of several τ
    is taken.
    """
    best = np.ones_like(epsilons)
    for rounding in _SMOOTH.tolist():
        if rounding >= stddev:
            break
        eta = 2.001 * math.exp(-2 * math.pi**2 * rounding**2)
        mu = math.sqrt(squared / (stddev**2 - rounding**2)) * (1 + 1e-12)
        shifted = epsilons - moved * (math.log1p(eta) - math.log1p(-eta)) * (1 + 1e-9)
        first = log_ndtr(mu / 2 - shifted / mu)
        second = shifted + log_ndtr(-mu / 2 - shifted / mu)
        deltas = np.exp(first) * (-np.expm1(np.minimum(second - first, 0.0)) + _ROUNDED)
        best = np.minimum(
            best, deltas * math.exp(moved * math.log1p(eta)) * (1 + _ROUNDED) + _LEAST
        )
    return best


def divided(parts: tuple[int, ...], stddev: float, epsilons: Array) -> Array:
    """Bound δ(ε) where the numbers move by ``parts``.

    The losses (2·Σ s_i·x_i − |s|²)/2σ² of outputs x are on a lattice.
    """
    squared = sum(part**2 for part in parts)
    masses = [_stretched(part, stddev) for part in parts]
    other = reduce(np.convolve, masses)
    reach = len(other) // 2
    sums = np.arange(
        -reach, reach + 1, dtype=np.float64
    )  # of s_i·x_i under Q; under P they are |s|² more
    tail = np.append(np.cumsum(other[::-1])[::-1], 0.0)
    place = (
        np.floor(epsilons * stddev**2 + squared / 2 + reach).astype(np.int64) + 1
    )  # the first loss above ε
    behind = np.clip(place, 0, len(sums))
    ahead = np.clip(place - squared, 0, len(sums))
    p, q = tail[ahead], tail[behind]
    return np.asarray(
        (np.maximum(p - np.exp(np.minimum(epsilons, 700.0)) * q, 0.0) + _ROUNDED * p) + _LEAST
    )


def _stretched(part: int, stddev: float) -> Array:
    """Return the masses of part·x, x a discrete Gaussian number, at the integers around 0."""
    reach = math.ceil(42 * stddev)
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    mass = np.exp(-((x / stddev) ** 2) / 2)
    spread = np.zeros(2 * reach * part + 1)
    spread[::part] = mass / mass.sum()
    return spread


def _ways(squared: int, coordinates: int) -> list[tuple[int, ...]]:
    """Return the ways to move numbers by a squared length, without those that another exceeds."""

    def parts(left: int, largest: int, few: int) -> Iterator[tuple[int, ...]]:
        yield ()
        for part in range(min(largest, math.isqrt(left)), 0, -1):
            if few > 0:
                yield from ((part, *rest) for rest in parts(left - part**2, part, few - 1))

    found = parts(squared, math.isqrt(squared), coordinates)
    return [
        way
        for way in found
        if way and (sum(part**2 for part in way) == squared or len(way) == coordinates)
    ]
