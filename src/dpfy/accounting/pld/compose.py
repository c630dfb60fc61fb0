"""Composition to a requested accuracy: choose cuts, line and smoothing, bound from both sides,
refine.
"""

import bisect
import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from dpfy.accounting.dominating_pairs import Pairs, coarsened
from dpfy.accounting.pld import discretize
from dpfy.accounting.pld.common_cuts import FEW, Resolution, Run, arranged, built, choose_cuts, law
from dpfy.accounting.pld.contour import choose_line, log_chernoff, log_spare, saddle_at, tilt_grid
from dpfy.accounting.pld.discretize import Array, Block, Direction
from dpfy.accounting.pld.fourier import Moments, Spectrum, capped, moments, reversed_law, stacked
from dpfy.accounting.pld.target import Bounds, Bracket, DeltaAt, Location, Target

_RARE = math.log(1e-6)  # log δ of the opposite direction where it matters, roughly
_COARSE = 200  # cuts for a first guess
_CUTS = 280  # cuts for an accuracy of 1e-3, usually
_ROUNDS = 8
_GUESSES = 4
_MAX_WORK = 2e8  # cuts × frequencies of one bound: about a second; then smoothing gives way
_MAX_KINDS = 20_000
_MAX_CELLS = 2e7  # kinds × cuts
_MAX_CUTS = 100_000
_MAX_EXPONENT = 640.0
_LEAST_LOSS = 1e-12  # below it, or where none is positive, exponents are no reason to bound a tilt
_LEAST_NOISE = 0.03  # e^(1/2z²) is a float


class _Outline:
    """A coarse law from above, on cuts for a place."""

    def __init__(
        self,
        run: Run,
        gauss: float,
        direction: Direction,
        place: Location,
        before: "_Outline | None" = None,
    ) -> None:
        self.log_tail = log_spare(place.log_delta) - math.log(run.steps)
        known, top = (
            (before.near(place.ceiling)[0], before.top(place.ceiling))
            if before
            else (None, math.inf)
        )
        resolution = Resolution(_COARSE, place.epsilon, known, top, self.log_tail, gauss)
        cuts = choose_cuts(run, direction, resolution)
        self._parts = [
            built(steps, cuts, None, direction, discretize.above)[0] for steps in run.few
        ]
        self._block = stacked(self._parts)
        self._gauss, self._log_delta = gauss, place.log_delta
        self._mass = self._block.times @ self._block.mass
        self._margins = math.sqrt(_variance([self._block], gauss)) * np.geomspace(0.05, 1000, 40)
        self._taken_back = cache(self._opposite_delta)

    def near(self, epsilon: float) -> tuple[Moments, float]:
        """Moments with the losses above ``top(ε)`` split between there and ∞, and the mass at ∞."""
        blocks = [capped(self._block, self.top(epsilon))]
        tilts = tilt_grid(_variance(blocks, self._gauss), self._log_delta)
        return moments(blocks, self._gauss, tilts), infinite(blocks)

    def top(self, epsilon: float) -> float:
        """The least loss above which a split costs no more than δ is known to: one such loss
        decides, nearly always.
        """
        most = math.exp(log_spare(self._log_delta))
        other = self._mass * np.exp(np.minimum(epsilon - self._block.loss, 0.0))

        def enough(margin: float) -> bool:
            beyond = float(other[self._block.loss > epsilon + margin].sum())
            return beyond == 0 or beyond * self._taken_back(margin) <= most

        place = bisect.bisect_left(self._margins, True, key=enough)
        return epsilon + float(self._margins[place]) if place < len(self._margins) else math.inf

    def _opposite_delta(self, margin: float) -> float:
        found, gone = opposite(self._parts, self._gauss, margin)
        return math.exp(log_chernoff(found, margin)) + gone


