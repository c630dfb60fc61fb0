"""Targets of a composition: ε at a given δ, or δ at a given ε, each bounded from both sides.

A :class:`Target` says where on the privacy profile its answer lies, how to read the answer off a
composed loss distribution, and how precise the answer must be. ``compose.py`` does the rest, and
does not know which of the two targets it was given.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from dpfy.accounting.pld.contour import log_chernoff, saddle, saddle_at
from dpfy.accounting.pld.fourier import Moments, Spectrum
from dpfy.accounting.solvers import brentq

_MIN_LOG_DELTA = -630.0
_CLEARLY = 3.0  # how far log δ must be off for a guess to be given up
_MARGINS = tuple(
    1e-11 * 4.0**i for i in range(20)
)  # relative, from a root to where the bound is certain


class Bracket(NamedTuple):
    """Two certified bounds, with a note where the method's name does not say how they were found.

    Args:
        lower: The lower bound.
        upper: The upper bound.
        note: How the upper bound was obtained; empty if the method's name says so.
    """

    lower: float
    upper: float
    note: str = ""


class Bounds(NamedTuple):
    """A composed loss distribution, from above and from below.

    Losses past ``top`` were split between ``top`` and ∞.

    Args:
        above: The distribution whose δ is at least the true one, finite losses only.
        below: The distribution whose δ is at most the true one, finite losses only.
        moments: Upper bounds on the moments of ``above``.
        opposite: Moments of the opposite direction from above, and its mass at ∞; None if what the
            split costs is negligible without it.
        top: The largest finite loss of one step.
        infinite: Mass at ∞, above.
        certain: Mass at ∞, below.
        beyond: e^top times the other distribution's mass past the top.
        past: Mass past the top.
    """

    above: Spectrum
    below: Spectrum
    moments: Moments
    opposite: tuple[Moments, float] | None
    top: float
    infinite: float
    certain: float
    beyond: float
    past: float

    def delta_above(self, epsilon: float) -> float:
        """Return an upper bound on δ(ε)."""
        return math.exp(min(0.0, self.above.delta_above(epsilon))) + self.infinite

    def delta_below(self, epsilon: float) -> float:
        """Return a lower bound on δ(ε).

        The split costs at most the mass past the top, and at most e^(ε − top)·``beyond``·δ(top − ε)
        of the opposite direction.
        """
        split = self.past
        if self.opposite is not None:
            back = math.exp(log_chernoff(self.opposite[0], self.top - epsilon)) + self.opposite[1]
            split = min(split, self.beyond * back * math.exp(min(epsilon - self.top, 700.0)))
        return self.certain + self.below.delta_below(epsilon, self.moments) - split * (1 + 1e-9)


class Location(NamedTuple):
    """A guess of where on the privacy profile the answer lies.

    Args:
        tilt: Real part of the contour there, which is about −d log δ/dε.
        epsilon: A guess of ε.
        log_delta: A guess of log δ.
        ceiling: An upper bound on ε.
    """

    tilt: float
    epsilon: float
    log_delta: float
    ceiling: float


class CoarseDistribution(Protocol):
    """A composed loss distribution from above on few cuts, for a first guess."""

    def near(self, epsilon: float) -> tuple[Moments, float]:
        """Return its moments with losses that certainly exceed ε moved to ∞, and the mass there."""


class Target(ABC):
    """A coordinate of a point on the privacy profile of a composition, where the other is given."""

    least: ClassVar[float]
    """An ε below which differences are not relative but absolute."""

    @abstractmethod
    def locate(self, coarse: CoarseDistribution | None) -> Location:
        """Guess where the answer is; without a distribution, return what is known before any."""

    @abstractmethod
    def relocate(
        self, moments: Moments, infinite: float, location: Location
    ) -> tuple[Location, float]:
        """Guess again by a finer distribution from above, and return the tilt for its contour."""

    @abstractmethod
    def bracket(self, bounds: Bounds, location: Location) -> Bracket:
        """Bound the answer from both sides."""

    @abstractmethod
    def point(self, answer: float) -> tuple[float, float]:
        """Return the point (ε, δ) of the profile whose coordinate asked for is ``answer``."""

    @abstractmethod
    def allowed(self, location: Location, slope: float, accuracy: float) -> float:
        """Return the width allowed in log δ, where log δ falls by ``slope`` per unit of ε."""


def excess(target: Target, bracket: Bracket, location: Location, accuracy: float) -> float:
    """Return the width of a bracket over the width that its target allows; at most 1 is enough.

    One of the two coordinates of a target is given. So the ends of a bracket differ in the other
    one only, and the tilt turns a difference in ε into one in log δ.
    """
    (low, least), (high, most) = target.point(bracket.lower), target.point(bracket.upper)
    if high == math.inf:
        return 2 / accuracy
    if most <= 0:
        return 0.0
    width = (high - low) * location.tilt + (math.log(most / least) if least > 0 else 1e3)
    return width / target.allowed(location._replace(epsilon=high), location.tilt, accuracy)


def moved(target: Target, bracket: Bracket, location: Location) -> Location:
    """Return the location of the upper end of a bracket."""
    epsilon, delta = target.point(bracket.upper)
    if epsilon == math.inf:
        epsilon = 2 * location.ceiling
    lowest = min(location.log_delta, _MIN_LOG_DELTA)
    log_delta = max(math.log(delta), lowest) if delta > 0 else location.log_delta
    return location._replace(epsilon=epsilon, log_delta=log_delta, ceiling=epsilon)


@dataclass(frozen=True)
class EpsilonAt(Target):
    """The smallest ε at a given δ.

    Args:
        delta: The δ.
    """

    least: ClassVar[float] = 1e-3

    delta: float

    def locate(self, coarse: CoarseDistribution | None) -> Location:
        """Search for the smallest ε at which the coarse δ is small enough."""
        goal = math.log(self.delta)
        if coarse is None:
            return Location(0.0, math.inf, goal, math.inf)
        high = saddle(coarse.near(math.inf)[0], goal)[1] / 0.7
        low, floor = high / 2, 1e-9 * high
        while low > floor and self._holds(coarse, low):
            low, high = low / 4, low
        while high > 1.2 * low > floor:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._holds(coarse, middle) else (middle, high)
        moments, infinite = coarse.near(high)
        tilt, epsilon = saddle(moments, self._log_finite(infinite))
        return Location(tilt, min(epsilon, high), goal, high)

    def relocate(
        self, moments: Moments, infinite: float, location: Location
    ) -> tuple[Location, float]:
        """Keep the guess of ε unless its δ is clearly smaller than asked."""
        goal = self._log_finite(infinite)
        tilt, epsilon = saddle(moments, goal)
        if log_chernoff(moments, location.epsilon) > goal - _CLEARLY:
            return location, tilt
        return location._replace(tilt=tilt, epsilon=epsilon), tilt

    def bracket(self, bounds: Bounds, location: Location) -> Bracket:
        """Search for where each of the two bounds on δ crosses the given δ."""
        goal = self.delta - bounds.infinite
        if goal <= 0:
            return Bracket(0.0, math.inf)
        if bounds.delta_above(0.0) <= self.delta:
            return Bracket(0.0, 0.0)
        upper = _crossing(
            lambda epsilon: bounds.above.delta_above(epsilon) - math.log(goal), location.epsilon
        )
        return Bracket(
            _last_above(lambda epsilon: bounds.delta_below(epsilon) / self.delta - 1, upper), upper
        )

    def point(self, answer: float) -> tuple[float, float]:
        """Return (answer, δ)."""
        return answer, self.delta

    def allowed(self, location: Location, slope: float, accuracy: float) -> float:
        """Allow a part of ε."""
        return accuracy * max(location.epsilon, self.least) * slope

    def _log_finite(self, infinite: float) -> float:
        """Return the log of the δ left for finite losses."""
        return math.log(max(self.delta - infinite, 1e-3 * self.delta))

    def _holds(self, coarse: CoarseDistribution, epsilon: float) -> bool:
        """Tell whether Chernoff's bound on the coarse δ(ε) is small enough."""
        moments, infinite = coarse.near(epsilon)
        return math.exp(log_chernoff(moments, epsilon)) + infinite <= self.delta * (1 - 1e-9)


