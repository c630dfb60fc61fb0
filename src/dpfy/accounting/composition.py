"""Composition to a requested accuracy: choose atoms, line and smoothing, bound from both sides, refine."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import brentq

from dpfy.accounting import atoms
from dpfy.accounting.atoms import Direction
from dpfy.accounting.fourier import Group, Moments, Spectrum, moments
from dpfy.accounting.mixtures import Resolution, groups
from dpfy.accounting.pairs import Pairs, coarsened
from dpfy.accounting.tilt import choose_line, log_chernoff, saddle, saddle_at, tilt_grid

_PRECISION = 1e-6  # of δ: what tails and aliases may cost
_COARSE = 160  # atoms for a first guess
_FEW = 32  # kinds of steps for a first guess
_MARGIN = 6  # where there are few kinds of steps, aim this much finer than asked
_ROUNDS = 6
_MAX_WORK = 2e8  # atoms × frequencies of one bound: about a second
_PER_BLOCK = 1000  # frequencies that building a block is worth
_MAX_FREQUENCIES = 2**17
_MAX_EXPONENT = 650.0
_MIN_LOG_DELTA = -630.0
_MARGINS = tuple(1e-11 * 4.0**i for i in range(20))  # relative, from a root to where the bound is certain


class Bracket(NamedTuple):
    """Two certified bounds, and how they were obtained where that is not what the method's name says."""

    lower: float
    upper: float
    note: str = ""


class Bounds(NamedTuple):
    """A composed law from above and from below."""

    above: Spectrum
    below: Spectrum
    moments: Moments
    infinite: float

    def delta_above(self, epsilon: float) -> float:
        return math.exp(min(0.0, self.above.delta_above(epsilon))) + self.infinite

    def delta_below(self, epsilon: float) -> float:
        return self.below.delta_below(epsilon, self.moments)


class Location(NamedTuple):
    """Where on the profile the answer is thought to be."""

    tilt: float
    epsilon: float
    log_delta: float


class Question(Protocol):
    """What is asked of a composed law."""

    def start(self) -> float:
        """A first guess of log δ."""

    def locate(self, law: Moments) -> Location:
        """Guess where the answer is."""

    def answer(self, bounds: Bounds, place: Location) -> Bracket:
        """Bound the answer."""

    def improved(self, bracket: Bracket, place: Location) -> Location:
        """Take what was found into the guess."""

    def excess(self, bracket: Bracket, place: Location, accuracy: float) -> float:
        """The width of the bracket over what is allowed."""

    def allowed(self, place: Location, slope: float, accuracy: float) -> float:
        """The width that is allowed, in log δ, where log δ falls by ``slope`` per unit of ε."""

    def settled(self, law: Moments, infinite: float, bracket: Bracket) -> bool:
        """Whether a law with these moments is certainly no worse than the bracket's lower end."""


@dataclass(frozen=True)
class EpsilonAt:
    """ε(δ)?"""

    delta: float

    def start(self) -> float:
        return math.log(self.delta)

    def locate(self, law: Moments) -> Location:
        tilt, epsilon = saddle(law, math.log(self.delta))
        return Location(tilt, epsilon, math.log(self.delta))

    def answer(self, bounds: Bounds, place: Location) -> Bracket:
        goal = self.delta - bounds.infinite
        if goal <= 0:
            return Bracket(0.0, math.inf)
        if bounds.delta_above(0.0) <= self.delta:
            return Bracket(0.0, 0.0)
        upper = _crossing(lambda epsilon: bounds.above.delta_above(epsilon) - math.log(goal), place.epsilon)
        return Bracket(_last_above(lambda epsilon: bounds.delta_below(epsilon) / self.delta - 1, upper), upper)

    def improved(self, bracket: Bracket, place: Location) -> Location:
        return place._replace(epsilon=bracket.upper) if bracket.upper < math.inf else place

    def allowed(self, place: Location, slope: float, accuracy: float) -> float:
        return accuracy * place.epsilon * slope

    def excess(self, bracket: Bracket, place: Location, accuracy: float) -> float:
        if bracket.upper == math.inf:
            return 2 / accuracy
        return (bracket.upper - bracket.lower) / (accuracy * bracket.upper) if bracket.upper > 0 else 0.0

    def settled(self, law: Moments, infinite: float, bracket: Bracket) -> bool:
        return math.exp(log_chernoff(law, bracket.lower)) + infinite <= self.delta * (1 - 1e-9)


