"""DPIS as a plan: importance sampling whose contributions have one norm, fixed in advance."""

import math
from collections.abc import Callable
from fractions import Fraction

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import ImportanceSchedule
from dpfy.mechanisms.controllers import ClipSchedule, Schedule
from dpfy.mechanisms.controllers.schedules import Shape
from dpfy.mechanisms.importance import JITTER
from dpfy.mechanisms.query import ClippedSum, Query
from dpfy.plan import Plan
from dpfy.types import Relation


def dpis(*, records: int, batch_size: float, epochs: float | None = None, steps: int | None = None, clip: float = 1.0,
         ratio: float | Callable[[float], float] | Schedule = 0.5, slack: float = 3.0, floor: float = 1 / 16,
         noise_multiplier: float | None = None, noise_schedule: str | Shape | Schedule | None = None,
         norm_sum: str = "scheduled", relation: Relation | str = Relation.ADD_OR_REMOVE_ONE) -> Plan:
    """Plan DPIS: records take part in proportion to their gradients' norms, and contribute equally (Wei et al. 2022).

    A record whose gradient has the norm g takes part with probability (batch_size/records)·min(g, clip)/(ratio·clip),
    and contributes a vector of norm ratio·clip. The released gradient has the expectation that DP-SGD with the same
    clip bound has. Where gradients are smaller than the clip bound, contributions may be too, and the same noise hides
    them better.

    *Formal guarantee*: with ``noise_multiplier`` σ, a step with ratio r is dominated by the Gaussian mechanism of the
    multiplier σ/r on a Poisson sample of the rate batch_size/(r·records), and one full-batch Gaussian sum of μ = 2⁻¹⁰
    for what the coins of others may tell. Ratios are fixed in advance, so the steps compose by PLD.

    *Assumes*: ``records``, ``batch_size``, ``clip`` and ``ratio`` are public constants, declared by you. For a good
    choice ratio is about the mean of min(norm, clip)/clip; a poor one costs accuracy, never privacy.

    ``ratio`` is a number, a function of the epochs that are over, or a :class:`~dpfy.mechanisms.controllers.Schedule`.
    A record is proposed ``slack`` times as often as its norm at the beginning of the epoch would have it accepted:
    norms may grow by this factor before they are clipped, and an epoch computes about slack + 1 times as many
    gradients as one of DP-SGD. Norms count as at least ``floor`` clip bounds. ``norm_sum`` is "scheduled"; ratios that
    follow a released sum of norms are refused.

    >>> plan = dpis(records=51_200, batch_size=512, epochs=2, ratio=lambda epoch: 0.5 / (1 + epoch), noise_multiplier=1)
    >>> plan.event_at(1).policy.rate, plan.noise_at(1)
    (0.02, 2.0)
    >>> plan.event_at(plan.steps).policy.rate, plan.noise_at(plan.steps)
    (0.04, 4.0)

    Reference: docs/proofs/dpis.md.
    """
    if norm_sum != "scheduled":
        raise InvalidArgument(f"Expected norm_sum='scheduled', got {norm_sum!r}. With a released sum of norms the rate "
                              "of a step would follow from outputs; give ratio= as a function of the epochs instead.")
    _validate.count("records", records)
    _validate.positive("batch_size", batch_size)
    if (steps is None) == (epochs is None):
        raise InvalidArgument(f"Expected exactly one of steps= and epochs=, got {steps=} and {epochs=}.")
    per_epoch = max(1, round(records / batch_size))
    count = _validate.count("steps", steps) if epochs is None else math.ceil(
        Fraction(_validate.positive("epochs", epochs)).limit_denominator(10**6) * Fraction(records)
        / Fraction(batch_size))
    ratios = Schedule("ratio", (float(ratio),), per_epoch) if isinstance(ratio, float | int) else \
        Schedule.of(ratio, count, per_epoch)
    return Plan(
        sampling=ImportanceSchedule(float(batch_size), records, ratios.factors, ratios.length, float(slack),
                                    float(floor), JITTER),
        query=Query((ClippedSum(clip),)), steps=count, divisor=float(batch_size), noise_multiplier=noise_multiplier,
        records=records, relation=Relation(_validate.choice("relation", relation, tuple(Relation))),
        controllers=(ClipSchedule(ratios),), noise_schedule=_noise(ratios, noise_schedule, count, per_epoch),
    )


def _noise(ratios: Schedule, shape: str | Shape | Schedule | None, steps: int, per_epoch: int) -> Schedule:
    """The noise over the norm of contributions: as planned over the clip bound, divided by the ratio."""
    planned = Schedule("constant", (1.0,), ratios.length) if shape is None else Schedule.of(shape, steps, per_epoch)
    length = math.gcd(ratios.length, planned.length)
    return Schedule(f"{planned.name} over ratio", tuple(
        planned.at(step) / ratios.at(step) for step in range(1, steps + 1, length)), length)
