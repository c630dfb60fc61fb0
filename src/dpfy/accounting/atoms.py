"""The privacy loss of one step as atoms that bound its δ from above or from below, rounding errors included.

The real line of outputs is cut into cells, fine where the loss matters. The normal (or Laplace) mass of every cell is
known to float precision; two constructions turn masses into atoms:

*Above*, the mass of a cell goes to the losses of its two ends such that both distributions of the pair keep their mass
(connect-the-dots, Doroshenko et al. 2022, here on unequal cells): the profile becomes a chord of itself in e^ε.

*Below*, a cell becomes one output, which is post-processing, and its loss is rounded towards less.

The proofs, and the error of every formula, are in ``docs/proofs/accounting-pld.md``.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri_exp

from dpfy.accounting.pairs import Pair

Array = NDArray[np.float64]
Direction = Literal[1, -1]
"""Whose loss: of the data with the record against without it (1, removing it), or the reverse (-1, adding it)."""

EPS = 2.0**-52  # twice the unit round-off
_TINY = 1e-290  # masses below it have lost digits
_FLOOR = 0.15  # the share of the cuts that is spread evenly


@dataclass(frozen=True)
class Block:
    """Laws of the loss on common atoms; a step is a fixed linear combination of the rows.

    ``mass[r, j]`` lies at ``loss[j]`` and ``infinite[r]`` at ∞; ``total[r]`` is the exact sum of the row. Of each
    atom, at most ``mass_error`` is wrong, and at most ``shift_error`` is the product of a wrong mass and how far it
    lies from its place.
    """

    loss: Array
    mass: Array
    total: Array
    infinite: Array
    mass_error: Array
    shift_error: Array


@dataclass(frozen=True)
class Cells:
    """Masses of the cells between cuts, of the pair's components and their absolute errors.

    ``still`` is the record's absence, ``drawn`` its presence, ``other`` the other record's presence (or absence).
    """

    still: Array
    drawn: Array
    other: Array
    still_error: Array
    drawn_error: Array
    other_error: Array


def choose_places(pair: Pair, count: int, tilt: float, epsilon: float, direction: Direction, log_tail: float) -> Array:
    """Return places that cut the outputs into cells of about equal influence on δ near ε.

    A cell of mass m and loss width h adds about m·h²·e^{tilt·loss} to the tilted variance, or m·h²·e^{−loss} where one
    loss alone exceeds ε; the cube roots are equidistributed, which minimises their sum. Nothing but the accuracy
    depends on the choice.
    """
    low, high = place_range(pair, log_tail)
    fine: Array = np.linspace(low, high, 4 * count)
    cells, loss = masses(pair, fine), losses(pair, fine)
    heavy = _with_record(pair, cells) if direction == 1 else _without_record(pair, cells)
    middle = direction * (loss[1:] + loss[:-1]) / 2
    with np.errstate(divide="ignore"):
        influence = np.log(heavy[1:-1]) + 2 * np.log(np.diff(loss)) + np.logaddexp(
            0.0, tilt * np.minimum(middle, epsilon)) - np.maximum(middle - epsilon, 0.0)
    weight = np.exp((influence - influence.max()) / 3)
    share = np.concatenate(([0.0], np.cumsum(weight / weight.sum() * (1 - _FLOOR) + _FLOOR / len(weight))))
    places = np.interp(np.linspace(0, share[-1], count), share, fine)
    rising = np.concatenate(([True], np.diff(losses(pair, places)) > 0))
    return places[rising]


def losses(pair: Pair, places: Array) -> Array:
    """The loss at each place, with an error of a few units in the last place of max(|loss|, rate·…)."""
    if pair.noise == "laplace":
        return _amplified(pair.rate, (2 * places - 1) / pair.noise_multiplier)
    if pair.neighbours == "absent":
        return _amplified(pair.rate, places)
    half = 0.5 / pair.noise_multiplier**2
    return _amplified(pair.rate, places - half) - _amplified(pair.rate, -places - half)


def masses(pair: Pair, places: Array) -> Cells:
    """The masses of the cells that the places cut, the two unbounded ones included."""
    z = pair.noise_multiplier
    if pair.noise == "laplace":
        return _laplace_cells(z, places)
    if pair.neighbours == "absent":  # places are log-likelihood ratios u; the output is z²u + ½
        centre = z * places
        still, drawn = _normal_cells(centre + 0.5 / z, 1 / z), _normal_cells(centre - 0.5 / z, 1 / z)
        return Cells(still[0], drawn[0], still[0], still[1], drawn[1], still[1])
    still, drawn, other = (_normal_cells(z * places + shift / z, 1 / z) for shift in (0, -1, 1))
    return Cells(still[0], drawn[0], other[0], still[1], drawn[1], other[1])


def excess_beyond(pair: Pair, place: float, epsilon: float) -> float:
    """P − e^ε·Q of the outputs beyond one place."""
    cells = masses(pair, np.array([place]))
    return float(_gain(pair, cells)[-1]) - math.expm1(epsilon) * float(_without_record(pair, cells)[-1])


def above(pairs: list[Pair], places: Array, direction: Direction) -> Block:
    """Return atoms whose δ is at least that of each pair, one row per pair; the pairs share rate and kind."""
    loss = losses(pairs[0], places)
    rows = [_connected(pair, places, loss) for pair in pairs]
    mass, bottom, top, mass_error, shift_error = (np.array(values) for values in zip(*rows, strict=True))
    mass_error, shift_error = mass_error.max(axis=0), shift_error.max(axis=0)
    if direction == 1:
        return Block(loss, mass, 1 - top, top, mass_error, shift_error)
    back = np.exp(-loss)
    error = (mass_error + 4 * EPS * (1 + np.abs(loss)) * mass.max(axis=0)) * back
    return Block(-loss, mass * back, 1 - bottom, bottom, error, shift_error * back)


def below(pair: Pair, places: Array, direction: Direction, before: Pair | None = None, span: float = 1.0) -> Block:
    """Return atoms whose δ is at most that of the pair.

    With ``before``, a pair of more noise, a second row holds (pair − before)/``span``: the first row plus up to once
    the second are the pairs along the tangent, for which :mod:`dpfy.accounting.mixtures` answers.
    """
    cells = masses(pair, places)
    p, q, gain = _with_record(pair, cells), _without_record(pair, cells), _gain(pair, cells)
    own, own_error = (p, _with_error(pair, cells)) if direction == 1 else (q, _without_error(pair, cells))
    error, gain_error = _without_error(pair, cells), _gain_error(pair, cells)
    slopes = [np.zeros_like(p)] * 3
    if before is not None:
        far = masses(before, places)
        there = _with_record(before, far), _without_record(before, far), _gain(before, far)
        slopes = [(here - other) / span for here, other in zip((p, q, gain), there, strict=True)]
        own_error, error, gain_error = ((1 + 3 / span) * value for value in (own_error, error, gain_error))
    least = np.full_like(p, np.inf)
    kept = own > _TINY
    for part in (0.0, 1.0):  # e^loss is a Möbius function of the part: its extremes are at the ends
        edge = gain + part * slopes[2] - direction * gain_error
        base = q + part * slopes[1]
        kept &= (base > 2 * error) & (base > _TINY)
        base = np.where(kept, base + np.copysign(error, direction * edge), 1.0)
        least = np.minimum(least, direction * edge / base)
    kept &= direction * least > -1
    loss = direction * np.log1p(direction * least[kept])
    loss = loss - 4 * EPS * np.abs(loss)
    rows = np.array([own, slopes[0 if direction == 1 else 1]])[: 2 if before else 1, kept]
    total = np.array([1.0 - float((own + own_error)[~kept].sum()), 0.0])[: len(rows)]
    reach = np.abs(rows).sum(axis=0)
    return Block(loss, rows, total, np.zeros(len(rows)), own_error[kept] + 4 * EPS * reach, np.zeros_like(reach))


def _connected(pair: Pair, places: Array, loss: Array) -> tuple[Array, float, float, Array, Array]:
    """Atoms at the places; what goes to −∞ (of the other distribution) and to ∞; errors of masses and of moves."""
    cells = masses(pair, places)
    p, q = _with_record(pair, cells), _without_record(pair, cells)
    left, right = slice(0, -1), slice(1, None)
    # P − e^l·Q at the left end of a cell, written so that no large parts cancel when the rate is small
    grown = np.exp(loss)
    excess = _gain(pair, cells)[right] - np.expm1(loss) * q[right]
    moved = np.clip(excess[:-1] / -np.expm1(-np.diff(loss)), 0.0, p[1:-1])
    mass = np.append(p[1:-1] - moved, 0.0)
    mass[1:] += moved
    mass[0] += p[0]
    mass[-1] += grown[-1] * q[-1]
    error = _with_error(pair, cells)
    slant = np.abs(np.expm1(loss))
    wrong = _gain_error(pair, cells)[right] + slant * (
        _without_error(pair, cells)[right] + 8 * EPS * (1 + np.abs(loss)) * q[right])
    top = max(0.0, float(excess[-1])) + float(wrong[-1])
    lack = np.expm1(loss[0]) * q[0] - _gain(pair, cells)[0]
    lack_error = _gain_error(pair, cells)[0] + slant[0] * (
        _without_error(pair, cells)[0] + 8 * EPS * (1 + abs(loss[0])) * q[0])
    bottom = (max(0.0, float(lack)) + float(lack_error)) * math.exp(-loss[0])
    mass_error = np.zeros_like(mass)
    mass_error += error[left] + error[right] + 4 * EPS * mass
    shift_error = 8 * EPS * np.abs(loss) * mass
    shift_error[left] += wrong[:-1]
    shift_error[right] += wrong[:-1]
    return mass, bottom, top, mass_error, shift_error


def place_range(pair: Pair, log_tail: float) -> tuple[float, float]:
    """The first and the last place, beyond which no more than e^log_tail of either distribution lies."""
    if pair.noise == "laplace":
        return 0.0, 1.0
    z = pair.noise_multiplier
    reach = -float(ndtri_exp(min(log_tail, -3.0)))
    drawn = -float(ndtri_exp(min(log_tail - math.log(pair.rate), -3.0)))
    if pair.neighbours == "absent":
        return (-reach - 0.5 / z) / z, (max(reach, drawn + 1 / z) - 0.5 / z) / z
    edge = max(reach, drawn + 1 / z) / z
    return -edge, edge


def _amplified(rate: float, ratio: Array) -> Array:
    """log(1 + rate·(e^ratio − 1)), to relative precision also where it is tiny."""
    near = np.log1p(rate * np.expm1(np.minimum(ratio, 30.0))) if rate < 1 else ratio
    far = ratio + math.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.maximum(ratio, 30.0)))
    return np.where(ratio > 30, far, near)


def _gain(pair: Pair, cells: Cells) -> Array:
    """P − Q."""
    return pair.rate * (cells.drawn - cells.other)


def _gain_error(pair: Pair, cells: Cells) -> Array:
    return pair.rate * (cells.drawn_error + cells.other_error) + 4 * EPS * np.abs(_gain(pair, cells))


def _with_record(pair: Pair, cells: Cells) -> Array:
    return (1 - pair.rate) * cells.still + pair.rate * cells.drawn


def _without_record(pair: Pair, cells: Cells) -> Array:
    return cells.still if pair.neighbours == "absent" else (1 - pair.rate) * cells.still + pair.rate * cells.other


def _with_error(pair: Pair, cells: Cells) -> Array:
    return (1 - pair.rate) * cells.still_error + pair.rate * cells.drawn_error


def _without_error(pair: Pair, cells: Cells) -> Array:
    if pair.neighbours == "absent":
        return cells.still_error
    return (1 - pair.rate) * cells.still_error + pair.rate * cells.other_error


def _normal_cells(cuts: Array, scale: float) -> tuple[Array, Array]:
    """Standard normal masses between cuts that carry errors of a few EPS·``scale``, and absolute errors of the masses.

    Each difference is taken on the side where nothing cancels. ``ndtr`` is within (8 + 2t²)·EPS of the truth.
    """
    count = len(cuts)
    tails = np.zeros(count + 2)  # of each cut, on its own side of 0
    tails[1:-1] = ndtr(-np.abs(cuts))
    upper_side = np.zeros(count + 2, dtype=bool)
    upper_side[1:-1], upper_side[-1] = cuts > 0, True
    gap = np.diff(tails)
    crossing = upper_side[1:] & ~upper_side[:-1]
    mass = np.where(upper_side[:-1], -gap, gap)
    mass[crossing] = 1 - tails[1:][crossing] - tails[:-1][crossing]
    error = np.zeros(count + 2)
    squares = cuts**2
    error[1:-1] = EPS * ((8 + 2 * squares) * tails[1:-1] + 2 * (np.abs(cuts) + scale) * np.exp(-squares / 2))
    return mass, error[1:] + error[:-1] + 2 * EPS * mass + 4 * EPS * crossing


def _laplace_cells(scale: float, places: Array) -> Cells:
    """Laplace masses about 0 and 1 between places in [0, 1]; below 0 and above 1 the loss is constant."""
    first, last, widths = places[0], places[-1], np.diff(places)
    still = np.concatenate(([1 - 0.5 * math.exp(-first / scale)],
                            -0.5 * np.exp(-places[:-1] / scale) * np.expm1(-widths / scale),
                            [0.5 * math.exp(-last / scale)]))
    drawn = np.concatenate(([0.5 * math.exp((first - 1) / scale)],
                            -0.5 * np.exp((places[1:] - 1) / scale) * np.expm1(-widths / scale),
                            [1 - 0.5 * math.exp((last - 1) / scale)]))
    errors = [8 * EPS * (1 + 1 / scale) * mass for mass in (still, drawn)]
    return Cells(still, drawn, still, errors[0], errors[1], errors[0])