@dataclass(frozen=True)
class DeltaAt:
    """δ(ε)?"""

    epsilon: float

    def start(self) -> float:
        return -30.0

    def locate(self, law: Moments) -> Location:
        tilt, log_delta = saddle_at(law, self.epsilon)
        return Location(tilt, self.epsilon, max(log_delta, _MIN_LOG_DELTA))

    def answer(self, bounds: Bounds, place: Location) -> Bracket:
        return Bracket(max(0.0, bounds.delta_below(self.epsilon)), min(1.0, bounds.delta_above(self.epsilon)))

    def improved(self, bracket: Bracket, place: Location) -> Location:
        return place._replace(log_delta=max(math.log(bracket.upper), _MIN_LOG_DELTA)) if bracket.upper > 0 else place

    def allowed(self, place: Location, slope: float, accuracy: float) -> float:
        return accuracy * max(1.0, place.epsilon * slope)

    def excess(self, bracket: Bracket, place: Location, accuracy: float) -> float:
        if bracket.upper <= 0:
            return 0.0
        width = math.log(bracket.upper / bracket.lower) if bracket.lower > 0 else 1e3
        return width / (accuracy * max(1.0, place.tilt * self.epsilon))

    def settled(self, law: Moments, infinite: float, bracket: Bracket) -> bool:
        return math.exp(log_chernoff(law, self.epsilon)) + infinite <= bracket.lower


def composed(pairs: Pairs, gauss: float, question: Question, accuracy: float) -> Bracket | None:
    """Answer a question about ``pairs`` followed by a Gaussian mechanism of μ² = ``gauss``, for both directions.

    *Formal guarantee*: the answer for the composition lies in the bracket. None if float64 does not carry so far.
    """
    if not _representable(pairs, Location(0.0, 0.0, question.start())):
        return None
    result = one_direction(pairs, gauss, 1, question, accuracy)
    if any(pair.neighbours == "absent" for pair, _ in pairs):
        law, infinite, _ = _first_guess(pairs, gauss, -1, question)
        if not (law and question.settled(law, infinite, result)):
            other = one_direction(pairs, gauss, -1, question, accuracy)
            result = Bracket(max(result.lower, other.lower), max(result.upper, other.upper), result.note)
    return result


def one_direction(pairs: Pairs, gauss: float, direction: Direction, question: Question, accuracy: float) -> Bracket:
    """Answer a question about one direction: compose, see what the width is due to, make that finer, and again."""
    _, _, place = _first_guess(pairs, gauss, direction, question)
    aim = accuracy / (_MARGIN if len(pairs) <= _FEW else 1)
    fineness = math.sqrt(1e-3 / aim)
    resolution = Resolution(int(240 * fineness), 0.006 / fineness, place.tilt, place.epsilon,
                            _log_tail(pairs, place))
    smoothing = aim / 5 * max(place.epsilon, 0.2 / place.tilt) / (place.tilt + 1)
    best, before, note = Bracket(0.0, math.inf), math.inf, ""
    for _ in range(_ROUNDS):
        if not _representable(pairs, place):
            break
        up = groups(pairs, direction, resolution, pessimistic=True)
        law = moments(up, gauss, tilt_grid(_variance(up, gauss), place.log_delta))
        line = choose_line(law, place.tilt, place.epsilon, place.log_delta, smoothing, gauss, _PRECISION)
        work = resolution.atoms * (line.count + _PER_BLOCK * len(up))
        if line.count > _MAX_FREQUENCIES or work > _MAX_WORK * (2 if before == math.inf else 1):
            break
        down = groups(pairs, direction, resolution, pessimistic=False)
        bounds = Bounds(Spectrum(up, gauss, line), Spectrum(down, gauss, line), law, sum(g.infinite for g in up))
        note = f"{len(pairs)} kinds of steps merged into {len(up)}" if len(up) < len(pairs) else ""
        found = question.answer(bounds, place)
        best = Bracket(max(best.lower, found.lower), min(best.upper, found.upper))
        excess = question.excess(best, place, accuracy)
        if excess <= 1 or excess > 0.8 * before:
            break
        before = excess
        place, smoothing, resolution = _finer(bounds, found, question, place, excess, accuracy, smoothing,
                                              resolution)
    return Bracket(min(best.lower, best.upper), best.upper, note)


