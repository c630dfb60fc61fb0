"""Limits of importance sampling: margins of its coins, and the charge for what they can reveal.

Proof: docs/proofs/dpis.md.

Tests: tests/mechanisms/sampling/test_importance.py.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import ImportanceSchedule
from dpfy.mechanisms.controllers import ClipSchedule, Controller, NormSumSampling
from dpfy.mechanisms.query import ClippedSum, Query

MARGIN = 1 / 24
"""The least distance of an acceptance probability from 1.

It keeps rounding error of a norm from moving the coin by much, and costs proposals.
"""
LIKELIEST_PROPOSAL = 0.8
"""The largest probability of a proposal, for the same reason; it excludes rates close to 1."""
MAX_BLOCK_RECORDS = 192
"""The most records that are computed in one block, when norms are learned and in any step."""
LEAST_FLOOR = 2.0**-4
"""The least floor of norms, in clip bounds.

Rounding error may be a large part of a smaller norm.
"""
JITTER = 2.0**-10
"""Privacy charge of a step for what coins and rounding of co-batched records can reveal.

It is the μ of one Gaussian sum.
"""
LARGEST_RATE = LIKELIEST_PROPOSAL * (1 - MARGIN)
"""The largest rate of a record: more would need a likelier proposal or acceptance."""
LEAST_RATE = 2.0**-32
"""The least rate of a record at the clip bound, for coins of 64 bits."""
MOVED = 2.0**-19
"""The most that adding a record moves another's gradient, relative to its norm or the floor."""
LEAST_NOISE = 0.5
"""The least noise that is chosen from outputs, over the norm of contributions.

It hides the rounding error of 10⁸ parameters.
"""

_FEWEST, _PER_NOISE = 64, 44.0  # records in a block: more are quicker, and cost more noise


def co_batched_for(noise_multiplier: float) -> int:
    """Return the number of records that may be computed in one block of a step.

    ``noise_multiplier`` is the noise of the step over the norm of contributions.

    >>> [co_batched_for(noise) for noise in (1.0, 3.0, 10.0)]
    [64, 132, 192]
    """
    return int(min(max(_FEWEST, _PER_NOISE * noise_multiplier), MAX_BLOCK_RECORDS))


def rounding_allowance(noise_multiplier: float, rounding: float = 0.0) -> float:
    """Return the factor of the noise that hides the rounding of co-batched records in the jitter.

    ``rounding`` is the most that the arithmetic of their sum may move it in addition, relative to
    the norm of contributions.

    >>> 1 < rounding_allowance(1.0) < 1.02
    True
    """
    if noise_multiplier == 0:
        return 1.0  # there is no guarantee to keep
    co_batched = co_batched_for(noise_multiplier)
    # What the coins leave of the charge for the rounding of the sum.
    bits = math.sqrt(0.99 * JITTER**2 - _revealed_by_coins(co_batched))
    part = (MOVED * co_batched + rounding) / (noise_multiplier * bits)
    if part > 0.5:
        raise InvalidArgument(
            f"Noise of {noise_multiplier:.3g} times the norm of contributions does not hide their "
            "last bits. Use more noise, smaller ratios or fewer trained parameters."
        )
    return 1 / math.sqrt(1 - part**2)


def _revealed_by_coins(co_batched: int) -> float:
    """Return the μ² of proposals and acceptances that rounding moves.

    They are those of co-batched records in the step, and when norms were learned.
    """
    # A coin that moves on both occasions moves twice as far, and counts four times.
    accepted = MAX_BLOCK_RECORDS + 3 * co_batched
    return MOVED**2 * (
        MAX_BLOCK_RECORDS * _steepness(LIKELIEST_PROPOSAL) ** 2
        + accepted * _steepness(1 - MARGIN) ** 2
    )


def _steepness(likeliest: float) -> float:
    """Return the shift of a Gaussian that decides a coin, over the coin's relative change.

    The shift is in standard deviations.
    """
    bell = NormalDist()
    return likeliest / bell.pdf(bell.inv_cdf(likeliest))


def followed(batch_size: float, norms: float, size: float) -> tuple[float, float]:
    """Return the ratio and the rate of an epoch of ``size`` records, from their sum of norms.

    The sum is in clip bounds. The ratio is at most 1, and always so large that no record is
    accepted for certain.

    >>> followed(10.0, norms=40.0, size=100.0)
    (0.4, 0.25)
    """
    ratio = max(min(norms / size, 1.0), batch_size / (size * LARGEST_RATE))
    return ratio, min(batch_size / (ratio * size), LARGEST_RATE)


def check_importance(
    schedule: ImportanceSchedule, query: Query, unit: str, controllers: Sequence[Controller]
) -> None:
    """Refuse what importance sampling has no proof for."""
    if (
        max(schedule.at(1 + i * schedule.length).rate for i in range(len(schedule.ratios)))
        > LARGEST_RATE
    ):
        least = schedule.rate / LARGEST_RATE
        raise InvalidArgument(
            f"Expected ratios of at least {least:.4g}, so that no record is accepted for certain; "
            f"got {min(schedule.ratios)!r}. Use a larger ratio or a smaller batch."
        )
    # Ratios that follow released norms may become 1.
    rarest = schedule.rate / max(1.0, *schedule.ratios)
    if rarest < LEAST_RATE:
        raise InvalidArgument(
            f"Expected rates of at least {LEAST_RATE:.3g}, for coins that have 64 bits; got "
            f"{rarest:.3g}. Use a larger batch or smaller ratios."
        )
    if schedule.jitter != JITTER or schedule.slack < 1 or not LEAST_FLOOR <= schedule.floor <= 1:
        raise InvalidArgument(
            f"Expected slack of at least 1, floor in [{LEAST_FLOOR:g}, 1] and jitter={JITTER!r}; "
            f"got {schedule.slack!r}, {schedule.floor!r} and {schedule.jitter!r}."
        )
    if len(query.leaves) > 1 or type(query.leaves[0]) is not ClippedSum or query.leaves[0].scales:
        raise InvalidArgument(
            "Importance sampling has one clipped sum of all parameters: a record is accepted by "
            "one norm, and groups would have several. Give clip a number."
        )
    if query.statistics or query.slots is not None or query.least_sample is not None:
        raise InvalidArgument(
            "With importance sampling there are no statistics, microbatches or least_sample: "
            "records that are proposed and not accepted would be counted in them."
        )
    if unit != "record":
        raise InvalidArgument(
            f"Importance sampling protects records, got unit={str(unit)!r}. Use dpfy.dpsgd for "
            "users."
        )
    # Other controllers may ask for statistics of proposed records.
    if [*map(type, controllers)] not in ([ClipSchedule], [NormSumSampling]):
        raise InvalidArgument(
            "With importance sampling the bound and the noise follow the ratios of the plan; leave "
            "other controllers out, and make the plan with dpfy.dpis."
        )
