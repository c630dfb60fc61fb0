"""Plan DP-SGD.

Tests: tests/plans/test_plan.py.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    FixedSize,
    Poisson,
    Policy,
    Shuffled,
    TruncatedPoisson,
)
from dpfy.mechanisms.controllers import ClipSchedule, Controller, Schedule
from dpfy.mechanisms.controllers.schedules import Shape
from dpfy.mechanisms.query import ClippedSum, Query, Statistic
from dpfy.plans.plan import Plan, steps_per_epoch_of
from dpfy.types import Relation, Unit

_OF_DECLARED_SIZE = ("fixed_size", "truncated_poisson", "shuffled", "cyclic", "balls_in_bins")


def dpsgd(
    *,
    records: int | None = None,
    batch_size: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    rate: float | None = None,
    divisor: float | None = None,
    clip: float | ClippedSum | Sequence[ClippedSum] = 1.0,
    noise_multiplier: float | None = None,
    statistics: Sequence[Statistic] = (),
    unit: Unit | str = Unit.RECORD,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    sampling: str | Policy = "poisson",
    capacity: int | None = None,
    microbatches: int | None = None,
    least_sample: float | None = None,
    controllers: Sequence[Controller] = (),
    noise_schedule: str | Shape | Schedule | None = None,
    clip_schedule: str | Shape | Schedule | None = None,
) -> Plan:
    """Plan DP-SGD: random samples, clipped gradients, Gaussian noise.

    Give ``records`` and ``batch_size``, or ``rate`` with ``divisor`` or ``records``; and ``epochs``
    or ``steps``.

    *Formal guarantee*: with the noise multiplier z of the plan, each step is the Gaussian mechanism
    of that z on a sample drawn by the policy, under ``relation``; the ledger's accountant composes
    the steps.

    *Assumes*: ``records`` and ``batch_size`` are public constants, declared by you and never read
    off the data.

    Args:
        records: The number of records, at least 1.
        batch_size: The expected number of records in a step, above zero and at most ``records``.
        epochs: The number of expected passes over the data, above zero.
        steps: The number of steps, at least 1.
        rate: The probability of a record in a step, in [0, 1].
        divisor: The public constant that the released sum is divided by; by default the expected
            batch size.
        clip: The bound of a record's gradient, or the sums that :func:`dpfy.clip_groups` and
            :func:`dpfy.clip_jointly` describe.
        noise_multiplier: The noise over the sensitivity, at least 0; by default
            :meth:`Plan.calibrate` finds it.
        statistics: Statistics that are released beside the gradient, from the same sample.
        unit: The unit of privacy, ``"record"`` or ``"user"``.
        relation: The neighbouring relation.
        sampling: ``"poisson"``, ``"full"``, or one of ``"fixed_size"``, ``"truncated_poisson"``,
            ``"shuffled"``, ``"cyclic"`` and ``"balls_in_bins"``, for which ``records`` is public
            and exact and the relation is zero_out or replace_one; or a policy. See
            docs/concepts/sampling.md.
        capacity: The largest size of a truncated Poisson sample.
        microbatches: The number of microbatches. Each record draws one, the mean gradient of a
            microbatch is clipped instead of every record's, and the sum of these means is divided
            by their number: cheap, and twice as sensitive.
        least_sample: If given, the sum is divided by the size of the sample, or by this public
            number if that is more, which is twice as sensitive.
        controllers: What chooses the clip bound or the noise of a step from releases, such as
            :class:`dpfy.QuantileClipping`.
        noise_schedule: Factors of the noise multiplier, fixed in advance: a name such as
            ``"exponential:0.05"``, a function of the completed epochs, or a
            :class:`~dpfy.mechanisms.controllers.Schedule`. See docs/how-to/adaptive.md.
        clip_schedule: Factors of the clip bound, in the same form.

    Returns:
        A plan of this run.

    Raises:
        InvalidArgument: If arguments are missing, contradict each other or are out of their range.

    >>> dpsgd(rate=0.01, divisor=600, steps=100, clip=0.5).clip
    0.5

    Reference: Abadi et al. 2016, Algorithm 1.
    """
    if sampling == "full":
        sampling, batch_size = "poisson", records
    if records is not None:
        _validate.count("records", records)
    if divisor is not None:
        _validate.positive("divisor", divisor)
    per_epoch: Fraction | None
    if rate is None and batch_size is not None and records is not None:
        rate, expected, per_epoch = (
            *declared_batch(batch_size, records),
            Fraction(records) / Fraction(batch_size),
        )
    elif rate is not None and batch_size is None and not (records is None and divisor is None):
        _validate.real("rate", rate, 0, 1)
        expected, per_epoch = (
            rate * (records or 0),
            1 / Fraction(rate).limit_denominator(10**12) if rate else None,
        )
    else:
        raise InvalidArgument(
            "Expected records= and batch_size=, or rate= with records= or divisor=; got "
            f"{records=}, {batch_size=}, {rate=}, {divisor=}. The released sum is divided by a "
            "public constant: the batch size, or divisor."
        )
    if least_sample is not None and divisor not in (None, least_sample):
        raise InvalidArgument(
            f"With least_sample={least_sample!r} that is the divisor; leave divisor= out."
        )
    policy, count = (
        _policy(sampling, float(rate), records, batch_size, capacity),
        whole_steps(steps, epochs, per_epoch),
    )
    per_epoch_steps = max(policy.steps_per_event, steps_per_epoch_of(policy, count))
    if clip_schedule is not None:
        controllers = (
            *controllers,
            ClipSchedule(Schedule.of(clip_schedule, count, per_epoch_steps)),
        )
    return Plan(
        sampling=policy,
        query=Query.of(
            clipped_sums(clip), statistics, slots=microbatches, least_sample=least_sample
        ),
        steps=count,
        controllers=tuple(controllers),
        noise_schedule=None
        if noise_schedule is None
        else Schedule.of(noise_schedule, count, per_epoch_steps),
        divisor=float(least_sample or divisor or microbatches or expected),
        noise_multiplier=noise_multiplier,
        records=records,
        unit=Unit(_validate.choice("unit", unit, tuple(Unit))),
        relation=Relation(_validate.choice("relation", relation, tuple(Relation))),
    )


def _policy(
    sampling: str | Policy,
    rate: float,
    records: int | None,
    batch_size: float | None,
    capacity: int | None,
) -> Policy:
    """Return the policy that a name and the declared numbers mean."""
    if isinstance(sampling, Policy):
        return sampling
    _validate.choice("sampling", sampling, ("poisson", *_OF_DECLARED_SIZE, "full"))
    if (capacity is not None) != (sampling == "truncated_poisson"):
        raise InvalidArgument(
            "capacity= is the size at which sampling='truncated_poisson' cuts a sample; give both "
            "or neither."
        )
    if sampling == "poisson":
        return Poisson(rate)
    if records is None or batch_size is None or batch_size != int(batch_size):
        raise InvalidArgument(
            f"Expected records= and a whole batch_size= for sampling={sampling!r}, whose law "
            f"contains both; got {records=}, {batch_size=}."
        )
    size = int(batch_size)
    match sampling:
        case "fixed_size":
            return FixedSize(size, records)
        case "truncated_poisson":
            return TruncatedPoisson(rate, capacity or 0, records)
        case "balls_in_bins":
            return BallsInBins(math.ceil(records / size), records)
    return (Shuffled if sampling == "shuffled" else Cyclic)(size, records)


def clipped_sums(clip: float | ClippedSum | Sequence[ClippedSum]) -> Sequence[ClippedSum]:
    """Return the sums that ``clip`` describes."""
    if isinstance(clip, ClippedSum):
        return (clip,)
    return clip if isinstance(clip, tuple | list) else (ClippedSum(clip),)  # type: ignore[arg-type]


def declared_batch(batch_size: float, records: int) -> tuple[float, float]:
    """Return the rate and the divisor that a declared batch size means."""
    _validate.positive("batch_size", batch_size)
    if batch_size > records:
        raise InvalidArgument(
            f"Expected batch_size={batch_size!r} to be at most records={records!r}."
        )
    return batch_size / records, float(batch_size)


def whole_steps(steps: int | None, epochs: float | None, per_epoch: Fraction | None) -> int:
    """Return ⌈epochs · records / batch_size⌉ in exact arithmetic: whole numbers stay whole."""
    if (steps is None) == (epochs is None):
        raise InvalidArgument(
            f"Expected exactly one of steps= and epochs=, got {steps=} and {epochs=}."
        )
    if steps is not None:
        return _validate.count("steps", steps)
    if per_epoch is None:
        raise InvalidArgument("With rate=0 no number of steps makes an epoch. Give steps=.")
    return math.ceil(
        Fraction(_validate.positive("epochs", epochs)).limit_denominator(10**6) * per_epoch
    )