def _finer(bounds: Bounds, found: Bracket, question: Question, place: Location, excess: float, accuracy: float,
           smoothing: float, resolution: Resolution) -> tuple[Location, float, Resolution]:
    """Attribute the width to smoothing and to atoms, and make finer what dominates it."""
    place = question.improved(found, question.locate(bounds.moments))
    ahead = 1e-3 * max(place.epsilon, 0.1 / place.tilt)
    here = bounds.above.delta_above(place.epsilon)
    slope = max((here - bounds.above.delta_above(place.epsilon + ahead)) / ahead, 1e-3 * place.tilt)
    smeared = math.exp(min(bounds.below.smoothing_cost(place.epsilon) - here, 5.0))
    smeared = max(smeared / max(question.allowed(place, slope, accuracy), 1e-12), 1e-9)
    smoothing *= min(1.0, max(0.2 / smeared, 0.01))
    factor = min(max(math.sqrt(max(excess - smeared, 0.0) / 0.4), 1.25), 4.0)
    return place, smoothing, replace(resolution, atoms=int(resolution.atoms * factor), width=resolution.width / factor,
                                     tilt=slope, epsilon=place.epsilon)


def _first_guess(pairs: Pairs, gauss: float, direction: Direction,
                 question: Question) -> tuple[Moments, float, Location]:
    """Moments of a coarse law from above, its mass at ∞, and where the answer is."""
    few = coarsened(pairs, _FEW, pessimistic=True)
    place = Location(0.0, 0.0, question.start())
    for _ in range(2):  # the second time with atoms where the first says they matter
        if not _representable(few, place):
            break
        resolution = Resolution(_COARSE, 1.0, place.tilt, math.inf, _log_tail(pairs, place))
        law = groups(few, direction, resolution, pessimistic=True)
        found = moments(law, gauss, tilt_grid(_variance(law, gauss), place.log_delta))
        place = question.locate(found)
    return found, sum(group.infinite for group in law), place


def _log_tail(pairs: Pairs, place: Location) -> float:
    return place.log_delta + math.log(_PRECISION / sum(times for _, times in pairs))


def _variance(law: list[Group], gauss: float) -> float:
    """The variance of the loss, roughly."""
    return float(moments(law, gauss, np.array([1e-9])).variance[0])


def _representable(pairs: Pairs, place: Location) -> bool:
    """Whether e^loss and e^(tilt·loss) of every atom are floats."""
    for pair, _ in coarsened(pairs, 1, pessimistic=True):
        last = atoms.place_range(pair, max(_log_tail(pairs, place), -700.0))[1]
        if max(1.0, 1.2 * place.tilt) * float(atoms.losses(pair, np.array([last]))[0]) > _MAX_EXPONENT:
            return False
    return True


def _crossing(excess: Callable[[float], float], guess: float) -> float:
    """A point at which the decreasing ``excess`` is at most 0, close to where it becomes so; positive at 0."""
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
    """A point at which ``excess`` is at least 0, searched downwards from ``high``; 0 if there is none."""
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
