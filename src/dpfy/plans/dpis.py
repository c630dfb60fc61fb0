"""Plan DPIS: importance sampling whose contributions all have the same norm.

That norm is fixed in advance, or follows released sums of norms.

Tests: tests/mechanisms/controllers/test_norm_sum.py.
"""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from dpfy import _validate
from dpfy.accounting.calibrate import calibrate_rest
from dpfy.accounting.filters import Additive
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, ImportanceSchedule, Repeated
from dpfy.mechanisms.controllers import ClipSchedule, Controller, NormSumSampling, Schedule, State
from dpfy.mechanisms.controllers.schedules import Shape
from dpfy.mechanisms.importance_bounds import JITTER, LEAST_NOISE, followed
from dpfy.mechanisms.query import ClippedSum, Query
from dpfy.plans.plan import Plan
from dpfy.types import Relation

_NORM_NOISE = 0.02  # relative to the declared number of records, as in the paper
_CAUTIOUS = 0.8  # the first part of the steps


def dpis(
    *,
    records: int,
    batch_size: float,
    epochs: float | None = None,
    steps: int | None = None,
    clip: float = 1.0,
    ratio: float | Callable[[float], float] | Schedule = 0.5,
    slack: float = 3.0,
    floor: float = 1 / 16,
    noise_multiplier: float | None = None,
    noise_schedule: str | Shape | Schedule | None = None,
    norm_sum: str = "scheduled",
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    norm_noise: float | None = None,
    cautious: float | None = None,
    clip_factor: float | None = None,
    size_noise: float | None = None,
) -> Plan:
    """Plan DPIS: records take part in proportion to their gradients' norms, and contribute equally.

    A record whose gradient has the norm g takes part with probability (batch_size/records)·min(g,
    clip)/(ratio·clip), and contributes a vector of norm ratio·clip. The released gradient has the
    expectation that DP-SGD with the same clip bound has. Where gradients are smaller than the clip
    bound, contributions may be too, and the same noise hides them better.

    With ``norm_sum="released"`` ratios follow the data: once an epoch the sum of all norms is
    released with noise, and the noise of the steps is chosen so that they spend the rest of a
    filter. Only a Rényi filter accounts such steps: :meth:`Plan.calibrate` declares one.

    *Formal guarantee*: with ``noise_multiplier`` σ, a step with ratio r is dominated by the
    Gaussian mechanism of the multiplier σ/r on a Poisson sample of the rate batch_size/(r·records),
    and one full-batch Gaussian sum of μ = 2⁻¹⁰ for what the coins of others can reveal. Ratios that
    are fixed in advance let the steps compose by PLD; those that follow released norms are
    accounted by a filter.

    *Assumes*: ``records``, ``batch_size``, ``clip`` and ``ratio`` are public constants, declared by
    you. For a good choice ratio is about the mean of min(norm, clip)/clip; a poor one costs
    accuracy, never privacy.

    Args:
        records: The number of records, at least 1.
        batch_size: The expected number of contributions in a step if the ratio fits, above zero.
        epochs: The number of expected passes over the data, above zero; or give ``steps``.
        steps: The number of steps, at least 1; or give ``epochs``.
        clip: The bound of a record's gradient, above zero; with ``clip_factor`` the first guess.
        ratio: The norm of contributions over the clip bound: a number, a function of the completed
            epochs, or a :class:`~dpfy.mechanisms.controllers.Schedule`. With
            ``norm_sum="released"`` it is what you expect.
        slack: The factor by which norms may grow within an epoch before they are clipped, at least
            1. An epoch computes about slack + 1 times as many gradients as one of DP-SGD.
        floor: The least norm that counts, in clip bounds, from 1/16 to 1.
        noise_multiplier: The noise over the clip bound, at least 0; by default
            :meth:`Plan.calibrate` finds it.
        noise_schedule: Factors of the noise multiplier, fixed in advance, as in :func:`dpfy.dpsgd`.
        norm_sum: ``"scheduled"`` for ratios that are fixed in advance, ``"released"`` for those
            that follow released norms.
        relation: The neighbouring relation.
        norm_noise: The noise of a released sum of norms, in clip bounds, as a fraction of
            ``records``; by default 0.02.
        cautious: The first part of the steps, in which the noise is chosen as if all later ratios
            were 1, in [0, 1]; by default 0.8.
        clip_factor: If given, the clip bound of an epoch is this multiple of the mean norm, which
            is released in the same way.
        size_noise: If given, the number of records is released once, with noise of this fraction of
            the declared number.

    Returns:
        A plan of this run.

    Raises:
        InvalidArgument: If arguments contradict each other or are out of their range.

    >>> plan = dpis(
    ...     records=51_200,
    ...     batch_size=512,
    ...     epochs=2,
    ...     ratio=lambda epoch: 0.5 / (1 + epoch),
    ...     noise_multiplier=1,
    ... )
    >>> plan.event_at(1).policy.rate, plan.noise_at(1)
    (0.02, 2.0)
    >>> plan.event_at(plan.steps).policy.rate, plan.noise_at(plan.steps)
    (0.04, 4.0)

    Reference: Wei et al. 2022; docs/proofs/dpis.md.
    """
    _validate.count("records", records)
    _validate.positive("batch_size", batch_size)
    if (steps is None) == (epochs is None):
        raise InvalidArgument(
            f"Expected exactly one of steps= and epochs=, got {steps=} and {epochs=}."
        )
    per_epoch = max(1, round(records / batch_size))
    count = (
        _validate.count("steps", steps)
        if epochs is None
        else math.ceil(
            Fraction(_validate.positive("epochs", epochs)).limit_denominator(10**6)
            * Fraction(records)
            / Fraction(batch_size)
        )
    )
    ratios = (
        Schedule("ratio", (float(ratio),), per_epoch)
        if isinstance(ratio, float | int)
        else Schedule.of(ratio, count, per_epoch)
    )
    noise = _noise(ratios, noise_schedule, count, per_epoch)
    if norm_sum == "released" and noise.length % per_epoch:
        raise InvalidArgument(
            f"With norm_sum='released' the noise is chosen for a whole epoch of {per_epoch} steps; "
            f"a schedule that changes every {noise.length} is none of epochs."
        )
    options = {
        "norm_noise": norm_noise,
        "cautious": cautious,
        "clip_factor": clip_factor,
        "size_noise": size_noise,
    }
    return Plan(
        sampling=ImportanceSchedule(
            float(batch_size),
            records,
            ratios.factors,
            ratios.length,
            float(slack),
            float(floor),
            JITTER,
        ),
        query=Query((ClippedSum(clip),)),
        steps=count,
        divisor=float(batch_size),
        noise_multiplier=noise_multiplier,
        records=records,
        relation=Relation(_validate.choice("relation", relation, tuple(Relation))),
        controllers=(
            _controller(norm_sum, ratios, math.ceil(records / batch_size), records, options),
        ),
        noise_schedule=noise,
    )


