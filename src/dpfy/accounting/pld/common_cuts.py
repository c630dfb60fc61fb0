"""Cuts of the loss axis: the same for all steps, chosen for where the answer lies.

Every step keeps its own rate and noise multiplier. What steps share is where the axis of losses is
cut, so that the transforms of ten thousand different steps are one product of matrices.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpfy.accounting.dominating_pairs import Pair, Pairs
from dpfy.accounting.pld import discretize
from dpfy.accounting.pld.discretize import Array, Block, Cells, Direction, StepTable
from dpfy.accounting.pld.fourier import Moments
from dpfy.accounting.special import logsumexp

Builder = Callable[[StepTable, Cells, Array, Array | None, Direction], Block]

DEEPEST = 640.0  # e^loss is a float
FEW = 48  # kinds of steps that are looked at one by one
_FLOOR = 0.15  # the share of the cuts that is spread evenly
_MUCH = 0.05  # of log E e^{λL}: a step of which there are few
_ROUGHLY = 300  # losses by which moments are estimated


@dataclass(frozen=True)
class Resolution:
    """The number of cuts, and where they matter.

    Args:
        cuts: The number of cuts.
        epsilon: The ε near which they matter.
        moments: Moments of the composition, if they are known.
        top: The largest loss that is cut off from others.
        log_tail: Log of the mass that may lie beyond the cuts of one step.
        gauss: μ² of the full-batch steps, which ``moments`` include.
    """

    cuts: int
    epsilon: float
    moments: Moments | None
    top: float
    log_tail: float
    gauss: float = 0.0


class Run(NamedTuple):
    """The steps of a run in blocks of rows, and a few that represent all of them.

    Args:
        parts: All steps.
        few: Representatives of all steps, one table for each kind.
        worst: A pair at least as costly as every step, for each kind.
        kinds: How many different steps there are.
        steps: How many steps there are.
    """

    parts: list[StepTable]
    few: list[StepTable]
    worst: list[Pair]
    kinds: int
    steps: int


def arranged(pairs: Pairs) -> Run:
    """Arrange the steps of a run in blocks, those that damp high frequencies most first.

    Later blocks then need few frequencies, and double in size. If there are only a few kinds of
    steps, each is a block.
    """
    parts: list[tuple[float, int, StepTable]] = []
    few, worst = [], []
    for steps in discretize.rows(pairs):
        mu = (1 if steps.neighbours == "absent" else 2) / steps.noise_multiplier
        damping = (
            steps.times * np.minimum(steps.rate**2 * np.expm1(np.minimum(mu**2, 50.0)), 1.0)[:, 0]
        )
        order = np.argsort(-damping, kind="stable")
        few.append(_sample(steps.part(order), damping[order]))
        worst.append(
            Pair(
                float(steps.rate.max()),
                float(steps.noise_multiplier.min()),
                steps.neighbours,
                steps.noise,
                steps.distribution,
            )
        )
        first, size = 0, 1 if len(pairs) <= FEW else 8
        while first < len(order):
            parts.append(
                (-damping[order[first]], len(parts), steps.part(order[first : first + size]))
            )
            first, size = first + size, 1 if len(pairs) <= FEW else min(2 * size, 256)
    ordered = [steps for _, _, steps in sorted(parts, key=lambda part: part[:2])]
    return Run(ordered, few, worst, len(pairs), sum(times for _, times in pairs))


def _sample(steps: StepTable, damping: Array) -> StepTable:
    """Return rows at equal shares of the total damping, to represent all of them."""
    if len(damping) <= FEW:
        return steps
    total = np.cumsum(damping)
    chosen, counts = np.unique(
        np.searchsorted(total, (np.arange(FEW) + 0.5) / FEW * total[-1]), return_counts=True
    )
    chosen = np.minimum(chosen, len(damping) - 1)
    sample = steps.part(chosen)
    return replace(sample, times=sample.times * counts * (total[-1] / FEW) / damping[chosen])


def choose_cuts(run: Run, direction: Direction, resolution: Resolution) -> Array:
    """Return losses that divide the axis into cells of about equal influence on δ(ε).

    To move a mass m at loss l by h to both sides changes δ(ε) by about m·h²/2 times the density of
    the other steps' loss at ε − l, for which Chernoff's bound stands. The cube roots of the cells'
    influences are equidistributed, which minimises their sum. Nothing but the accuracy depends on
    the choice.

    Raises:
        FloatingPointError: The losses that decide are beyond float64.
    """
    points, ends = _fine_points(run, direction, resolution)
    if len(points) < 2 or not np.isfinite(points).all():
        raise FloatingPointError("the losses that decide are beyond float64")
    mass = np.concatenate([_masses(steps, points, direction) for steps in run.few])
    times = np.concatenate([steps.times for steps in run.few])
    with np.errstate(divide="ignore"):
        influence = 2 * np.log(np.diff(points)) + _felt(
            mass, times, direction * (points[1:] + points[:-1]) / 2, resolution
        )
    weight = np.exp((influence - influence.max()) / 3)
    share = np.concatenate(
        ([0.0], np.cumsum(weight / weight.sum() * (1 - _FLOOR) + _FLOOR / len(weight)))
    )
    return _distinct(
        np.append(np.interp(np.linspace(0, share[-1], resolution.cuts), share, points), ends)
    )


def _masses(steps: StepTable, points: Array, direction: Direction) -> Array:
    """Return the masses of the bounded cells between points."""
    found = discretize.cells(steps, points)
    return (found.p if direction == 1 else found.q)[:, 1:-1]


def _felt(mass: Array, times: Array, loss: Array, resolution: Resolution) -> Array:
    """Return the log of masses times the density of the other steps' loss, summed over the steps.

    For a few steps that decide, "the others" must leave the step itself out: two rare losses must
    not be taken for three.
    """
    moments, left = resolution.moments, resolution.epsilon - loss
    if moments is None:
        felt: Array = np.log(times @ mass)
        return felt

    def others(log_moment: Array) -> Array:
        bound: Array = (log_moment[:, None] - np.outer(moments.tilts, left)).min(axis=0)
        return np.minimum(bound, 0.0) + np.minimum(left, 0.0)

    best = int(np.argmin(moments.log_moment - moments.tilts * resolution.epsilon))
    grown = mass @ np.exp(np.minimum(moments.tilts[best] * loss, 700.0))
    alone = np.log(grown) > max(1.0, _MUCH * moments.log_moment[best])
    felt = np.log(times[~alone] @ mass[~alone]) + others(moments.log_moment)
    if alone.any():
        each = _log_moments(mass, loss, moments.tilts)
        everything = times @ each + resolution.gauss * moments.tilts * (moments.tilts + 1) / 2
        for count, row, own in zip(times[alone], mass[alone], each[alone], strict=True):
            felt = np.logaddexp(felt, np.log(count * row) + others(everything - own))
    return felt


def _log_moments(mass: Array, loss: Array, tilts: Array) -> Array:
    """Return log E e^{λL} of each row, roughly."""
    first = np.arange(0, len(loss), max(1, len(loss) // _ROUGHLY))
    logs, rises = np.log(np.add.reduceat(mass, first, axis=1)), np.outer(loss[first], tilts)
    return np.stack([logsumexp(row[:, None] + rises, axis=0) for row in logs])


def discretized(
    run: Run, cuts: Array, direction: Direction, *builders: Builder
) -> list[list[Block]]:
    """Return all steps of a run as blocks, once for each builder."""
    centre = None
    if run.kinds > FEW:
        centre = discretize.centroid(
            [discretize.cells(steps, cuts) for steps in run.few], cuts, direction
        )
    parts = [discretized_steps(steps, cuts, centre, direction, *builders) for steps in run.parts]
    return [list(blocks) for blocks in zip(*parts, strict=True)]


def discretized_steps(
    steps: StepTable, cuts: Array, centre: Array | None, direction: Direction, *builders: Builder
) -> list[Block]:
    """Return some steps as a block, once for each builder.

    Where both directions have one loss distribution, that of adding a record is computed as that of
    removing it on mirrored cuts. Masses of very negative losses have too few digits left to compute
    the one from the other.
    """
    symmetric = steps.symmetric
    if direction == -1 and symmetric:
        mirrored = discretized_steps(
            steps, -cuts[::-1], None if centre is None else centre[::-1], 1, *builders
        )
        return [block.backwards for block in mirrored]
    found = discretize.cells(steps, cuts)
    return [
        replace(build(steps, found, cuts, centre, direction), symmetric=symmetric)
        for build in builders
    ]


def _fine_points(run: Run, direction: Direction, resolution: Resolution) -> tuple[Array, Array]:
    """Return many losses to choose from, and those where single outputs have mass or losses end."""
    looked_at = [pair for steps in run.few for pair in steps.pairs()] + run.worst
    count = max(4 * resolution.cuts // len(looked_at), 64)
    points, ends = [], []
    for pair in looked_at:
        loss = discretize.losses(
            pair, np.linspace(*discretize.place_range(pair, resolution.log_tail), count)
        )
        points.append(loss)
        ends.extend(discretize.ends(pair))
    low, high = (-DEEPEST, resolution.top) if direction == 1 else (-resolution.top, DEEPEST)
    special = np.array([end for end in ends if low < end < high])
    return _distinct(np.clip(np.concatenate([*points, special]), low, high)), special


def _distinct(values: Array) -> Array:
    """Return the values in order, without those too close to the one before."""
    values = np.unique(values)
    apart = np.concatenate(
        ([True], np.diff(values) > 1e-14 * np.maximum(np.abs(values[1:]), 1e-3 * np.ptp(values)))
    )
    return values[apart]