class Ceiling(NamedTuple):
    """A composed law from above only."""

    above: Spectrum
    infinite: float

    def delta_above(self, epsilon: float) -> float:
        return math.exp(min(0.0, self.above.delta_above(epsilon))) + self.infinite

    def delta_below(self, epsilon: float) -> float:
        return 0.0


class Curve(NamedTuple):
    """A run composed for one ε: bounds on δ at any ε, as narrow as asked at that one and at
    somewhat smaller ones.
    """

    bounds: Bounds
    reverse: Bounds | Ceiling | None  # the direction of adding a record; None if both are the same

    def delta(self, epsilon: float) -> Bracket:
        """Bound δ(ε) from both sides."""
        sides = (self.bounds, self.reverse) if self.reverse else (self.bounds,)
        return Bracket(
            max(0.0, *(side.delta_below(epsilon) for side in sides)),
            min(1.0, max(side.delta_above(epsilon) for side in sides)),
        )


def composed(pairs: Pairs, gauss: float, question: Target, accuracy: float) -> Bracket | None:
    """Answer a question about ``pairs`` followed by a Gaussian mechanism of μ² = ``gauss``, for
    both directions.

    *Formal guarantee*: the answer for the composition lies in the bracket. None if float64 does not
    carry so far.
    """
    if _too_little_noise(pairs):
        return None
    if len(pairs) > _MAX_KINDS:
        ends = [
            composed(
                coarsened(pairs, _MAX_KINDS, pessimistic=pessimistic), gauss, question, accuracy
            )
            for pessimistic in (False, True)
        ]
        note = f"{len(pairs)} kinds of steps merged into at most {_MAX_KINDS}"
        return Bracket(ends[0].lower, ends[1].upper, note) if ends[0] and ends[1] else None
    try:
        with np.errstate(
            over="raise", invalid="raise"
        ):  # where it is meant, it is said to be ignored
            return _worse_direction(pairs, gauss, question, accuracy)
    except FloatingPointError:
        return None


def curve(pairs: Pairs, gauss: float, epsilon: float, accuracy: float) -> Curve | None:
    """Compose as :func:`composed` does for δ at ``epsilon``, and keep the law: asking it again
    costs next to nothing.

    None if float64 does not carry so far, or if there are too many kinds of steps.
    """
    if _too_little_noise(pairs) or len(pairs) > _MAX_KINDS:
        return None
    run, question = arranged(pairs), DeltaAt(epsilon)
    try:
        with np.errstate(over="raise", invalid="raise"):
            found, bounds, up = one_direction(run, gauss, 1, question, accuracy)
            if bounds is None or found.upper <= 0:
                return None
            if _symmetric(pairs):
                return Curve(bounds, None)
            back = [reversed_law(block) for block in up]
            ceiling = _ceiling(back, gauss, epsilon, math.log(found.upper), accuracy)
            if ceiling.delta_above(epsilon) <= found.upper:
                return Curve(bounds, ceiling)
            return Curve(bounds, one_direction(run, gauss, -1, question, accuracy, found)[1])
    except FloatingPointError:
        return None


def _too_little_noise(pairs: Pairs) -> bool:
    return any(
        pair.noise == "gaussian" and pair.noise_multiplier < _LEAST_NOISE for pair, _ in pairs
    )


def _symmetric(pairs: Pairs) -> bool:
    return all(pair.symmetric for pair, _ in pairs)


def _worse_direction(pairs: Pairs, gauss: float, question: Target, accuracy: float) -> Bracket:
    run = arranged(pairs)
    result, _, up = one_direction(run, gauss, 1, question, accuracy)
    if _symmetric(pairs) or _no_worse(
        [reversed_law(block) for block in up], gauss, *question.limit(result), accuracy
    ):
        return result
    return one_direction(run, gauss, -1, question, accuracy, result)[0]


