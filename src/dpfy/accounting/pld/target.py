"""What may be asked of a composed law: ε at a δ, or δ at an ε, answered by a bound from either
side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scipy.optimize import brentq

from dpfy.accounting.pld.contour import log_chernoff, saddle, saddle_at
from dpfy.accounting.pld.fourier import Moments, Spectrum

_MIN_LOG_DELTA = -630.0
_CLEARLY = 3.0  # by how much log δ must be off for a guess to be given up
_MARGINS = tuple(
    1e-11 * 4.0**i for i in range(20)
)  # relative, from a root to where the bound is certain


class Bracket(NamedTuple):
    """Two certified bounds, and how they were obtained where that is not what the method's name
    says.
    """

    lower: float
    upper: float
    note: str = ""


class Bounds(NamedTuple):
    """A composed law from above and from below, whose losses past ``top`` were split between it and
    ∞.
    """

    above: Spectrum
    below: Spectrum
    moments: Moments
    opposite: tuple[Moments, float] | None  # of the opposite direction, above, and its mass at ∞
    top: float
    infinite: float  # mass at ∞, above
    certain: float  # mass at ∞, below
    beyond: float  # e^top times the other distribution's mass past the top
    past: float  # mass past the top

    def delta_above(self, epsilon: float) -> float:
        return math.exp(min(0.0, self.above.delta_above(epsilon))) + self.infinite

    def delta_below(self, epsilon: float) -> float:
        """The split costs no more than is past the top, nor than e^(ε − top)·``beyond``·δ(top − ε)
        of the opposite.
        """
        split = self.past
        if self.opposite is not None:
            back = math.exp(log_chernoff(self.opposite[0], self.top - epsilon)) + self.opposite[1]
            split = min(split, self.beyond * back * math.exp(min(epsilon - self.top, 700.0)))
        return self.certain + self.below.delta_below(epsilon, self.moments) - split * (1 + 1e-9)


class Location(NamedTuple):
    """Where on the profile the answer is thought to be; ε is at most ``ceiling``."""

    tilt: float
    epsilon: float
    log_delta: float
    ceiling: float


class Outline(Protocol):
    """A coarse law from above."""

    def near(self, epsilon: float) -> tuple[Moments, float]:
        """Moments of the law with the losses that exceed ε for certain moved to ∞, and the mass
        there.
        """


class Target(Protocol):
    """What is asked of a composed law."""

    @property
    def least(self) -> float:
        """An ε below which differences are not relative but absolute."""

    def start(self) -> Location:
        """What is known before anything is."""

    def locate(self, outline: Outline) -> Location:
        """Guess where the answer is."""

    def sharpened(self, law: Moments, infinite: float, place: Location) -> Location:
        """Guess again, by a finer law from above."""

    def answer(self, bounds: Bounds, place: Location) -> Bracket:
        """Bound the answer."""

    def tilt(self, law: Moments, infinite: float) -> float:
        """Where to integrate a law with these moments and this mass at ∞."""

    def improved(self, bracket: Bracket, place: Location) -> Location:
        """Take what was found into the guess."""

    def excess(self, bracket: Bracket, place: Location, accuracy: float) -> float:
        """The width of the bracket over what is allowed."""

    def allowed(self, place: Location, slope: float, accuracy: float) -> float:
        """The width that is allowed, in log δ, where log δ falls by ``slope`` per unit of ε."""

    def limit(self, bracket: Bracket) -> tuple[float, float]:
        """An ε and a δ such that a law with no larger δ there does not raise the bracket."""


@dataclass(frozen=True)
class EpsilonAt:
    """ε(δ)?"""

    delta: float
    least: float = 1e-3

    def start(self) -> Location:
        return Location(0.0, math.inf, math.log(self.delta), math.inf)

    def locate(self, outline: Outline) -> Location:
        goal = math.log(self.delta)
        high = saddle(outline.near(math.inf)[0], goal)[1] / 0.7
        low, floor = high / 2, 1e-9 * high
        while low > floor and self._holds(outline, low):
            low, high = low / 4, low
        while high > 1.2 * low > floor:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._holds(outline, middle) else (middle, high)
        tilt, epsilon = self._saddle(*outline.near(high))
        return Location(tilt, min(epsilon, high), goal, high)

    def sharpened(self, law: Moments, infinite: float, place: Location) -> Location:
        if (
            log_chernoff(law, place.epsilon)
            > math.log(max(self.delta - infinite, 1e-3 * self.delta)) - _CLEARLY
        ):
            return place
        tilt, epsilon = self._saddle(law, infinite)
        return place._replace(tilt=tilt, epsilon=epsilon)

    def _saddle(self, law: Moments, infinite: float) -> tuple[float, float]:
        return saddle(law, math.log(max(self.delta - infinite, 1e-3 * self.delta)))

    def _holds(self, outline: Outline, epsilon: float) -> bool:
        law, infinite = outline.near(epsilon)
        return math.exp(log_chernoff(law, epsilon)) + infinite <= self.delta * (1 - 1e-9)

    def answer(self, bounds: Bounds, place: Location) -> Bracket:
        goal = self.delta - bounds.infinite
        if goal <= 0:
            return Bracket(0.0, math.inf)
        if bounds.delta_above(0.0) <= self.delta:
            return Bracket(0.0, 0.0)
        upper = _crossing(
            lambda epsilon: bounds.above.delta_above(epsilon) - math.log(goal), place.epsilon
        )
        return Bracket(
            _last_above(lambda epsilon: bounds.delta_below(epsilon) / self.delta - 1, upper), upper
        )

    def tilt(self, law: Moments, infinite: float) -> float:
        return self._saddle(law, infinite)[0]

    def improved(self, bracket: Bracket, place: Location) -> Location:
        epsilon = bracket.upper if bracket.upper < math.inf else 2 * place.ceiling
        return place._replace(epsilon=epsilon, ceiling=epsilon)

    def allowed(self, place: Location, slope: float, accuracy: float) -> float:
        return accuracy * max(place.epsilon, self.least) * slope

    def excess(self, bracket: Bracket, place: Location, accuracy: float) -> float:
        if bracket.upper == math.inf:
            return 2 / accuracy
        return (bracket.upper - bracket.lower) / (accuracy * max(bracket.upper, self.least))

    def limit(self, bracket: Bracket) -> tuple[float, float]:
        return bracket.upper, self.delta


@dataclass(frozen=True)
class DeltaAt:
    """δ(ε)?"""

    epsilon: float
    least: float = 0.0

    def start(self) -> Location:
        return Location(0.0, math.inf, -30.0, math.inf)

    def locate(self, outline: Outline) -> Location:
        return self._at(*outline.near(self.epsilon))

    def _at(self, law: Moments, infinite: float) -> Location:
        tilt, log_delta = saddle_at(law, self.epsilon)
        log_delta = max(math.log(math.exp(log_delta) + infinite + 1e-300), _MIN_LOG_DELTA)
        return Location(tilt, self.epsilon, log_delta, self.epsilon)

    def sharpened(self, law: Moments, infinite: float, place: Location) -> Location:
        found = self._at(law, infinite)
        return found if found.log_delta < place.log_delta - _CLEARLY else place

    def answer(self, bounds: Bounds, place: Location) -> Bracket:
        return Bracket(
            max(0.0, bounds.delta_below(self.epsilon)), min(1.0, bounds.delta_above(self.epsilon))
        )

    def tilt(self, law: Moments, infinite: float) -> float:
        return saddle_at(law, self.epsilon)[0]

    def improved(self, bracket: Bracket, place: Location) -> Location:
        log_delta = (
            max(math.log(bracket.upper), _MIN_LOG_DELTA) if bracket.upper > 0 else place.log_delta
        )
        return place._replace(log_delta=log_delta)

    def allowed(self, place: Location, slope: float, accuracy: float) -> float:
        return accuracy * max(1.0, place.epsilon * slope)

    def excess(self, bracket: Bracket, place: Location, accuracy: float) -> float:
        if bracket.upper <= 0:
            return 0.0
        width = math.log(bracket.upper / bracket.lower) if bracket.lower > 0 else 1e3
        return width / (accuracy * max(1.0, place.tilt * self.epsilon))

    def limit(self, bracket: Bracket) -> tuple[float, float]:
        return self.epsilon, bracket.upper


def _crossing(excess: Callable[[float], float], guess: float) -> float:
    """A point at which the decreasing ``excess`` is at most 0, close to where it becomes so;
    positive at 0.
    """
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
    """A point at which ``excess`` is at least 0, searched downwards from ``high``; 0 if there is
    none.
    """
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
