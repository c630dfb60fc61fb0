"""Strategies for correlated noise, optimised for the sums that an optimizer takes.

A strategy C makes the noise of later steps cancel part of that of earlier ones. Better cancellation
needs columns of more rows, which raises the sensitivity: what is minimised is the squared error of
A·C⁻¹ times the squared sensitivity. Accountants compute the sensitivity of the result by
themselves, so nothing here can make a claim too small.
"""

import math
from collections.abc import Callable

import numpy as np

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.streams import Buffered, Toeplitz, Tree
from dpfy.mechanisms.solvers import fftconvolve, lfilter, minimize, nnls
from dpfy.mechanisms.workloads import OBJECTIVES, Array, Objective, Workload, rational

_SLOWEST = 1 - 1e-4  # of a buffer's decay: what arithmetic with clamped buffers is derived for
_MAX_BUFFERS = 8
_RANGES = (1.0, 0.3, 0.1)  # the longest memory of the starts of a search, in steps of the workload
_OPTIONS = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-12, "gtol": 1e-8}


def independent() -> Toeplitz:
    """Return the strategy of independent noise, which is that of DP-SGD.

    Returns:
        The identity.

    >>> independent().coefficients
    (1.0,)
    """
    return Toeplitz((1.0,))


def tree(restart: int = 0) -> Tree:
    """Return binary trees over the steps, for comparison: buffers are better and cost less.

    Args:
        restart: the number of steps after which a new tree begins; 0, the default, means never.

    Returns:
        The strategy.

    Raises:
        InvalidArgument: if ``restart`` is negative.

    Reference: Kairouz et al. 2021 (DP-FTRL); Dwork et al. 2010; Chan, Shi & Song 2011.
    """
    return Tree(restart)


def square_root(workload: Workload, bands: int | None = None) -> Toeplitz:
    """Return the square root of the workload, which needs no optimisation.

    Args:
        workload: the sums that the optimizer takes; its learning rates are not looked at.
        bands: the number of coefficients to keep; None, the default, for all.

    Returns:
        The strategy.

    Raises:
        InvalidArgument: if ``bands`` is no number of at least 1.

    Reference: Fichtenberger, Henzinger & Upadhyay 2023; Kalinin & Lampert 2024.

    >>> square_root(Workload(4)).coefficients
    (1.0, 0.5, 0.375, 0.3125)
    """
    count = (
        workload.steps if bands is None else min(_validate.count("bands", bands), workload.steps)
    )
    return Toeplitz(tuple(map(float, _root(workload, count))))


def banded(
    workload: Workload,
    bands: int,
    participations: int = 1,
    separation: int = 1,
    objective: Objective = "mean",
) -> Toeplitz:
    """Return the best Toeplitz strategy with a band, for records that take part as stated.

    Args:
        workload: the sums that the optimizer takes.
        bands: the number of coefficients, at most the number of steps.
        participations: the largest number of steps in which one record takes part.
        separation: the smallest distance between two steps of one record.
        objective: which error to minimise: "mean" (the default), "last" or "max" of all steps.

    Returns:
        The strategy, with a diagonal of 1 and coefficients that are not negative.

    Raises:
        InvalidArgument: if an argument is out of its range.

    Reference: Choquette-Choo et al. 2023 (BandMF); McKenna 2024 (banded Toeplitz strategies).

    >>> banded(Workload(100), bands=1).coefficients
    (1.0,)
    """
    _validate.choice("objective", objective, OBJECTIVES)
    bands = min(_validate.count("bands", bands), workload.steps)
    loss = _loss(workload, participations, separation, objective)

    def of_tail(tail: Array) -> tuple[float, Array]:
        column = np.concatenate(([1.0], tail))
        value, gradient = loss(np.ones(1), column, column)
        return value, gradient[1:]

    if bands == 1:
        return independent()
    start = _root(workload, bands)[1:]
    found = minimize(
        of_tail,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * len(start),
        options={**_OPTIONS, "maxcor": 30},
    )
    return Toeplitz((1.0, *_falling(found.x, bands > separation and participations > 1)))