def one_direction(
    run: Run,
    gauss: float,
    direction: Direction,
    question: Target,
    accuracy: float,
    other: Bracket = Bracket(0.0, 0.0),  # noqa: B008 - immutable
) -> tuple[Bracket, Bounds | None, list[Block]]:
    """Answer a question about one direction, or the worse of it and an ``other``; with the last
    law, and it from above.

    Compose, see what the width is due to, make that finer, and again.
    """
    outline = _Outline(run, gauss, direction, question.start())
    outline = _Outline(
        run, gauss, direction, question.locate(outline), outline
    )  # with cuts where they matter
    place = question.locate(outline)
    aim = min(accuracy / 2, max(accuracy / 6, 5e-6)) if run.kinds <= FEW else accuracy
    resolution = Resolution(
        int(_CUTS * math.sqrt(1e-3 / aim)),
        place.epsilon,
        outline.near(place.ceiling)[0],
        math.inf,
        outline.log_tail,
        gauss,
    )
    smoothing = aim / 5 * max(place.epsilon, question.least, 0.2 / place.tilt) / (place.tilt + 1)
    best, before, reached = Bracket(0.0, math.inf), math.inf, math.inf
    bounds: Bounds | None = None
    up: list[Block] = []
    for _ in range(_ROUNDS):
        if resolution.cuts > min(_MAX_CUTS, _MAX_CELLS / run.kinds):
            break
        resolution = replace(resolution, top=outline.top(place.ceiling))
        bounds, up = _bounds(run, gauss, direction, question, place, resolution, smoothing)
        found = question.answer(bounds, place)
        best = Bracket(
            max(best.lower, found.lower, other.lower),
            max(min(best.upper, found.upper), other.upper),
        )
        excess = question.excess(best, place, accuracy)
        if excess <= 1 or (excess > 0.8 * before and best.upper > 0.95 * reached):
            break
        before, reached = excess, best.upper
        place, smoothing, resolution = _finer(
            bounds, found, question, place, excess, accuracy, smoothing, resolution
        )
    return Bracket(min(best.lower, best.upper), best.upper), bounds, up


def _no_worse(
    blocks: list[Block], gauss: float, epsilon: float, delta: float, accuracy: float
) -> bool:
    """Whether δ(ε) of the laws, from above, is certainly at most ``delta``."""
    rest = delta - infinite(blocks) * (1 + 1e-12)
    if rest <= 0 or not blocks or epsilon == math.inf:
        return False
    found = moments(blocks, gauss, tilt_grid(_variance(blocks, gauss), math.log(delta)))
    return (
        log_chernoff(found, epsilon) <= math.log(rest) - 1e-9
        or _ceiling(blocks, gauss, epsilon, math.log(delta), accuracy).delta_above(epsilon) <= delta
    )


def _ceiling(
    blocks: list[Block], gauss: float, epsilon: float, log_delta: float, accuracy: float
) -> Ceiling:
    """The composition of laws from above, on a line for ε, where δ is thought to be about that."""
    found = moments(blocks, gauss, tilt_grid(_variance(blocks, gauss), log_delta))
    top = max(float(block.loss.max()) for block in blocks)
    steepest = _steepest(found, top)
    tilt = min(saddle_at(found, epsilon)[0], steepest)
    smoothing = accuracy / 5 * max(epsilon, 0.2 / tilt) / (tilt + 1)
    line = choose_line(
        found,
        tilt,
        steepest,
        epsilon,
        log_spare(log_delta),
        smoothing,
        gauss,
        _MAX_WORK / len(blocks[0].loss),
    )
    return Ceiling(Spectrum(blocks, gauss, line), infinite(blocks) * (1 + 1e-12))


def _steepest(found: Moments, top: float) -> float:
    """The largest tilt at which tilted masses are floats: the moments are, or e^λL itself is."""
    most = _MAX_EXPONENT / max(top, _LEAST_LOSS)
    usable = found.tilts[found.log_moment < _MAX_EXPONENT]
    return min(max(most, float(usable.max(initial=0.0))), 2 * most)


