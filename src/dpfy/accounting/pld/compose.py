"""The refinement loop: compose a run to a requested accuracy.

Each round cuts the loss axis, discretizes every step from above and from below, composes both on a
line in the complex plane and reads the target off. Then it attributes the width of the bracket to
the cuts and to the smoothing, refines what dominates, and starts again. ``README.md`` draws it.

Tests: tests/accounting/test_reference.py.
"""

import bisect
import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from dpfy.accounting.dominating_pairs import Pairs, coarsened
from dpfy.accounting.pld import discretize
from dpfy.accounting.pld.common_cuts import (
    FEW,
    Resolution,
    Run,
    arranged,
    choose_cuts,
    discretized,
    discretized_steps,
)
from dpfy.accounting.pld.contour import choose_line, log_chernoff, log_spare, saddle_at, tilt_grid
from dpfy.accounting.pld.discretize import Array, Block, Direction
from dpfy.accounting.pld.fourier import (
    Moments,
    Spectrum,
    capped,
    moments,
    reversed_direction,
    stacked,
)
from dpfy.accounting.pld.target import (
    Bounds,
    Bracket,
    DeltaAt,
    Location,
    Target,
    excess,
    moved,
)

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


class _Coarse:
    """A coarse composition from above, on cuts chosen for a location."""

    def __init__(
        self,
        run: Run,
        gauss: float,
        direction: Direction,
        location: Location,
        before: "_Coarse | None" = None,
    ) -> None:
        self.log_tail = log_spare(location.log_delta) - math.log(run.steps)
        known, top = (
            (before.near(location.ceiling)[0], before.top(location.ceiling))
            if before
            else (None, math.inf)
        )
        resolution = Resolution(_COARSE, location.epsilon, known, top, self.log_tail, gauss)
        cuts = choose_cuts(run, direction, resolution)
        self._parts = [
            discretized_steps(steps, cuts, None, direction, discretize.above)[0]
            for steps in run.few
        ]
        self._block = stacked(self._parts)
        self._gauss, self._log_delta = gauss, location.log_delta
        self._mass = self._block.times @ self._block.mass
        self._margins = math.sqrt(_variance([self._block], gauss)) * np.geomspace(0.05, 1000, 40)
        self._taken_back = cache(self._opposite_delta)

    def near(self, epsilon: float) -> tuple[Moments, float]:
        """Return moments with losses above ``top(ε)`` split between it and ∞, and the mass at ∞."""
        blocks = [capped(self._block, self.top(epsilon))]
        tilts = tilt_grid(_variance(blocks, self._gauss), self._log_delta)
        return moments(blocks, self._gauss, tilts), infinite(blocks)

    def top(self, epsilon: float) -> float:
        """Return the least loss above which losses may be split at a negligible cost in δ.

        They are moved to it and to ∞. A single loss that large decides nearly always on which side
        of ε the sum lies.
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
    """A composed loss distribution from above only.

    Args:
        above: The distribution of finite losses.
        infinite: Mass at ∞.
    """

    above: Spectrum
    infinite: float

    def delta_above(self, epsilon: float) -> float:
        """Return an upper bound on δ(ε)."""
        return math.exp(min(0.0, self.above.delta_above(epsilon))) + self.infinite

    def delta_below(self, epsilon: float) -> float:
        """Return 0: nothing is known from below."""
        return 0.0


class Curve(NamedTuple):
    """A run composed for one ε, which bounds δ at any ε.

    The bounds are as narrow as asked at that ε and at somewhat smaller ones.

    Args:
        bounds: The direction of removing a record.
        reverse: The direction of adding a record; None if both are the same.
    """

    bounds: Bounds
    reverse: Bounds | Ceiling | None

    def delta(self, epsilon: float) -> Bracket:
        """Bound δ(ε) from both sides."""
        sides = (self.bounds, self.reverse) if self.reverse else (self.bounds,)
        return Bracket(
            max(0.0, *(side.delta_below(epsilon) for side in sides)),
            min(1.0, max(side.delta_above(epsilon) for side in sides)),
        )


def composed(pairs: Pairs, gauss: float, target: Target, accuracy: float) -> Bracket | None:
    """Bound a target for ``pairs`` followed by a Gaussian mechanism of μ² = ``gauss``.

    Both directions are covered.

    *Formal guarantee*: the value of the target for the composition lies in the bracket.

    Args:
        pairs: Dominating pairs and how often each is composed.
        gauss: μ² of all full-batch Gaussian steps together.
        target: ε at a δ, or δ at an ε.
        accuracy: Width allowed, relative to ε.

    Returns:
        The bracket, or None if the computation would leave the range of float64.
    """
    if _too_little_noise(pairs):
        return None
    if len(pairs) > _MAX_KINDS:
        ends = [
            composed(coarsened(pairs, _MAX_KINDS, pessimistic=pessimistic), gauss, target, accuracy)
            for pessimistic in (False, True)
        ]
        note = f"{len(pairs)} kinds of steps merged into at most {_MAX_KINDS}"
        return Bracket(ends[0].lower, ends[1].upper, note) if ends[0] and ends[1] else None
    try:
        with np.errstate(
            over="raise", invalid="raise"
        ):  # where it is meant, it is said to be ignored
            return _worse_direction(pairs, gauss, target, accuracy)
    except FloatingPointError:
        return None


def curve(pairs: Pairs, gauss: float, epsilon: float, accuracy: float) -> Curve | None:
    """Compose as :func:`composed` does for δ at ``epsilon``, and keep the composition.

    Reading δ off it at another ε then costs next to nothing.

    Args:
        pairs: Dominating pairs and how often each is composed.
        gauss: μ² of all full-batch Gaussian steps together.
        epsilon: The ε to compose for.
        accuracy: Width allowed, relative to ε.

    Returns:
        The composition, or None if it would leave the range of float64 or if there are too many
        kinds of steps.
    """
    if _too_little_noise(pairs) or len(pairs) > _MAX_KINDS:
        return None
    run, target = arranged(pairs), DeltaAt(epsilon)
    try:
        with np.errstate(over="raise", invalid="raise"):
            found, bounds, up = one_direction(run, gauss, 1, target, accuracy)
            if bounds is None or found.upper <= 0:
                return None
            if _symmetric(pairs):
                return Curve(bounds, None)
            back = [reversed_direction(block) for block in up]
            ceiling = _ceiling(back, gauss, epsilon, math.log(found.upper), accuracy)
            if ceiling.delta_above(epsilon) <= found.upper:
                return Curve(bounds, ceiling)
            return Curve(bounds, one_direction(run, gauss, -1, target, accuracy, found)[1])
    except FloatingPointError:
        return None


def _too_little_noise(pairs: Pairs) -> bool:
    """Tell whether e^(1/2z²) of some step is no float."""
    return any(
        pair.noise == "gaussian" and pair.noise_multiplier < _LEAST_NOISE for pair, _ in pairs
    )


def _symmetric(pairs: Pairs) -> bool:
    """Tell whether both directions of the run have one profile."""
    return all(pair.symmetric for pair, _ in pairs)


def _worse_direction(pairs: Pairs, gauss: float, target: Target, accuracy: float) -> Bracket:
    """Bound the target in the direction of removing a record, or of adding it if that is worse."""
    run = arranged(pairs)
    result, _, up = one_direction(run, gauss, 1, target, accuracy)
    if _symmetric(pairs) or _no_worse(
        [reversed_direction(block) for block in up], gauss, *target.point(result.upper), accuracy
    ):
        return result
    return one_direction(run, gauss, -1, target, accuracy, result)[0]


def one_direction(
    run: Run,
    gauss: float,
    direction: Direction,
    target: Target,
    accuracy: float,
    other: Bracket = Bracket(0.0, 0.0),  # noqa: B008 - immutable
) -> tuple[Bracket, Bounds | None, list[Block]]:
    """Bound the target in one direction, or in the worse of it and an ``other``.

    Compose, see what the width of the bracket is due to, refine that, and repeat.

    Args:
        run: The steps.
        gauss: μ² of all full-batch Gaussian steps together.
        direction: Whose loss.
        target: ε at a δ, or δ at an ε.
        accuracy: Width allowed, relative to ε.
        other: The bracket of the opposite direction, if it is known.

    Returns:
        The bracket, the last composition, and its steps as discretized from above.
    """
    coarse = _Coarse(run, gauss, direction, target.locate(None))
    coarse = _Coarse(run, gauss, direction, target.locate(coarse), coarse)  # cuts where they matter
    location = target.locate(coarse)
    aim = min(accuracy / 2, max(accuracy / 6, 5e-6)) if run.kinds <= FEW else accuracy
    resolution = Resolution(
        int(_CUTS * math.sqrt(1e-3 / aim)),
        location.epsilon,
        coarse.near(location.ceiling)[0],
        math.inf,
        coarse.log_tail,
        gauss,
    )
    smoothing = (
        aim / 5 * max(location.epsilon, target.least, 0.2 / location.tilt) / (location.tilt + 1)
    )
    best, before, reached = Bracket(0.0, math.inf), math.inf, math.inf
    bounds: Bounds | None = None
    up: list[Block] = []
    for _ in range(_ROUNDS):
        if resolution.cuts > min(_MAX_CUTS, _MAX_CELLS / run.kinds):
            break
        resolution = replace(resolution, top=coarse.top(location.ceiling))
        bounds, up = _bounds(run, gauss, direction, target, location, resolution, smoothing)
        found = target.bracket(bounds, location)
        best = Bracket(
            max(best.lower, found.lower, other.lower),
            max(min(best.upper, found.upper), other.upper),
        )
        width = excess(target, best, location, accuracy)
        if width <= 1 or (width > 0.8 * before and best.upper > 0.95 * reached):
            break
        before, reached = width, best.upper
        location, smoothing, resolution = _finer(
            bounds, found, target, location, width, accuracy, smoothing, resolution
        )
    return Bracket(min(best.lower, best.upper), best.upper), bounds, up


def _no_worse(
    blocks: list[Block], gauss: float, epsilon: float, delta: float, accuracy: float
) -> bool:
    """Tell whether δ(ε) of the steps, from above, is certainly at most ``delta``."""
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
    """Compose steps from above on a line for ε, where log δ is about ``log_delta``."""
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
    """Return the largest tilt at which tilted masses are floats: the moments are, or e^λL is."""
    most = _MAX_EXPONENT / max(top, _LEAST_LOSS)
    usable = found.tilts[found.log_moment < _MAX_EXPONENT]
    return min(max(most, float(usable.max(initial=0.0))), 2 * most)


def infinite(blocks: list[Block]) -> float:
    """Return the mass at ∞ of the composition, to relative precision."""
    return -math.expm1(
        sum(
            float(block.times @ np.log1p(-np.minimum(block.infinite, 1 - 1e-16)))
            for block in blocks
        )
    )


def opposite(blocks: list[Block], gauss: float, margin: float) -> tuple[Moments, float]:
    """Return moments of the opposite direction, split above ``margin``, and its mass at ∞."""
    back = [capped(reversed_direction(block), margin) for block in blocks]
    return moments(back, gauss, tilt_grid(_variance(back, gauss), _RARE)), infinite(back)


def _bounds(
    run: Run,
    gauss: float,
    direction: Direction,
    target: Target,
    location: Location,
    resolution: Resolution,
    smoothing: float,
) -> tuple[Bounds, list[Block]]:
    """Compose on cuts of this resolution; return the bounds, and the steps from above."""
    for _ in range(_GUESSES):
        cuts = choose_cuts(run, direction, resolution)
        up, down = discretized(run, cuts, direction, discretize.above, discretize.below)
        found = moments(up, gauss, tilt_grid(_variance(up, gauss), location.log_delta))
        guess = location
        location, tilt = target.relocate(found, infinite(up), guess)
        if location == guess:
            break
        resolution = replace(resolution, epsilon=location.epsilon, moments=found)
    top = float(cuts[-1] if direction == 1 else -cuts[0])
    spare = log_spare(location.log_delta)
    line = choose_line(
        found,
        tilt,
        _steepest(found, top),
        location.epsilon,
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
    back = opposite(up, gauss, max(top - location.epsilon, 0.0)) if past > math.exp(spare) else None
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
    target: Target,
    location: Location,
    width: float,
    accuracy: float,
    smoothing: float,
    resolution: Resolution,
) -> tuple[Location, float, Resolution]:
    """Attribute the width to smoothing and to discretization, and refine what dominates it."""
    location = moved(target, found, location)._replace(tilt=bounds.above.line.tilt)
    ahead = 1e-3 * max(location.epsilon, 0.1 / location.tilt)
    here, there = (
        math.log(max(bounds.delta_above(epsilon), 1e-300))
        for epsilon in (location.epsilon, location.epsilon + ahead)
    )
    slope = max((here - there) / ahead, 1e-9 * location.tilt)
    smeared = math.exp(min(bounds.below.smoothing_cost(location.epsilon) - here, 5.0))
    smeared = max(smeared / max(target.allowed(location, slope, accuracy), 1e-12), 1e-9)
    smoothing *= min(1.0, max(0.2 / smeared, 0.01))
    factor = (
        min(max(math.sqrt(max(width - smeared, 0.0) / 0.4), 1.0), 4.0)
        if found.upper < math.inf
        else 1.0
    )
    return (
        location,
        smoothing,
        replace(
            resolution,
            cuts=int(resolution.cuts * factor),
            epsilon=location.epsilon,
            moments=bounds.moments,
        ),
    )


def _variance(blocks: list[Block], gauss: float, tilt: float = 1e-9) -> float:
    """Return the variance of the tilted loss, roughly."""
    at: Array = np.array([tilt])
    return float(moments(blocks, gauss, at).variance[0])