def blt(
    workload: Workload,
    buffers: int = 4,
    participations: int = 1,
    separation: int = 1,
    objective: Objective = "mean",
) -> Buffered:
    """Return a buffered linear Toeplitz strategy, the best of several searches.

    Args:
        workload: the sums that the optimizer takes.
        buffers: the number of buffers, from 1 to 8; 4 by default.
        participations: the largest number of steps in which one record takes part.
        separation: the smallest distance between two steps of one record.
        objective: which error to minimise: "mean" (the default), "last" or "max" of all steps.

    Returns:
        The strategy, whose coefficients fall and are not negative.

    Raises:
        InvalidArgument: if an argument is out of its range.

    Reference: Dvijotham et al. 2024; McMahan, Xu & Zhang 2024 (multiple participations).

    >>> len(blt(Workload(50), buffers=2).decays)
    2
    """
    _validate.choice("objective", objective, OBJECTIVES)
    if _validate.count("buffers", buffers) > _MAX_BUFFERS:
        raise InvalidArgument(
            f"Expected buffers={buffers!r} to be at most {_MAX_BUFFERS}; more hardly help."
        )
    loss, steps = _loss(workload, participations, separation, objective), workload.steps
    if steps == 1:
        return Buffered((0.0,) * buffers, (0.0,) * buffers)
    powers = np.arange(1, steps - 1)

    def of_free(free: Array) -> tuple[float, Array]:
        decays, scales = _bounded(free)
        decayed = np.cumprod(np.vstack((np.ones(buffers), np.tile(decays, (steps - 2, 1)))), axis=0)
        column = np.concatenate(([1.0], decayed @ scales))
        below, above = rational(decays, scales)
        value, gradient = loss(below, above, column)
        slope = (gradient[2:] * powers) @ decayed[:-1]
        by_decay = scales * slope * decays * (1 - decays / _SLOWEST)
        by_scale = scales * (gradient[1:] @ decayed)
        return value, np.concatenate((by_decay, by_scale - scales * by_scale.sum()))

    searches = [
        minimize(of_free, start, jac=True, method="L-BFGS-B", options=_OPTIONS)
        for start in _starts(workload, buffers)
    ]
    decays, scales = _bounded(min(searches, key=lambda search: float(search.fun)).x)
    order = np.argsort(-decays)
    shrunk = scales[order] * (1 - 1e-12)  # they must not add up to more than 1 when rounded
    return Buffered(tuple(map(float, decays[order])), tuple(map(float, shrunk)))


def _loss(
    workload: Workload, participations: int, separation: int, objective: Objective
) -> Callable[[Array, Array, Array], tuple[float, Array]]:
    """Return the logarithm of squared error times squared sensitivity, with its gradient.

    The function takes Q and P with C = P/Q, and the column of C, by which it differentiates. As d =
    a/c, moving c by δ moves d by −(δ*d)/c: the gradient is the error's, filtered backwards by 1/c
    and correlated with d.
    """
    _validate.count("separation", separation)
    steps = workload.steps
    most = min(_validate.count("participations", participations), -(-steps // separation))
    series, error_of = workload.error(objective)

    def loss(below: Array, above: Array, column: Array) -> tuple[float, Array]:
        filtered = lfilter(below, above, series)
        error, by_series = error_of(filtered)
        back = lfilter(below, above, by_series[::-1])[::-1]
        by_column = -fftconvolve(back, filtered[::-1])[steps - 1 : steps - 1 + len(column)]
        square, by_square = _square(column, steps, most, separation)
        return math.log(error) + math.log(square), by_column / error + by_square / square

    return loss


def _square(column: Array, steps: int, most: int, separation: int) -> tuple[float, Array]:
    """Return the squared sensitivity of the earliest pattern, and its gradient.

    It is the worst pattern for columns that fall, or end before the next participation
    (docs/proofs/streams.md, Lemma 1).
    """
    total, gradient = np.zeros(steps), np.zeros(len(column))
    places = range(0, most * separation, separation)
    for place in places:
        reach = min(len(column), steps - place)
        total[place : place + reach] += column[:reach]
    for place in places:
        reach = min(len(column), steps - place)
        gradient[:reach] += 2 * total[place : place + reach]
    return float(total @ total), gradient


def _root(workload: Workload, count: int) -> Array:
    """Return the first coefficients of ((1 − β·x)(1 − γ·x))^(−½), whose square is the workload."""
    powers = np.arange(1, count)
    series = np.cumprod(np.concatenate(([1.0], (2 * powers - 1) / (2 * powers))))
    places = np.arange(count)
    kept = series * (1 - workload.decay) ** places
    if not workload.momentum:
        return kept
    root: Array = np.convolve(kept, series * workload.momentum**places)[:count]
    return root


def _falling(tail: Array, needed: bool) -> tuple[float, ...]:
    """Return coefficients, made to fall where only then the earliest pattern is the worst."""
    return tuple(map(float, np.minimum.accumulate(np.minimum(tail, 1.0)) if needed else tail))


def _bounded(free: Array) -> tuple[Array, Array]:
    """Return decays below the slowest and scales of less than 1 together, from free numbers."""
    decays, scales = np.split(free, 2)
    weights = np.exp(np.clip(scales, -60.0, 60.0))
    return _SLOWEST / (1 + np.exp(-np.clip(decays, -60.0, 60.0))), weights / (1 + weights.sum())


def _starts(workload: Workload, buffers: int) -> list[Array]:
    """Return mixtures of decays that resemble the square root of the workload.

    Searches from one start get stuck where a buffer is of no use.
    """
    length = min(workload.steps, 2000)
    root = _root(workload, max(length, 2))[1:]
    places = np.arange(len(root))[:, None]
    starts = []
    for memory in _RANGES:
        memories = np.geomspace(1.5, max(3.0, memory * workload.steps), buffers)
        decays = np.minimum(np.exp(-1 / memories), _SLOWEST * (1 - 1e-3))
        scales = np.maximum(nnls(decays**places, root)[0], 1e-3)
        scales *= min(1.0, 0.95 / scales.sum())
        starts.append(
            np.concatenate(
                (np.log(decays / (_SLOWEST - decays)), np.log(scales / (1 - scales.sum())))
            )
        )
    return starts
