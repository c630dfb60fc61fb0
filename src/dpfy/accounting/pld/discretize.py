"""Discretization: finitely many losses that bound the δ of a step from above or from below.

The axis of losses is cut into cells, fine where losses matter, the same for all steps. The masses
of every cell under both distributions of a step are known to float precision. Two constructions
turn them into masses at single losses:

*Above*, the mass of a cell goes to the losses of its two ends such that both distributions of the
pair keep their mass (connect-the-dots, Doroshenko et al. 2022, here on unequal cells): the profile
becomes a chord of itself in e^ε.

*Below*, a cell becomes one output, which is post-processing, and its loss is rounded down.

In both, what lies beyond the last cut is split between that cut and ∞, which changes no profile
before the cut. So the cuts need not reach losses of which one alone exceeds any ε of interest. The
bounds include rounding errors. The proofs, and the error of every formula, are in
``docs/proofs/accounting-pld.md``.

Tests: tests/accounting/pld/test_common_cuts.py.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfy.accounting.dominating_pairs import Neighbours, Noise, Pair, Pairs
from dpfy.accounting.loss_distributions import LossDistribution
from dpfy.accounting.special import erf, erfc, erfcx, ndtri_exp

Array = NDArray[np.float64]
Direction = Literal[1, -1]
"""Whose loss: 1 for removing the record (with it against without it), −1 for adding it."""

EPS = 2.0**-52  # twice the unit round-off
_TINY = 1e-290  # masses below it have lost digits
_NUDGE = 1e-13  # relative: from a loss with mass to a cut that is certainly on its far side
_FAR = 1e3  # standard deviations, beyond which float64 has no masses
# standard deviations, beyond which a tail is computed together with the factor that lifts it
_DEEP = 30.0


@dataclass(frozen=True)
class StepTable:
    """Pairs of one kind, one in each row, and how often each occurs.

    Args:
        rate: Sampling rates, as a column.
        noise_multiplier: Noise multipliers, as a column.
        times: How often each pair occurs.
        neighbours: What neighbours differ in, for all rows.
        noise: The noise of all rows.
        distribution: The loss distribution of all rows on the full batch, if the noise is "other".
    """

    rate: Array
    noise_multiplier: Array
    times: Array
    neighbours: Neighbours
    noise: Noise
    distribution: LossDistribution | None = None

    @property
    def symmetric(self) -> bool:
        """Whether both directions of every row have one loss distribution."""
        alike = self.noise == "laplace" or (
            self.distribution is not None and self.distribution.symmetric
        )
        return self.neighbours != "absent" or (alike and bool((self.rate == 1).all()))

    def part(self, chosen: NDArray[np.int64]) -> "StepTable":
        """Return some of the rows."""
        return replace(
            self,
            rate=self.rate[chosen],
            noise_multiplier=self.noise_multiplier[chosen],
            times=self.times[chosen],
        )

    def pairs(self) -> list[Pair]:
        """Return the pair of each row."""
        return [
            Pair(
                float(rate), float(noise_multiplier), self.neighbours, self.noise, self.distribution
            )
            for rate, noise_multiplier in zip(
                self.rate[:, 0], self.noise_multiplier[:, 0], strict=True
            )
        ]


@dataclass(frozen=True)
class Block:
    """Discretized loss distributions, one row for each kind of step.

    Args:
        times: How often each row occurs.
        loss: The losses at which rows have mass.
        offset: What each row adds to these losses; None if nothing.
        mass: ``mass[i, j]`` lies at ``loss[j]``, or at ``loss[j] + offset[i, j]``.
        total: The exact sum of the finite masses of a row.
        infinite: The mass of a row at ∞, rounded to the safe side.
        beyond: A mass of the other distribution. Above: where the row has none. Below: past the
            last cut, times e^cut.
        past: The mass of the row past the last cut.
        mass_error: Bound on the error of each mass.
        shift_error: Bound on the product of a misplaced mass and the distance it is off.
        symmetric: Whether the opposite direction has the same loss distribution.
    """

    times: Array
    loss: Array
    offset: Array | None
    mass: Array
    total: Array
    infinite: Array
    beyond: Array
    past: Array
    mass_error: Array
    shift_error: Array | None = None
    symmetric: bool = False

    @property
    def backwards(self) -> "Block":
        """The same masses, the last one first."""

        def turned(part: Array | None) -> Array | None:
            return None if part is None else part[..., ::-1]

        return replace(
            self,
            loss=self.loss[::-1],
            offset=turned(self.offset),
            mass=self.mass[:, ::-1],
            mass_error=self.mass_error[:, ::-1],
            shift_error=turned(self.shift_error),
        )


class Cells(NamedTuple):
    """Masses of cells with the record (p) and without it (q), and their absolute errors.

    q of large losses may be below all floats, so it is kept as a multiple of the order of p.

    Args:
        p: Masses with the record.
        lifted: q·e^``lift``.
        gain: p − q, to relative precision.
        p_error: Bound on the error of ``p``.
        lifted_error: Bound on the error of ``lifted``.
        gain_error: Bound on the error of ``gain``.
        lift: The loss at the left end of the cell, or 0 if that is negative.
    """

    p: Array
    lifted: Array
    gain: Array
    p_error: Array
    lifted_error: Array
    gain_error: Array
    lift: Array

    @property
    def q(self) -> Array:
        """Masses without the record."""
        return self.lifted * np.exp(-self.lift)

    @property
    def q_error(self) -> Array:
        """Bound on the error of ``q``."""
        return (self.lifted_error + 2 * EPS * self.lifted) * np.exp(-self.lift)


def rows(pairs: Pairs) -> list[StepTable]:
    """Return the pairs as tables, one for each kind."""
    result = []
    for kind in sorted({(pair.neighbours, pair.noise, pair.distribution) for pair, _ in pairs}):
        table = np.array(
            [
                (pair.rate, pair.noise_multiplier, times)
                for pair, times in pairs
                if (pair.neighbours, pair.noise, pair.distribution) == kind
            ],
            dtype=np.float64,
        )
        result.append(StepTable(table[:, :1], table[:, 1:2], table[:, 2], *kind))
    return result


def losses(pair: Pair, places: Array) -> Array:
    """Return the loss at each place.

    A place is the log-likelihood ratio on the full batch; x/z² if a record is replaced; an output
    in [0, 1] if the noise is Laplace. For an exchanged record, places and losses have the same
    sign.
    """
    if pair.noise == "laplace":
        return _amplified(pair.rate, (2 * places - 1) / pair.noise_multiplier)
    if pair.neighbours == "absent":
        return _amplified(pair.rate, places)
    if pair.neighbours == "exchanged":
        return np.copysign(_amplified(pair.rate, np.abs(places)), places)
    half = 0.5 / pair.noise_multiplier**2
    return _amplified(pair.rate, places - half) - _amplified(pair.rate, -places - half)


def place_range(pair: Pair, log_tail: float) -> tuple[float, float]:
    """Return the places beyond which at most e^log_tail of either distribution lies."""
    if pair.distribution is not None:
        return pair.distribution.span(log_tail)
    if pair.noise == "laplace":
        return 0.0, 1.0
    z = 1 / pair.mu if pair.neighbours == "exchanged" else pair.noise_multiplier
    reach = -float(ndtri_exp(min(log_tail, -3.0)))
    drawn = -float(ndtri_exp(min(log_tail - math.log(pair.rate), -3.0)))
    if pair.neighbours == "absent":
        return (-reach - 0.5 / z) / z, (max(reach, drawn + 1 / z) - 0.5 / z) / z
    edge = (max(reach, drawn + 1 / z) - (0.5 / z if pair.neighbours == "exchanged" else 0.0)) / z
    return -edge, edge


def ends(pair: Pair) -> list[float]:
    """Return the losses at which single outputs have mass, from both sides, or where losses end."""
    if pair.distribution is not None:
        return [
            loss * (1 + nudge)
            for loss in _amplified(pair.rate, pair.distribution.atoms()).tolist()
            for nudge in (-_NUDGE, _NUDGE)
        ]
    if pair.noise == "laplace":
        first, last = losses(pair, np.array(place_range(pair, 0.0))).tolist()
        return [first * (1 + _NUDGE), first, last, last * (1 + _NUDGE)]
    if pair.neighbours == "exchanged":
        return [0.0]
    return (
        [math.log1p(-pair.rate) * (1 + _NUDGE)]
        if pair.neighbours == "absent" and pair.rate < 1
        else []
    )


def cells(steps: StepTable, cuts: Array) -> Cells:
    """Return the masses of the cells between cuts, the two unbounded ones included, for every row.

    The loss grows with the output, so each cut is one place, by a closed form of the inverse. Its
    rounding error is that of a loss off by a few units in the last place, plus an error of the
    place itself, which ``_normal`` charges.
    """
    if steps.distribution is not None:
        return _of_distribution(steps.distribution, steps.rate, cuts)
    if steps.neighbours == "exchanged":
        return _mirrored(
            replace(steps, noise_multiplier=steps.noise_multiplier / 2, neighbours="absent"), cuts
        )
    rate, z, lift = steps.rate, steps.noise_multiplier, np.maximum(cuts, 0.0)
    if steps.noise == "laplace":
        place = (_full_batch(rate, cuts) * z + 1) / 2
        still, drawn = _laplace(place, z, 0, lift), _laplace(place, z, 1)
        other = still
    elif steps.neighbours == "absent":
        centre = np.clip(_full_batch(rate, cuts) * z, -_FAR, _FAR)
        still, drawn = _normal(centre + 0.5 / z, z, 2.0, lift), _normal(centre - 0.5 / z, z, 2.0)
        other = still
    else:
        lever, wobble = (1 - rate) / rate * np.exp(0.5 / z**2), 12 + z**-2.0
        centre = np.clip((cuts / 2 + np.arcsinh(lever * np.sinh(cuts / 2))) * z, -_FAR, _FAR)
        still, other = (_normal(centre + shift / z, z, wobble, lift) for shift in (0, 1))
        drawn = _normal(centre - 1 / z, z, wobble)
    lift = np.append(0.0, lift)
    lowered = np.exp(-lift)
    gain = rate * (drawn[0] - other[0] * lowered)
    gain_error = rate * (drawn[1] + other[1] * lowered) + 4 * EPS * np.abs(gain)
    p, p_error = ((1 - rate) * (a * lowered) + rate * b for a, b in zip(still, drawn, strict=True))
    if steps.neighbours == "absent":
        return Cells(p, still[0], gain, p_error, still[1], gain_error, lift)
    return Cells(
        p,
        (1 - rate) * still[0] + rate * other[0],
        gain,
        p_error,
        (1 - rate) * still[1] + rate * other[1],
        gain_error,
        lift,
    )


def _of_distribution(distribution: LossDistribution, rate: Array, cuts: Array) -> Cells:
    """Return the cells of a loss distribution after sampling.

    p and q of a cell are of the same outputs, wherever rounding puts its ends.
    """
    p, q, gain = (
        np.stack(parts)
        for parts in zip(*map(distribution.masses, _full_batch(rate, cuts)), strict=True)
    )
    p, gain, error = (1 - rate) * q + rate * p, rate * gain, 64 * EPS
    lift = np.append(0.0, np.maximum(cuts, 0.0))
    lifted = np.where(q > _TINY, q, 0.0) * np.exp(lift)
    return Cells(p, lifted, gain, error * p, error * lifted, error * np.abs(gain), lift)


def _mirrored(steps: StepTable, cuts: Array) -> Cells:
    """Return the cells of an exchanged record.

    Its positive losses are those of ``steps``, its negative ones the same with p and q exchanged.
    The rest has the loss 0: (1 − rate)·(1 − 2Φ(−1/2z)), since the loss of ``steps`` is 0 halfway to
    the mean.
    """
    first = int(np.searchsorted(cuts, 0.0))
    ahead = cells(steps, np.append(0.0, cuts[first:]))
    behind = cells(steps, np.append(0.0, -cuts[:first][::-1]))
    atom = (1 - steps.rate) * erf(math.sqrt(0.125) / steps.noise_multiplier)

    def joined(left: Array, right: Array, middle: Array | float) -> Array:
        return np.concatenate(
            (left[:, :1:-1], left[:, 1:2] + middle + right[:, 1:2], right[:, 2:]), axis=1
        )

    return Cells(
        joined(behind.q, ahead.p, atom),
        joined(behind.p, ahead.lifted, atom),
        joined(-behind.gain, ahead.gain, 0.0),
        joined(behind.q_error, ahead.p_error, 8 * EPS * atom),
        joined(behind.p_error, ahead.lifted_error, 8 * EPS * atom),
        joined(behind.gain_error, ahead.gain_error, 0.0),
        np.append(0.0, np.maximum(cuts, 0.0)),
    )


def excess_beyond(pair: Pair, epsilon: float) -> float:
    """Return δ(ε) of removing a record in one step: P − e^ε·Q of outputs with a loss above ε."""
    found = cells(rows(((pair, 1),))[0], np.array([epsilon]))
    return float(found.gain[0, -1] - _rise(epsilon) * found.lifted[0, -1])


def excess_before(pair: Pair, epsilon: float) -> float:
    """Return δ(ε) of adding a record in one step: Q − e^ε·P of outputs with a loss below −ε."""
    found = cells(rows(((pair, 1),))[0], np.array([-epsilon]))
    return float(-math.exp(epsilon) * found.gain[0, 0] - math.expm1(epsilon) * found.q[0, 0])


def above(
    steps: StepTable, found: Cells, cuts: Array, centre: Array | None, direction: Direction
) -> Block:
    """Discretize each row from above: its δ becomes no smaller at any ε.

    Masses are moved to the cuts, so ``centre`` is not needed.
    """
    p, q = found.p, found.lifted
    # P − e^l·Q at the left end of a cell, written so that no large parts cancel when the rate is
    # small
    rise = _rise(cuts)
    excess = found.gain[:, 1:] - rise * q[:, 1:]
    moved = np.clip(excess[:, :-1] / -np.expm1(-np.diff(cuts)), 0.0, p[:, 1:-1])
    mass = np.zeros_like(excess)
    mass[:, :-1] = p[:, 1:-1] - moved
    mass[:, 1:] += moved
    mass[:, 0] += p[:, 0]
    wrong = found.gain_error[:, 1:] + np.abs(rise) * (
        found.lifted_error[:, 1:] + (8 * EPS * (1 + np.abs(cuts))) * q[:, 1:]
    )
    mass[:, -1] += math.exp(min(cuts[-1], 0.0)) * q[:, -1]
    top = np.maximum(excess[:, -1], 0.0) + wrong[:, -1]
    _, lack, lack_error, _ = _last_cell(found, cuts, -1)
    bottom = np.maximum(lack, 0.0) + lack_error
    mass_error = found.p_error[:, :-1] + found.p_error[:, 1:] + 4 * EPS * mass
    mass_error[:, -1] += 2 * wrong[:, -1] + found.lifted_error[:, -1]
    mass_error[:, 0] += 2 * lack_error * math.exp(cuts[0])
    shift_error = (8 * EPS * np.abs(cuts)) * mass
    shift_error[:, :-1] += wrong[:, :-1]
    shift_error[:, 1:] += wrong[:, :-1]
    if direction == 1:
        return Block(
            steps.times, cuts, None, mass, 1 - top, top, bottom, top, mass_error, shift_error
        )
    back = np.exp(-cuts)
    mass_error = (mass_error + (4 * EPS * (1 + np.abs(cuts))) * mass) * back
    return Block(
        steps.times,
        -cuts,
        None,
        mass * back,
        1 - bottom,
        bottom,
        top,
        bottom,
        mass_error,
        shift_error * back,
    )


def centroid(found: list[Cells], cuts: Array, direction: Direction) -> Array:
    """Return one loss for each cell, near those of its rows."""
    gain, q = (
        np.sum([part.sum(axis=0) for part in parts], axis=0)
        for parts in ([cell.gain for cell in found], [cell.lifted for cell in found])
    )
    ratio = np.where(q > _TINY, np.maximum(gain / np.maximum(q, _TINY), -1 + EPS), 1.0)
    near: Array = direction * _log_ratio(ratio[None], found[0].lift)[0]
    edge = -1 if direction == 1 else 0
    near[edge] = direction * cuts[edge]
    return near


def below(
    steps: StepTable, found: Cells, cuts: Array, centre: Array | None, direction: Direction
) -> Block:
    """Discretize each row from below: its δ becomes no larger but for what ``beyond`` may add."""
    own, own_error = (found.p, found.p_error) if direction == 1 else (found.q, found.q_error)
    q, q_error = found.lifted, found.lifted_error
    kept = (own > _TINY) & (q > 2 * q_error) & (q > _TINY)
    gain = found.gain - direction * found.gain_error
    base = np.where(kept, q + np.copysign(q_error, direction * gain), 1.0)
    ratio = gain / base
    kept &= ratio > -np.exp(-found.lift)
    loss = np.where(kept, direction * _log_ratio(np.where(kept, ratio, 1.0), found.lift), 0.0)
    loss -= 4 * EPS * np.abs(loss)
    mass = np.where(kept, own, 0.0)
    error = np.where(kept, own_error + 4 * EPS * own, 0.0)
    dropped = np.where(kept, 0.0, own + own_error)
    last, excess, wrong, other = _last_cell(found, cuts, direction)
    edge = -1 if direction == 1 else 0
    loss[:, edge], mass[:, edge], dropped[:, edge] = last, other, 0.0
    blur = q_error[:, -1] if direction == 1 else math.exp(last) * found.p_error[:, 0]
    error[:, edge] = 2 * wrong + blur + 4 * EPS * (1 + abs(last)) * other
    offset = (
        np.where(mass > 0, loss - (centre + 2 * EPS * np.abs(centre)), 0.0)
        if centre is not None
        else None
    )
    total = 1 - dropped.sum(axis=1) - np.maximum(excess, 0.0) - wrong
    return Block(
        steps.times,
        loss[0] if centre is None else centre,
        offset,
        mass,
        total,
        np.maximum(excess - wrong, 0.0),
        other + blur,
        (own + own_error)[:, edge],
        error,
    )


def _last_cell(
    found: Cells, cuts: Array, direction: Direction
) -> tuple[float, Array, Array, Array]:
    """Return the last cut as a loss, and the split of the mass beyond it.

    The mass is split into what exceeds e^cut times the other distribution's mass there, the error
    of that, and e^cut times the other mass.
    """
    edge = -1 if direction == 1 else 0
    rise = float(_rise(cuts[-1])) if direction == 1 else math.expm1(cuts[0])
    q, gain = found.lifted[:, edge], found.gain[:, edge]
    excess = direction * (gain - rise * q)
    wrong = found.gain_error[:, edge] + abs(rise) * (
        found.lifted_error[:, edge] + 8 * EPS * (1 + abs(cuts[edge])) * q
    )
    if direction == 1:
        return float(cuts[-1]), excess, wrong, math.exp(min(cuts[-1], 0.0)) * q
    back = math.exp(-cuts[0])
    return -float(cuts[0]), excess * back, wrong * back, back * found.p[:, 0]


def _rise(loss: Array | float) -> Array:
    """Return e^loss − 1, divided by e^loss if that is above 1: the factor of a lifted mass."""
    rise: Array = np.copysign(np.expm1(-np.abs(loss)), loss)
    return rise


def _log_ratio(ratio: Array, lift: Array) -> Array:
    """Return log(1 + ratio·e^lift) to relative precision; lifts must rise."""
    first = int(np.searchsorted(lift, 1.0))
    near = np.log1p(ratio[:, :first] * np.exp(lift[:first]))
    return np.concatenate(
        (near, lift[first:] + np.log(ratio[:, first:] + np.exp(-lift[first:]))), axis=1
    )


def _amplified(rate: float, ratio: Array) -> Array:
    """Return log(1 + rate·(e^ratio − 1)), to relative precision also where it is tiny."""
    near = np.log1p(rate * np.expm1(np.minimum(ratio, 30.0))) if rate < 1 else ratio
    far = ratio + math.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.maximum(ratio, 30.0)))
    return np.where(ratio > 30, far, near)


def _full_batch(rate: Array, loss: Array) -> Array:
    """Return the full-batch log-likelihood ratio with this loss after sampling, or −∞."""
    low = loss < -0.7  # there, rate > ½, and e^loss − (1 − rate) is the difference of two floats
    with np.errstate(divide="ignore"):
        inner = np.log1p(np.maximum(np.expm1(loss[~low]) / rate, -1.0))
        outer = np.log(np.maximum(np.exp(loss[low]) - (1 - rate), 0.0) / rate)
    ratio: Array = np.concatenate((outer, inner), axis=1)  # losses rise
    return ratio


def _normal(
    cuts: Array, z: Array, wobble: Array | float, lift: Array | None = None
) -> tuple[Array, Array]:
    """Return standard normal masses between cuts, and their errors.

    A cut at t is off by at most ``wobble``·EPS·(|t| + 1/z).
    ½·erfc is within (8 + 2t²)·EPS of the truth; the density at t is at most (1 + |t|) times the
    tail (Birnbaum 1942).
    """
    size = np.abs(cuts)
    tails = erfc(size * math.sqrt(0.5))
    tails *= 0.5
    if lift is not None:
        tails *= np.exp(
            np.minimum(lift, _DEEP**2 / 2)
        )  # a cut of a larger loss lies deeper, at √(2·loss) or beyond
        deep = size > _DEEP
        if deep.any():
            t = size[deep]
            tails[deep] = (
                0.5
                * erfcx(t * math.sqrt(0.5))
                * np.exp(np.broadcast_to(lift, size.shape)[deep] - t**2 / 2)
            )
    error = size * (
        2 + wobble
    )  # EPS·tails·(12 + wobble/z + size·(wobble·(1 + 1/z) + size·(2 + wobble))), in place
    error += wobble * (1 + 1 / z)
    error *= size
    error += 12 + wobble / z
    error *= tails
    error *= EPS
    return _between(tails, cuts > 0, error, lift)


def _laplace(
    places: Array, scale: Array, centre: int, lift: Array | None = None
) -> tuple[Array, Array]:
    """Return Laplace masses between places, and their errors.

    Below 0 and above 1 the loss is constant, so no cut divides these outputs.
    """
    inside = (places > 0) & (places < 1)
    fall = -np.abs(np.where(inside, places, 0.5) - centre) / scale
    tails = np.where(
        inside, np.exp(np.minimum(fall if lift is None else fall + lift, 0.0)) / 2, 0.0
    )
    return _between(
        tails, places >= 1 if centre else places > 0, (EPS * (12 + 4 / scale)) * tails, lift
    )


def _between(
    tails: Array, upper: NDArray[np.bool_], error: Array, lift: Array | None
) -> tuple[Array, Array]:
    """Return masses from tails, each taken on the upper or on the lower side: nothing cancels.

    Tails that are lifted, each by its cut, become masses that are lifted by the left ends of their
    cells.
    """
    right, wrong_right = (
        (tails, error)
        if lift is None
        else (part * np.exp(-np.diff(lift, prepend=0.0)) for part in (tails, error))
    )
    mass, wrong = (np.zeros((len(tails), tails.shape[1] + 1)) for _ in range(2))
    mass[:, :-1], wrong[:, :-1] = right, wrong_right
    mass[:, 1:] -= tails
    wrong[:, 1:] += error
    np.negative(mass[:, 1:], out=mass[:, 1:], where=upper)
    each, crossing = (
        np.arange(len(tails)),
        (~upper).sum(axis=1),
    )  # the cell whose two ends are on different sides
    last = tails.shape[1] - 1
    above = np.where(crossing > last, 0.0, right[each, np.minimum(crossing, last)])
    mass[each, crossing] = 1 - above - np.where(crossing == 0, 0.0, tails[each, crossing - 1])
    wrong += 2 * EPS * mass
    wrong[each, crossing] += 4 * EPS
    return mass, wrong
