"""Balls in bins: the loss of an epoch in which each record is in one batch, drawn uniformly.

Which batch that is stays secret. The pair is the mean of N(e_t, z²) over the batches t against N(0,
z²) (Chua et al. 2025), whose likelihood ratio is the mean S of independent lognormal numbers of
mean 1 under the latter. Both profiles are expectations of convex functions of S. So moving a number
to points on both sides of it, keeping its mean, can only raise them. Sums are computed by doubling,
on points that are close together where most of a sum is and in proportion to it far out. All terms
are positive, so every mass keeps its digits, however small. Nothing is simulated: the bounds are
certain. The proof is in ``docs/proofs/accounting-policies.md``, section 4.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from dpfy.accounting.dominating_pairs import Neighbours, Pair, of_distribution
from dpfy.accounting.loss_distributions import Array, LossDistribution, Masses, Table
from dpfy.accounting.special import ndtr, ndtri

_LEAST_NOISE, _MOST_NOISE = (
    0.05,
    1e6,
)  # e^(10/z) is a float, and so is the distance of points about 1
_TAIL = 1e-25  # of what one number exceeds the last point by, in the mean
_CENTRE, _BOTTOM = 640, 90  # points: δ to a few thousandths
_FIRST = 1e-9  # of the mean: the first point above 0
# Relative: more than the ten thousand positive terms that a mass is made of lose, for each number;
# and, as numbers that differ from 1 by about 1/z are rounded to a float near 1, than means are off
# by, in standard deviations of the sum.
_LOST = 2e-12
_UP = 1 + 1e-11
_ROWS = 8  # parts in which sums are made, to stay in the cache
_SPLITS = 600  # values of ε at which a record is replaced in two steps
_RARE = 1e-18  # δ beyond which no profile is looked at


def epoch(bins: int, noise_multiplier: float, neighbours: Neighbours = "absent") -> Pair:
    """Return the pair of an epoch in which a record is set to zero, or replaced.

    It is that of one Gaussian sum where no more is known.

    >>> epoch(1, 1.0)
    Pair(rate=1.0, noise_multiplier=1.0, neighbours='absent', noise='gaussian', distribution=None)
    """
    if bins == 1 or not _LEAST_NOISE <= noise_multiplier <= _MOST_NOISE:
        return Pair(1.0, noise_multiplier, neighbours)
    return of_distribution(
        (BallsInBinsLoss if neighbours == "absent" else ReplacedLoss)(bins, noise_multiplier)
    )


@dataclass(frozen=True)
class BallsInBinsLoss(LossDistribution):
    """The loss of one epoch in which a record is set to zero, from above.

    Args:
        bins: The number of batches.
        noise_multiplier: The noise over the bound.
    """

    bins: int
    noise_multiplier: float
    symmetric = False

    @property
    def spread(self) -> float:
        """About √Var of the loss: √log(1 + χ²), χ² that of a full batch over the batches."""
        return math.sqrt(math.log1p(math.expm1(min(self.noise_multiplier**-2, 600.0)) / self.bins))

    @property
    def attained(self) -> LossDistribution | float | None:
        """The sum of all batches, in which the record is for certain, with the noise of all."""
        return self.noise_multiplier * math.sqrt(self.bins) * (1 + 1e-15)

    @property
    def whole(self) -> float | None:
        """The noise multiplier of one Gaussian sum that dominates the epoch too."""
        return self.noise_multiplier

    @property
    def zcdp(self) -> float:
        """The ρ of one Gaussian sum: the secret of the batch is not rewarded."""
        return self.noise_multiplier**-2 / 2

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the losses beyond which at most e^log_tail of P or of Q lies."""
        return self._table.span(log_tail)

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between ``cuts``."""
        return self._table.masses(cuts)

    @property
    def _table(self) -> Table:
        return _epoch(self.bins, self.noise_multiplier)


@dataclass(frozen=True)
class ReplacedLoss(BallsInBinsLoss):
    """The loss of one epoch in which a record is replaced: set to zero, then to the new value."""

    symmetric = True

    @property
    def attained(self) -> LossDistribution | float | None:
        """The sum of all batches, which two opposed records move by twice the bound."""
        return self.noise_multiplier * math.sqrt(self.bins) / 2 * (1 + 1e-15)

    @property
    def whole(self) -> float | None:
        """The noise multiplier of one Gaussian sum that dominates the epoch too."""
        return self.noise_multiplier / 2

    @property
    def zcdp(self) -> float:
        """The ρ of one Gaussian sum."""
        return 2 * self.noise_multiplier**-2

    @cached_property
    def _table(self) -> Table:
        """The table with δ(ε) = min δ₁(ε₁) + e^ε₁·δ₂(ε − ε₁), profiles of removing and adding."""
        table = _epoch(self.bins, self.noise_multiplier)
        loss = np.array(table.loss)
        p, q = np.array(table.mass), np.array(table.mass) * np.exp(-loss)
        last = min(max(float(loss[np.cumsum(p[::-1])[::-1] > _RARE].max(initial=0.0)), 1e-6), 300.0)
        at = np.linspace(0.0, last, _SPLITS)
        there = np.maximum(-np.expm1(at[:, None] - loss), 0.0) @ p + table.infinite
        back = np.maximum(-np.expm1(np.minimum(at[:, None] + loss, 0.0)), 0.0) @ q + table.missing
        found = there[:, None] + np.exp(at)[:, None] * back  # [ε₁, ε − ε₁]
        sums = np.add.outer(np.arange(_SPLITS), np.arange(_SPLITS))
        deltas = np.ones(2 * _SPLITS - 1)
        np.minimum.at(deltas, sums.ravel(), found.ravel())
        return Table.from_profile(np.linspace(0.0, 2 * last, 2 * _SPLITS - 1), deltas * _UP)


class _Sum(NamedTuple):
    """A sum of lognormal numbers, as masses at points.

    Args:
        numbers: How many numbers are added up.
        points: The points, from 0 on.
        mass: The mass at each point.
        cut: The mean of what exceeds the last point.
    """

    numbers: int
    points: Array
    mass: Array
    cut: float


@lru_cache(maxsize=16)
def _epoch(bins: int, noise_multiplier: float) -> Table:
    """Return the distribution of log S.

    The binary digits of the number of batches say which doubled sums are added up.
    """
    tau, left = 1 / noise_multiplier, bins
    total, power = None, _one(tau)
    while True:
        if left & 1:
            total = _added(total, power, tau) if total else power
        left >>= 1
        if not left:
            break
        power = _added(power, power, tau)
    assert total is not None
    mean = total.points[1:] / bins
    up = _UP + _LOST * (bins + math.sqrt(bins) * noise_multiplier)
    p = total.mass[1:] * mean * up
    kept = p > 1e-290
    missing = float(total.mass[0] + total.mass[1:][~kept].sum()) * up
    return Table(
        tuple(np.log(mean[kept]).tolist()),
        tuple(p[kept].tolist()),
        total.cut / bins * up + 1e-280,
        missing + 1e-280,
        symmetric=False,
    )


def _points(count: int, tau: float) -> Array:
    """Return points for a sum: close together around its mean, further apart away from it."""
    longest = math.exp(tau * (tau / 2 - float(ndtri(_TAIL))))
    scale = 0.5 * min(math.sqrt(count * math.expm1(min(tau**2, 600.0))), count)
    low, high = math.asinh(0.95 * count / scale), math.asinh((count + 3 * longest) / scale)
    centre = count + scale * np.sinh(np.linspace(-low, high, _CENTRE))
    return np.concatenate(([0.0], np.geomspace(_FIRST * count, centre[0], _BOTTOM)[:-1], centre))


def _one(tau: float) -> _Sum:
    """Return one lognormal number."""
    points = _points(1, tau)
    with np.errstate(divide="ignore"):
        places = np.log(points) / tau
    inside, moment = (
        np.where(places[1:] < side, np.diff(ndtr(places - side)), -np.diff(ndtr(side - places)))
        for side in (-tau / 2, tau / 2)
    )  # of the number, and of its size
    right = np.clip((moment - points[:-1] * inside) / np.diff(points), 0.0, inside)
    mass = np.append(inside - right, ndtr(-places[-1] - tau / 2))
    mass[1:] += right
    return _Sum(1, points, mass, float(ndtr(-places[-1] + tau / 2)))


def _added(one: _Sum, other: _Sum, tau: float) -> _Sum:
    """Add two sums, on new points; of a sum with itself, every two points are taken once."""
    points = _points(one.numbers + other.numbers, tau)
    mass, cut = np.zeros(len(points)), one.cut + other.cut
    for rows in np.array_split(np.arange(len(one.points)), _ROWS):
        first = int(rows[0]) if one is other else 0
        weights = np.multiply.outer(one.mass[rows], other.mass[first:])
        if one is other:
            weights[:, len(rows) :] *= 2
        sums, weights = (
            np.add.outer(one.points[rows], other.points[first:]).ravel(),
            weights.ravel(),
        )
        cut += float(weights @ np.maximum(sums - points[-1], 0.0))
        left = np.minimum(np.searchsorted(points, sums, side="right") - 1, len(points) - 2)
        share = np.minimum((sums - points[left]) / (points[left + 1] - points[left]), 1.0)
        mass += np.bincount(left, weights * (1 - share), len(points))
        mass += np.bincount(left + 1, weights * share, len(points))
    return _Sum(one.numbers + other.numbers, points, mass, cut)
