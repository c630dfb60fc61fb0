"""Private selection: the cost of releasing the best of a secret, random number of runs.

No rule depends on how runs are scored. The privacy loss rule asks how far the loss of one run can
be shifted by the place of its output in the order of scores; the Rényi rules are those of Papernot
& Steinke 2022. The proofs are in ``docs/proofs/private-selection.md``.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.selection import NegativeBinomialTrials, PoissonTrials, Trials

Array = NDArray[np.float64]

_PLACES = 24_000  # in the order of scores
_LEAST_WEIGHT = 45.0  # places of less than e^-45 of the first one's weight are one place
_LARGEST = 600.0  # e^ε must stay a number
_ROUNDED = 1e-10  # relative: more than rounding can lose, over as many places


class RunProfile:
    """An upper bound on δ(ε) of one run in both directions, for every real ε.

    Between points each is the chord, as a function of e^ε: true curves are convex in it. Below zero
    they follow from each other: δ(−ε) = 1 − e^−ε·(1 − δ_back(ε)).

    Args:
        epsilons: Points of ε, rising from 0.
        there: δ at these points in one direction.
        back: δ at these points in the other direction.

    Raises:
        InvalidArgument: The points do not rise from 0, or are too large.
    """

    def __init__(self, epsilons: Array, there: Array, back: Array) -> None:
        if epsilons[0] != 0 or np.any(np.diff(epsilons) <= 0) or epsilons[-1] > _LARGEST:
            raise InvalidArgument(
                f"Expected values of ε that rise from 0 to at most {_LARGEST:g}: left of the first "
                "point nothing is known."
            )
        self._epsilons = epsilons
        self._odds: Array = np.exp(epsilons)
        self._there, self._back = (
            np.minimum(np.minimum.accumulate(side), 1.0) for side in (there, back)
        )

    @property
    def reversed(self) -> "RunProfile":
        """The same run with the data sets exchanged."""
        return RunProfile(self._epsilons, self._back, self._there)

    @property
    def symmetric(self) -> bool:
        """Whether both directions have one profile."""
        return bool(np.array_equal(self._there, self._back))

    def delta(self, epsilons: Array) -> Array:
        """Return upper bounds on δ(ε)."""
        size = np.minimum(np.abs(epsilons), _LARGEST)
        odds = np.exp(size) * (1 - _ROUNDED)  # curves fall
        there, back = (np.interp(odds, self._odds, side) for side in (self._there, self._back))
        found = np.where(epsilons < 0, -np.expm1(-size) + back / odds, there)
        return np.asarray(np.minimum(found * (1 + _ROUNDED), 1.0))

    def moved(self, missed: Array) -> Array:
        """Bound the mass on the second data set of an event whose mass on the first is ``missed``.

        Q′(S) ≤ e^ε·Q(S) + δ_back(ε), of which the complement is Q′(S) ≤ 1 − e^−ε·(1 − Q(S) − δ(ε)),
        for all ε ≥ 0.
        """
        best = np.ones_like(missed)
        for odds, gain, there, back in zip(
            self._odds, np.expm1(self._epsilons), self._there, self._back, strict=True
        ):
            np.minimum(best, odds * missed + back, out=best)
            np.minimum(best, (gain + missed + there) / odds, out=best)  # nothing cancels
        return np.minimum(np.maximum(best, missed) * (1 + _ROUNDED), 1.0)


class SelectionProfile:
    """An upper bound on δ(ε) of repeat-and-select, in one direction.

    It is Σ_j weight_j · δ(ε − shift_j), where δ is that of one run.

    *Formal guarantee*: P(S) ≤ e^ε·P′(S) + ``delta(ε)`` for every ε ≥ 0, P and P′ the distributions
    of what is released, however runs are scored. No smaller δ follows from the profile of one run,
    up to terms that vanish with the probability of the losses that matter.

    *Assumes* what :class:`~dpfy.ledger.selection.Selected` does.

    Reference: ``docs/proofs/private-selection.md``, Theorem 1.

    >>> deltas = np.array([np.tanh(0.05), 0.0])
    >>> pure = RunProfile(np.array([0.0, 0.1]), deltas, deltas)
    >>> trials = NegativeBinomialTrials.with_mean(100.0, shape=1.0)
    >>> epsilon = SelectionProfile(pure, trials).epsilon(1e-12)
    >>> 0.25 < epsilon < 0.3001  # never more than (2 + shape)·0.1
    True
    """

    def __init__(self, run: RunProfile, trials: Trials) -> None:
        self._run = run
        missed = _places(run, trials)
        kept = weight(trials, missed[:-1]) * (1 + _ROUNDED)
        left = weight(trials, run.moved(missed[1:])) * (1 - _ROUNDED)
        corners = _concave(np.append(left, 0.0)[::-1], np.append(kept, 0.0)[::-1])
        losses, gains = np.diff(corners, axis=1)
        losses = losses * (1 - _ROUNDED) - 1e-15 * corners[0][1:]
        self._weights: Array = gains * (1 + _ROUNDED) + 1e-15 * corners[1][1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            self._shifts: Array = np.where(
                losses > 0, np.log(self._weights) - np.log(losses), np.inf
            )

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ(ε)."""
        each = self._run.delta(np.maximum(epsilon - self._shifts, -_LARGEST))
        return min(1.0, float(self._weights @ each) * (1 + _ROUNDED))

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on ε(δ)."""
        low, high = 0.0, 0.0
        while self.delta(high) > delta:
            low, high = high, max(2 * high, 0.125)
            if high > _LARGEST:
                return math.inf
        while high - low > 1e-7 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def weight(trials: Trials, missed: Array) -> Array:
    """Return f′(1 − a), f the generating function of the number of runs, for the probabilities a.

    It is the density of an output in what is released over that in one run, if a run is better with
    probability a.
    """
    if isinstance(trials, NegativeBinomialTrials):
        return np.asarray(
            trials.mean * np.exp(-(trials.shape + 1) * np.log1p(trials.odds * missed))
        )
    if isinstance(trials, PoissonTrials):
        return np.asarray(trials.rate * np.exp(-trials.rate * missed))
    raise UnsupportedEvent(f"No rule for a number of runs that is drawn from {trials.tag!r}.")


def renyi_curve(
    trials: Trials,
    orders: Array,
    curve: Array,
    delta: Callable[[float], float],
    other: tuple[float, float] | None = None,
    spare: float = 0.0,
) -> Array:
    """Return the Rényi curve of repeat-and-select from the ``curve`` of one run at ``orders``.

    Args:
        trials: The distribution of the number of runs.
        orders: The Rényi orders.
        curve: The divergences of one run at these orders.
        delta: An upper bound on δ(ε) of one run, by any method. Poisson numbers of runs need it at
            e^ε = 1 + 1/(order − 1).
        other: The order and the divergence of one run by which its place in the order of scores is
            bounded; the best of the curve by default.
        spare: The most that δ(ε) of a run may exceed that of a run with this curve, at every ε.
            Then the result is the curve of what is left after a mass of mean·spare has been taken
            away.

    Returns:
        The divergences at these orders.

    Raises:
        UnsupportedEvent: There is no rule for this number of runs.

    Reference: Papernot & Steinke 2022, Theorems 2 and 6, the latter with the chance that there is
    no run at all: ``docs/proofs/private-selection.md``, Theorems 2 to 4.
    """
    if isinstance(trials, NegativeBinomialTrials):
        at, value = (np.asarray(part) for part in (other or (orders, curve)))
        others = (
            (1 - 1 / at) * value
            - math.log(trials.success) / at
            + math.log1p(spare / trials.success)
        )
        return np.asarray(
            curve + (1 + trials.shape) * others.min() + math.log(trials.mean) / (orders - 1)
        )
    if isinstance(trials, PoissonTrials):
        spread = np.array([delta(math.log1p(1 / (order - 1))) + spare for order in orders])
        one = math.log(trials.rate) + (orders - 1) * (curve + trials.rate * spread)
        return np.asarray(np.logaddexp(-trials.rate, one) / (orders - 1))
    raise UnsupportedEvent(f"No rule for a number of runs that is drawn from {trials.tag!r}.")


def _places(run: RunProfile, trials: Trials) -> Array:
    """Return probabilities from 0 to 1 between which neither of the two weights changes much."""
    fine: Array = np.concatenate(([0.0], np.geomspace(1e-15, 1, _PLACES)))
    weights = [
        np.maximum(weight(trials, at) / trials.mean, math.exp(-_LEAST_WEIGHT))
        for at in (fine, run.moved(fine))
    ]
    way = -np.log(weights).sum(axis=0) + 1e-9 * np.arange(len(fine))
    return np.unique(
        np.concatenate(([0.0], np.interp(np.linspace(0, way[-1], _PLACES), way, fine), [1.0]))
    )


def _concave(x: Array, y: Array) -> Array:
    """Return the corners of the concave hull of points that rise in both coordinates."""
    hull: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(hull) > 1 and (
            (hull[-1][1] - hull[-2][1]) * (point[0] - hull[-2][0])
            <= (point[1] - hull[-2][1]) * (hull[-1][0] - hull[-2][0])
        ):
            hull.pop()
        hull.append(point)
    return np.array(hull).T