def infinite(blocks: list[Block]) -> float:
    """The mass at ∞ of the composition, to relative precision."""
    return -math.expm1(
        sum(
            float(block.times @ np.log1p(-np.minimum(block.infinite, 1 - 1e-16)))
            for block in blocks
        )
    )


def opposite(blocks: list[Block], gauss: float, margin: float) -> tuple[Moments, float]:
    """Moments of the opposite direction of laws from above, split above ``margin``, and the mass at
    ∞.
    """
    back = [capped(reversed_law(block), margin) for block in blocks]
    return moments(back, gauss, tilt_grid(_variance(back, gauss), _RARE)), infinite(back)


def _bounds(
    run: Run,
    gauss: float,
    direction: Direction,
    question: Target,
    place: Location,
    resolution: Resolution,
    smoothing: float,
) -> tuple[Bounds, list[Block]]:
    """Bound the composed law on cuts of this resolution; and the law from above."""
    for _ in range(_GUESSES):
        cuts = choose_cuts(run, direction, resolution)
        up, down = law(run, cuts, direction, discretize.above, discretize.below)
        found = moments(up, gauss, tilt_grid(_variance(up, gauss), place.log_delta))
        guess, place = place, question.sharpened(found, infinite(up), place)
        if place == guess:
            break
        resolution = replace(resolution, epsilon=place.epsilon, law=found)
    top = float(cuts[-1] if direction == 1 else -cuts[0])
    spare = log_spare(place.log_delta)
    line = choose_line(
        found,
        question.tilt(found, infinite(up)),
        _steepest(found, top),
        place.epsilon,
        spare,
        smoothing,
        gauss,
        _MAX_WORK / len(cuts),
    )
    beyond, past = (
        sum(float(block.times @ part) for block, part in parts)
        for parts in (
            [(block, block.beyond) for block in down],
            [(block, block.past) for block in down],
        )
    )
    back = opposite(up, gauss, max(top - place.epsilon, 0.0)) if past > math.exp(spare) else None
    return Bounds(
        Spectrum(up, gauss, line),
        Spectrum(down, gauss, line),
        found,
        back,
        top,
        infinite(up) * (1 + 1e-12),
        infinite(down) * (1 - 1e-12),
        beyond,
        past,
    ), up


def _finer(
    bounds: Bounds,
    found: Bracket,
    question: Target,
    place: Location,
    excess: float,
    accuracy: float,
    smoothing: float,
    resolution: Resolution,
) -> tuple[Location, float, Resolution]:
    """Attribute the width to smoothing and to atoms, and make finer what dominates it."""
    place = question.improved(found, place)._replace(tilt=bounds.above.line.tilt)
    ahead = 1e-3 * max(place.epsilon, 0.1 / place.tilt)
    here, there = (
        math.log(max(bounds.delta_above(epsilon), 1e-300))
        for epsilon in (place.epsilon, place.epsilon + ahead)
    )
    slope = max((here - there) / ahead, 1e-9 * place.tilt)
    smeared = math.exp(min(bounds.below.smoothing_cost(place.epsilon) - here, 5.0))
    smeared = max(smeared / max(question.allowed(place, slope, accuracy), 1e-12), 1e-9)
    smoothing *= min(1.0, max(0.2 / smeared, 0.01))
    factor = (
        min(max(math.sqrt(max(excess - smeared, 0.0) / 0.4), 1.0), 4.0)
        if found.upper < math.inf
        else 1.0
    )
    return (
        place,
        smoothing,
        replace(
            resolution,
            cuts=int(resolution.cuts * factor),
            epsilon=place.epsilon,
            law=bounds.moments,
        ),
    )


def _variance(blocks: list[Block], gauss: float, tilt: float = 1e-9) -> float:
    """The variance of the tilted loss, roughly."""
    at: Array = np.array([tilt])
    return float(moments(blocks, gauss, at).variance[0])
