"""What bounds importance sampling: margins of its coins, and what they may tell, without touching a
tensor.

Proof: docs/proofs/dpis.md.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import ImportanceSchedule
from dpfy.mechanisms.controllers import ClipSchedule, Controller, NormSumSampling
from dpfy.mechanisms.query import ClippedSum, Query

MARGIN = 1 / 24
"""How far acceptance stays below a certainty, so that last bits of a norm hardly move it; it costs
proposals.
"""
LIKELIEST_PROPOSAL = 0.8
"""What no proposal is likelier than, for the same reason; it costs rates that are nearly 1."""
MAX_BLOCK_RECORDS = 192
"""The most records that share their arithmetic with another one when norms are learned, and in any
step.
"""
LEAST_FLOOR = 2.0**-4
"""Of norms, in clip bounds: below it a gradient's last bits may be a large part of it."""
JITTER = 2.0**-10
"""What the coins and last bits of all companions may tell in a step, as the μ of one Gaussian sum.
"""
LARGEST_RATE = LIKELIEST_PROPOSAL * (1 - MARGIN)
"""Of records that take part: above it some coin would have to be likelier."""
LEAST_RATE = 2.0**-32
"""Of a record at the clip bound: the last of 64 bits would be too large a part of coins that are
rarer.
"""
MOVED = 2.0**-19
"""By how much, relative to its norm or the floor, one record more moves another one's gradient."""
LEAST_NOISE = 0.5
"""Over the norm of contributions: less is not chosen from outputs, and hides last bits of 10⁸
parameters.
"""

_FEWEST, _PER_NOISE = 64, 44.0  # companions in a step: more are quicker, and cost more noise


def co_batched_for(noise_multiplier: float) -> int:
    """Return how many records may share their arithmetic in a step, given its noise over the norm
    of contributions.

    >>> [co_batched_for(noise) for noise in (1.0, 3.0, 10.0)]
    [64, 132, 192]
    """
    return int(min(max(_FEWEST, _PER_NOISE * noise_multiplier), MAX_BLOCK_RECORDS))


def rounding_allowance(noise_multiplier: float, rounding: float = 0.0) -> float:
    """Return by which factor the noise grows so that the moved last bits of companions are within
    the jitter.

    ``rounding`` is by how much more the arithmetic of their sum may move it, relative to the norm
    of contributions.

    >>> 1 < rounding_allowance(1.0) < 1.02
    True
    """
    if noise_multiplier == 0:
        return 1.0  # there is no guarantee to keep
    co_batched = co_batched_for(noise_multiplier)
    bits = math.sqrt(0.99 * JITTER**2 - _told_by_coins(co_batched))  # what they leave for the sum
    part = (MOVED * co_batched + rounding) / (noise_multiplier * bits)
    if part > 0.5:
        raise InvalidArgument(
            f"Noise of {noise_multiplier:.3g} times the norm of contributions does not hide their "
            "last bits. Use more noise, smaller ratios or fewer trained parameters."
        )
    return 1 / math.sqrt(1 - part**2)


def _told_by_coins(co_batched: int) -> float:
    """The μ² of proposals and acceptances that move, of companions in the step and of those when
    norms were learned.
    """
    accepted = (
        MAX_BLOCK_RECORDS + 3 * co_batched
    )  # whose coin may move on both occasions: twice as far counts four times
    return MOVED**2 * (
        MAX_BLOCK_RECORDS * _steepness(LIKELIEST_PROPOSAL) ** 2
        + accepted * _steepness(1 - MARGIN) ** 2
    )


def _steepness(likeliest: float) -> float:
    """How many standard deviations a Gaussian that decides a coin is moved by, over the coin's
    relative change.
    """
    bell = NormalDist()
    return likeliest / bell.pdf(bell.inv_cdf(likeliest))


def followed(batch_size: float, norms: float, size: float) -> tuple[float, float]:
    """Return the ratio and the rate of an epoch of ``size`` records, given their sum of norms in
    clip bounds.

    The ratio is at most 1, and in any case so large that no record is accepted for certain.

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
    rarest = schedule.rate / max(
        1.0, *schedule.ratios
    )  # also if ratios, which may become 1, follow released norms
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
    if [*map(type, controllers)] not in (
        [ClipSchedule],
        [NormSumSampling],
    ):  # others may ask for statistics of the proposed
        raise InvalidArgument(
            "With importance sampling the bound and the noise follow the ratios of the plan; leave "
            "other controllers out, and make the plan with dpfy.dpis."
        )