def _controller(
    norm_sum: str, ratios: Schedule, length: int, records: int, options: Mapping[str, float | None]
) -> Controller:
    """Return the controller of the ratios; refuse options that it has no use for."""
    given = {name: value for name, value in options.items() if value is not None}
    if _validate.choice("norm_sum", norm_sum, ("scheduled", "released")) == "scheduled":
        if given:
            raise InvalidArgument(
                "With norm_sum='scheduled' nothing is released beside the steps, got "
                f"{' and '.join(given)}. Use norm_sum='released'."
            )
        return ClipSchedule(ratios)
    size_noise = given.get("size_noise")
    return NormSumSampling(
        ratios,
        length,
        records * _validate.positive("norm_noise", given.get("norm_noise", _NORM_NOISE)),
        given.get("cautious", _CAUTIOUS),
        given.get("clip_factor"),
        None if size_noise is None else records * _validate.positive("size_noise", size_noise),
    )


def _noise(
    ratios: Schedule, shape: str | Shape | Schedule | None, steps: int, per_epoch: int
) -> Schedule:
    """Return the noise over the norm of contributions: that over the clip bound, over the ratio."""
    planned = (
        Schedule("constant", (1.0,), ratios.length)
        if shape is None
        else Schedule.of(shape, steps, per_epoch)
    )
    length = math.gcd(ratios.length, planned.length)
    return Schedule(
        f"{planned.name} over ratio",
        tuple(planned.at(step) / ratios.at(step) for step in range(1, steps + 1, length)),
        length,
    )


def noise_of_epoch(plan: Plan, state: State, size: float, spent: Envelope) -> float:
    """Return the noise of an epoch with which the remaining steps spend the rest of the filter.

    It is a factor of the planned noise. ``state`` is that of the plan's
    :class:`~dpfy.mechanisms.controllers.NormSumSampling` after the norms of the epoch, and of
    ``size`` records, were released. Where nothing is left the noise stays, and the filter refuses
    the step.
    """
    controller = plan.controllers[0]
    assert isinstance(plan.filter, Additive) and isinstance(controller, NormSumSampling)
    factor = calibrate_rest(
        lambda noise: steps_to_come(plan, state, size, noise), spent, plan.filter, plan.relation
    )
    last = min(state["since"] + controller.length - 1, plan.steps)
    planned = min(
        plan.noise_at(step) * controller.factor(1.0, step, state["ratio"])
        for step in (state["since"], last)
    )
    return max(float(state["noise"]) if factor is None else factor, LEAST_NOISE / planned)


def steps_to_come(plan: Plan, state: State, size: float, noise: float) -> Envelope:
    """Return the events of the present epoch and those that are expected after it.

    ``noise`` is a factor of the planned noise. In the first part of the plan, where it is cautious,
    later sums of norms are expected to be as large as they can be; after it, to stay (Wei et al.
    2022, section 4.2).
    """
    controller, sampling = plan.controllers[0], plan.sampling
    assert isinstance(controller, NormSumSampling) and isinstance(sampling, ImportanceSchedule)
    first, end = state["since"], plan.steps + 1
    later = min(first + controller.length, end)
    present = state["ratio"], state["rate"]
    expected = (
        followed(sampling.batch_size, size, size)
        if first <= controller.cautious * plan.steps
        else present
    )
    length = controller.length if plan.noise_schedule is None else plan.noise_schedule.length
    runs = [Repeated(controller.event, math.ceil((end - later) / controller.length))]
    for begin, stop, (ratio, rate) in ((first, later, present), (later, end, expected)):
        for step in (begin, *range((begin - 1) // length * length + length + 1, stop, length)):
            until = min(stop, (step - 1) // length * length + length + 1)
            event = plan.event_at(step, controller.factor(noise, step, ratio), rate)
            runs.append(Repeated(event, max(0, until - step)))
    return tuple(runs)