@dataclass(frozen=True)
class DeltaAt(Target):
    """The δ at a given ε.

    Args:
        epsilon: The ε.
    """

    least: ClassVar[float] = 0.0

    epsilon: float

    def locate(self, coarse: CoarseDistribution | None) -> Location:
        """Guess δ from the moments near ε."""
        if coarse is None:
            return Location(0.0, math.inf, -30.0, math.inf)
        return self._estimate(*coarse.near(self.epsilon))

    def relocate(
        self, moments: Moments, infinite: float, location: Location
    ) -> tuple[Location, float]:
        """Keep the guess of δ unless the finer one is clearly smaller."""
        found = self._estimate(moments, infinite)
        better = found.log_delta < location.log_delta - _CLEARLY
        return found if better else location, found.tilt

    def bracket(self, bounds: Bounds, location: Location) -> Bracket:
        """Evaluate both bounds at ε."""
        return Bracket(
            max(0.0, bounds.delta_below(self.epsilon)), min(1.0, bounds.delta_above(self.epsilon))
        )

    def point(self, answer: float) -> tuple[float, float]:
        """Return (ε, answer)."""
        return self.epsilon, answer

    def allowed(self, location: Location, slope: float, accuracy: float) -> float:
        """Allow a part of δ, or as much as a part of ε changes it."""
        return accuracy * max(1.0, location.epsilon * slope)

    def _estimate(self, moments: Moments, infinite: float) -> Location:
        """Return the location of Chernoff's bound on δ."""
        tilt, log_delta = saddle_at(moments, self.epsilon)
        log_delta = max(math.log(math.exp(log_delta) + infinite + 1e-300), _MIN_LOG_DELTA)
        return Location(tilt, self.epsilon, log_delta, self.epsilon)


def _crossing(excess: Callable[[float], float], guess: float) -> float:
    """Return a point at which the decreasing ``excess`` is first at most 0, or just past it."""
    low, high = 0.0, max(guess, 1e-12)
    for _ in range(200):
        if excess(high) <= 0:
            break
        low, high = high, 1.5 * high
    else:
        return math.inf
    near = max(low, 0.98 * high)
    low = near if excess(near) > 0 else low
    root = float(brentq(excess, low, high, xtol=1e-300, rtol=1e-11, maxiter=300))
    for margin in _MARGINS:
        if excess(root * (1 + margin)) <= 0:
            return root * (1 + margin)
    return high


def _last_above(excess: Callable[[float], float], high: float) -> float:
    """Return a point with ``excess`` of at least 0, searched downwards from ``high``; else 0."""
    low, step = high, 1e-4
    while excess(low) < 0:
        if step > 1:
            return 0.0
        high, low, step = low, low * (1 - step), 3 * step
    if low == high:
        return low
    root = float(brentq(excess, low, high, xtol=1e-300, rtol=1e-11, maxiter=300))
    for margin in _MARGINS:
        if excess(root * (1 - margin)) >= 0:
            return root * (1 - margin)
    return low
