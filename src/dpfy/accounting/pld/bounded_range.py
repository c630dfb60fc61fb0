"""Exponential mechanisms in a row: the most that adaptive mechanisms of bounded range can cost.

A mechanism whose losses span at most ε is dominated by one with two losses t and t − ε, where the
adversary chooses t. After k of them, δ_k(x) = max_t p_t·δ_{k−1}(x − t) + (1 − p_t)·δ_{k−1}(x − t +
ε): a dynamic programme, in which a convex δ stays convex (Dong, Durfee & Rogers 2020). The proof is
in ``docs/proofs/one-shot.md``, Lemma 7.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dpfy.accounting.loss_distributions import Array, LossDistribution, Masses, Table, response

MOST = 1000  # mechanisms in a row
_LARGEST = 300.0  # e^ε must stay a number
_DEEPEST = 9.0  # standard deviations, beyond which less than 1e-17 is left
_ROUNDED = 1e-11  # relative, of one step: more than rounding and an inexact place of a maximum lose


@dataclass(frozen=True)
class Ranges(LossDistribution):
    """The loss of several mechanisms of bounded range, chosen adaptively one after the other.

    Args:
        epsilon: The most that the losses of one mechanism span.
        times: The number of mechanisms.

    >>> round(Ranges(0.1, 2).zcdp, 6)
    0.0025
    """

    epsilon: float
    times: int

    @property
    def spread(self) -> float:
        """About the standard deviation of small losses."""
        return self.epsilon / 2 * math.sqrt(self.times)

    @property
    def attained(self) -> LossDistribution | float | None:
        """The first mechanism alone, as randomised response."""
        return response(self.epsilon / 2)

    @property
    def zcdp(self) -> float:
        """ε²/8 for each (Cesar & Rogers 2021, Lemma 3.2)."""
        return self.times * self.epsilon**2 / 8

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the losses beyond which at most e^log_tail lies."""
        return self._table.span(log_tail)

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between ``cuts``."""
        return self._table.masses(cuts)

    def delta_below(self, epsilon: float) -> float:
        """Return a δ at ``epsilon`` that some adaptive choice costs."""
        found = _profile(self.epsilon, self.times)
        place = int(np.searchsorted(found.epsilons, epsilon))
        return float(found.below[place]) if place < len(found.below) else 0.0

    def epsilon_below(self, delta: float) -> float:
        """Return the largest ε at which some adaptive choice is known to exceed ``delta``."""
        found = _profile(self.epsilon, self.times)
        places = np.flatnonzero(found.below > delta)
        return float(found.epsilons[places[-1]]) if len(places) else 0.0

    @property
    def _table(self) -> Table:
        return _table(self.epsilon, self.times)


class _Profile(NamedTuple):
    """Bounds on δ at several ε."""

    epsilons: Array
    below: Array
    above: Array


def countable(epsilon: float, times: int) -> bool:
    """Tell whether the dynamic programme covers ``times`` mechanisms of this range."""
    return 1 < times <= MOST and 0 < _reach(epsilon, times) < _LARGEST


def _reach(epsilon: float, times: int) -> float:
    return min(times * epsilon, times * epsilon**2 / 8 + _DEEPEST * math.sqrt(times) * epsilon / 2)


@lru_cache(maxsize=32)
def _table(epsilon: float, times: int) -> Table:
    found = _profile(epsilon, times)
    return Table.from_profile(found.epsilons, found.above)


@lru_cache(maxsize=32)
def _profile(epsilon: float, times: int) -> _Profile:
    """Bound δ on a lattice that divides ε; chords are above profiles, which are convex in e^x."""
    parts = max(8, min(128, int(250 / math.sqrt(times))))
    width = epsilon / parts
    x: Array = width * np.arange(math.ceil(_reach(epsilon, times) / width) + 1, dtype=np.float64)
    below, above = np.zeros_like(x), np.zeros_like(x)
    t: Array = width * np.arange(parts + 1, dtype=np.float64)
    high = np.expm1(epsilon - t) * np.exp(t) / math.expm1(epsilon)  # P of the loss t
    for _ in range(times):
        reached = _at_any_place(_extended(above, x, parts, above[-1]), high, width, parts)
        above = np.minimum(reached * (1 + _ROUNDED), 1.0)
        values = _extended(below, x, parts, 0.0)
        near, far = (_windows(values, parts, start) for start in (0, parts))
        below = np.max(high[::-1] * near + (1 - high[::-1]) * far, axis=1) * (1 - _ROUNDED)
    return _Profile(x, below, above)


def _extended(values: Array, x: Array, parts: int, beyond: float) -> Array:
    """Extend values to −ε on the left, and by ε on the right.

    δ(−x) = 1 − e^−x·(1 − δ(x)), because the class is its own mirror image.
    """
    before, at = values[1 : parts + 1], x[1 : parts + 1]
    if len(before) < parts:
        more = x[1] * np.arange(len(values), parts + 1)
        before, at = np.append(before, np.full(len(more), beyond)), np.append(at, more)
    return np.concatenate(
        ((-np.expm1(-at) + np.exp(-at) * before)[::-1], values, np.full(parts, beyond))
    )


def _windows(values: Array, parts: int, start: int) -> Array:
    """Return at [i, c] the value c places after the first one within ε of x_i."""
    return np.lib.stride_tricks.sliding_window_view(values[start:], parts + 1)[
        : len(values) - 2 * parts
    ]


def _at_any_place(values: Array, high: Array, width: float, parts: int) -> Array:
    """Return the largest p_t·V(x − t) + (1 − p_t)·V(x − t + ε) over all t.

    V is linear in e^x between lattice points.
    With t = c·width + log Y on a cell, V(x − t) = α + β/Y, and the sum is a constant, a multiple of
    Y and a negative multiple of 1/Y: concave, with its largest value in closed form.
    """
    near, far = (
        _windows(values, parts, 0)[:, ::-1],
        _windows(values, parts, parts)[:, ::-1],
    )  # by t from 0 to ε
    grown, odds = math.exp(width), math.exp(parts * width)
    starts = np.exp(width * np.arange(parts))
    slope = np.append(np.diff(values) / (grown - 1), 0.0)
    alpha = values - slope
    first, second = (_windows(alpha, parts, start)[:, -2::-1] for start in (0, parts))
    slower, faster = (_windows(slope, parts, start)[:, -2::-1] for start in (0, parts))
    falls, rises = (
        (faster - odds * slower) * grown,
        starts * (first - second),
    )  # both turned positive
    with np.errstate(divide="ignore", invalid="ignore"):
        best = np.sqrt(np.maximum(falls, 0.0) / rises)
    best = np.where(rises > 0, np.clip(best, 1.0, grown), grown)
    share = (odds - starts * best) / (odds - 1)
    weight = (grown / best - 1) / (grown - 1)  # of the cell's end where t is its least
    inside = share * (near[:, 1:] + (near[:, :-1] - near[:, 1:]) * weight) + (1 - share) * (
        far[:, 1:] + (far[:, :-1] - far[:, 1:]) * weight
    )
    return np.asarray(np.maximum(inside.max(axis=1), (high * near + (1 - high) * far).max(axis=1)))
