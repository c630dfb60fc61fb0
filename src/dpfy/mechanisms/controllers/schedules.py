"""Schedules of noise or clip bounds, fixed in advance.

A schedule is a function from time to a factor of the first noise or of the first clip bound. It is
tabulated for all steps when a plan is built: the plan, its JSON and the ledger hold numbers.
Nothing in it depends on outputs, so the steps compose as any list that is fixed in advance.

Reference: L. Yu et al., Differentially Private Model Publishing for Deep Learning, 2019, section 5;
J. Hong et al., Dynamic Privacy Budget Allocation Improves Data Efficiency of Differentially Private
Gradient Descent, 2022; D. Fay et al., Adaptive Hyperparameter Selection for Differentially Private
Gradient Descent, 2023.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact
from dpfy.mechanisms.controllers.base import (
    Controller,
    State,
    StepConfig,
    require_clipping,
    with_bounds,
)
from dpfy.mechanisms.controllers.names import named
from dpfy.mechanisms.query import Query

Shape = Callable[[float], float]
"""From the number of completed epochs to a factor of the first value."""


@dataclass(frozen=True)
class Timed:
    """A shape with a name.

    Args:
        name: The name of the schedule.
        shape: The function from time to a factor.
        per_step: Whether time is counted in steps instead of epochs.
    """

    name: str
    shape: Shape
    per_step: bool = False

    def __call__(self, time: float) -> float:
        """Return the factor at a time."""
        return self.shape(time)


def time_decay(rate: float) -> Timed:
    """Return the schedule 1/(1 + rate·t), t in epochs.

    Args:
        rate: The speed of the decay, above zero.

    Returns:
        The shape, with a name for plan and ledger.

    Raises:
        InvalidArgument: If the rate is out of its range.

    >>> time_decay(0.5)(2)
    0.5
    """
    _validate.positive("rate", rate)
    return Timed(f"time:{rate:g}", lambda t: 1 / (1 + rate * t))


def exponential_decay(rate: float) -> Timed:
    """Return the schedule e^(−rate·t), t in epochs.

    Args:
        rate: The speed of the decay, above zero.

    Returns:
        The shape, with a name for plan and ledger.

    Raises:
        InvalidArgument: If the rate is out of its range.
    """
    _validate.positive("rate", rate)
    return Timed(f"exponential:{rate:g}", lambda t: math.exp(-rate * t))


def step_decay(factor: float, period: float) -> Timed:
    """Return the schedule factor^⌊t/period⌋, t in epochs.

    Args:
        factor: The factor of each period, in (0, 1).
        period: The length of a period in epochs, above zero.

    Returns:
        The shape, with a name for plan and ledger.

    Raises:
        InvalidArgument: If an argument is out of its range.
    """
    _validate.real("factor", factor, 0, 1, open_low=True, open_high=True)
    _validate.positive("period", period)
    return Timed(f"step:{factor:g}:{period:g}", lambda t: factor ** math.floor(t / period))


def polynomial_decay(power: float, period: float, end: float) -> Timed:
    """Return the schedule (1 − end)·(1 − t/period)^power + end, and ``end`` after the period.

    Args:
        power: The exponent, above zero.
        period: The length of the decay in epochs, above zero.
        end: The factor after the period, in (0, 1].

    Returns:
        The shape, with a name for plan and ledger.

    Raises:
        InvalidArgument: If an argument is out of its range.
    """
    _validate.positive("power", power)
    _validate.positive("period", period)
    _validate.real("end", end, 0, 1, open_low=True)
    return Timed(
        f"polynomial:{power:g}:{period:g}:{end:g}",
        lambda t: (1 - end) * max(0.0, 1 - t / period) ** power + end,
    )


def dynamic_decay(contraction: float) -> Timed:
    """Return the schedule γ^(t/4), t in steps: best if each step multiplies the excess loss by γ.

    With Σσ_t^-2 given, σ_t² ∝ γ^(t/2) minimises Σγ^(T−t)·σ_t², the noise in the last iterate of
    gradient descent under the Polyak–Łojasiewicz condition (Hong et al. 2022). The shape is theirs;
    calibration finds its scale for the plan's own sampling.

    Args:
        contraction: γ = 1 − m/M in (0, 1), 0.99 to 0.999 in practice.

    Returns:
        The shape, with a name for plan and ledger.

    Raises:
        InvalidArgument: If the contraction is out of its range.
    """
    _validate.real("contraction", contraction, 0, 1, open_low=True, open_high=True)
    return Timed(f"dynamic:{contraction:g}", lambda t: contraction ** (t / 4), per_step=True)


def strongly_convex_decay(contraction: float) -> Timed:
    """Return the schedule γ^(t/2), t in steps: noise in proportion to a bound of gradient norms.

    Reference: Fay et al. 2023.

    Args:
        contraction: γ in (0, 1).

    Returns:
        The shape, with a name for plan and ledger.

    Raises:
        InvalidArgument: If the contraction is out of its range.
    """
    _validate.real("contraction", contraction, 0, 1, open_low=True, open_high=True)
    return Timed(
        f"strongly_convex:{contraction:g}", lambda t: contraction ** (t / 2), per_step=True
    )


def convex_decay() -> Timed:
    """Return the schedule 1/(1 + t), t in steps: noise in proportion to a bound of gradient norms.

    Reference: Fay et al. 2023.

    Returns:
        The shape, with a name for plan and ledger.
    """
    return Timed("convex", lambda t: 1 / (1 + t), per_step=True)


SCHEDULES: dict[str, Callable[..., Timed]] = {
    "time": time_decay,
    "exponential": exponential_decay,
    "step": step_decay,
    "polynomial": polynomial_decay,
    "dynamic": dynamic_decay,
    "strongly_convex": strongly_convex_decay,
    "convex": convex_decay,
}
"""The schedules by the names that settings and the command line use."""


def named_schedule(text: str) -> Timed:
    """Return the schedule that a text such as ``exponential:0.05`` names.

    Args:
        text: A name of ``SCHEDULES``, and after colons the function's arguments in their order.

    Returns:
        The shape, with a name for plan and ledger.

    Raises:
        InvalidArgument: If no schedule has that name or that number of arguments.

    >>> named_schedule("polynomial:2:10:0.5")(10)
    0.5
    """
    return named("a schedule", text, SCHEDULES)


@dataclass(frozen=True)
class Schedule(Fact, tag="schedule"):
    """A table of factors, each for ``length`` steps; the last one stays.

    Args:
        name: The name that plan and ledger record.
        factors: The factors of the first value, at least one, all above zero.
        length: The number of steps that a factor holds for, at least 1.

    Raises:
        InvalidArgument: If there is no factor, or one that is not above zero.

    >>> halved = Schedule("halved", (1.0, 0.5), length=10)
    >>> halved.at(10), halved.at(11), halved.at(1000)
    (1.0, 0.5, 0.5)
    """

    name: str
    factors: tuple[float, ...]
    length: int = 1

    def __post_init__(self) -> None:
        _validate.count("length", self.length)
        if not self.factors:
            raise InvalidArgument(
                f"Expected the schedule {self.name!r} to have a factor for the first step."
            )
        for factor in self.factors:
            _validate.positive(
                f"factor of the schedule {self.name!r}",
                factor,
                remedy="A schedule of noise or bounds stays above zero.",
            )
        object.__setattr__(self, "factors", tuple(map(float, self.factors)))

    @classmethod
    def of(cls, shape: "str | Shape | Schedule", steps: int, steps_per_epoch: int) -> "Schedule":
        """Tabulate a shape, or the name of one, for ``steps`` steps; return a table unchanged."""
        if isinstance(shape, Schedule):
            return shape
        shape = named_schedule(shape) if isinstance(shape, str) else shape
        if not callable(shape):
            raise InvalidArgument(
                "Expected a schedule to be a name, a function of the epochs that are over, or a "
                f"Schedule; got {type(shape).__name__}."
            )
        length = 1 if isinstance(shape, Timed) and shape.per_step else steps_per_epoch
        name = (
            shape.name
            if isinstance(shape, Timed)
            else getattr(shape, "__name__", type(shape).__name__)
        )
        return cls(name, tuple(shape(time) for time in range(math.ceil(steps / length))), length)

    def at(self, step: int) -> float:
        """Return the factor of a step, counted from 1."""
        return self.factors[min((step - 1) // self.length, len(self.factors) - 1)]


@dataclass(frozen=True)
class ClipSchedule(Controller, tag="clip_schedule"):
    """Multiplies every clip bound by a schedule; the noise stays in proportion.

    *Formal guarantee*: as for fixed bounds: the schedule is public, and the noise is in proportion.

    Args:
        schedule: The factors of the planned bounds.

    >>> ClipSchedule(Schedule("halved", (1.0, 0.5), length=10)).schedule.at(11)
    0.5
    """

    controls = "bounds"

    schedule: Schedule

    def extend_query(self, query: Query) -> Query:
        """Return the query unchanged; refuse sums without a clip bound."""
        require_clipping(query, "A clip schedule")
        return query

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration with the bounds of this step."""
        factor = self.schedule.at(step)
        return with_bounds(config, {leaf.name: leaf.bound * factor for leaf in config.query.leaves})
