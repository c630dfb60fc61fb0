"""A plan: everything public about a private training run, frozen before the first record is
read.
"""

import math
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from dpfy import _validate
from dpfy.accounting import DominatedBy, EnvelopeGuard, Filter, RenyiFilter, calibrate_envelope
from dpfy.accounting.filters import as_fixed
from dpfy.accounting.rules import REASONS
from dpfy.errors import InvalidArgument
from dpfy.ledger import Guard
from dpfy.ledger.events import (
    Cyclic,
    Envelope,
    Event,
    Fact,
    ImportanceSchedule,
    Policy,
    Repeated,
    Sampled,
    run_lengths,
)
from dpfy.mechanisms.controllers import Controller, NormSumSampling, Schedule
from dpfy.mechanisms.importance_bounds import check_importance
from dpfy.mechanisms.query import Query
from dpfy.types import Budget, Relation, Unit

# Sums are exact integers below 2^53 in lattice steps of at least bound·2^-32: see
# docs/proofs/gaussian-sum.md.
_LARGEST_EXPECTED_BATCH = 2**19
_OF_DECLARED_SIZE = ("fixed_size", "truncated_poisson", "shuffled", "cyclic", "balls_in_bins")


@dataclass(frozen=True)
class Plan:
    """What will run, how often, and what it may cost: public constants only.

    Nothing in a plan is read off the data. ``divisor`` is what the released sum is divided by;
    ``records`` is the declared size of the data set and is never compared with the data. ``budget``
    limits the steps of the plan, which are fixed; ``filter`` limits whatever the ledger may record,
    steps that are chosen from outputs included. ``controllers`` choose bounds, noise or coordinates
    of steps from what was released; ``noise_schedule`` has the factors of the noise multiplier,
    fixed in advance.

    >>> plan = dpsgd(records=60_000, batch_size=256, epochs=10, noise_multiplier=1.1)
    >>> plan.steps, round(plan.rate, 6)
    (2344, 0.004267)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    sampling: Policy
    query: Query
    steps: int
    divisor: float
    noise_multiplier: float | None = None
    records: int | None = None
    budget: Budget | None = None
    unit: Unit = Unit.RECORD
    relation: Relation = field(default=Relation.ADD_OR_REMOVE_ONE)
    filter: Filter | None = None
    controllers: tuple[Controller, ...] = ()
    noise_schedule: Schedule | None = None

    def __post_init__(self) -> None:
        _validate.count("steps", self.steps)
        _validate.real(
            "divisor",
            self.divisor,
            0,
            _LARGEST_EXPECTED_BATCH,
            open_low=True,
            remedy="It is the expected batch size, a public constant.",
        )
        if self.noise_multiplier is not None:
            _validate.real("noise_multiplier", self.noise_multiplier, 0, math.inf, open_high=True)
        if self.records is not None:
            _validate.count("records", self.records)
        _validate.choice("unit", self.unit, tuple(Unit))
        _validate.choice("relation", self.relation, tuple(Relation))
        if reason := REASONS.get((type(self.sampling), self.relation)):
            raise InvalidArgument(
                f"No rule for {self.sampling.tag} sampling under {self.relation}: {reason}."
            )
        if isinstance(self.sampling, Cyclic) and (self.unit, self.relation) == (
            Unit.USER,
            Relation.REPLACE_ONE,
        ):
            raise InvalidArgument(
                "No rule for users in cyclic order under replace_one: another user in the place of "
                "one has another id, and moves others to other batches. Use relation='zero_out', "
                "or sampling='shuffled'."
            )
        if not isinstance(self.filter, Filter | None):
            raise InvalidArgument(
                f"Expected filter to be a dpfy.accounting.Filter, got {type(self.filter).__name__}."
            )
        if self.filter is not None and self.budget is not None:
            raise InvalidArgument(
                "Expected a budget or a filter, not both: under a filter its limit is the "
                "guarantee. Calibrate first; plan.under(filter) puts the filter in the place of "
                "the budget."
            )
        self._check_controllers()
        if isinstance(self.sampling, ImportanceSchedule):
            check_importance(self.sampling, self.query, self.unit, self.controllers)
        if any(isinstance(each, NormSumSampling) for each in self.controllers):
            self._check_following()
        for controller in self.controllers:
            object.__setattr__(self, "query", controller.extend_query(self.query))

    def _check_controllers(self) -> None:
        """Refuse controllers that are in each other's way, and noise that changes where one event
        pays for many.
        """
        steered = [controller.controls for controller in self.controllers]
        if twice := next((what for what in steered if steered.count(what) > 1), None):
            names = [
                controller.tag for controller in self.controllers if controller.controls == twice
            ]
            raise InvalidArgument(
                f"The {twice} of a step can follow one controller, got {' and '.join(names)}."
            )
        if {"bounds", "coordinates"} <= set(steered):
            raise InvalidArgument(
                "AdaClip chooses its own bounds, coordinate by coordinate. Leave the controller of "
                "clip bounds out."
            )
        paid, schedule = self.sampling.steps_per_event, self.noise_schedule
        if paid > 1 and schedule is not None and schedule.length % paid:
            raise InvalidArgument(
                f"The noise schedule {schedule.name!r} changes every {schedule.length} steps, and "
                f"with {self.sampling.tag} sampling one event pays for {paid} steps of equal "
                "noise. Use a schedule of epochs, or poisson sampling."
            )
        if paid > 1 and self.adaptive:
            raise InvalidArgument(
                "Noise that is chosen from outputs needs steps that are paid for one by one; with "
                f"{self.sampling.tag} sampling one event pays for {paid}. Use poisson sampling."
            )

    def _check_following(self) -> None:
        """Refuse to follow released norms with other samples, or by a list of steps that would
        dominate them.
        """
        if not isinstance(self.sampling, ImportanceSchedule):
            raise InvalidArgument(
                "Released sums of norms are followed by importance sampling, got "
                f"{self.sampling.tag}. Make the plan with dpfy.dpis."
            )
        if isinstance(self.filter, DominatedBy):
            raise InvalidArgument(
                "Steps that follow a released sum of norms are not dominated by those of the "
                "largest sum: with a smaller one records take part more often. Use a Rényi filter."
            )

    @property
    def adaptive(self) -> bool:
        """Whether the noise of steps is chosen from outputs: a filter alone can account them."""
        return any(controller.adaptive for controller in self.controllers)

    @property
    def rate(self) -> float:
        """The probability with which a record enters a step."""
        return self.sampling.rate

    @property
    def expected_batch(self) -> float:
        """How many records a step has in expectation, as far as it was declared."""
        return self.rate * self.records if self.records is not None else self.divisor

    @property
    def clip(self) -> float:
        """The bound of each record's gradient; where several sums are clipped, of all of them
        together.
        """
        return self.query.bound

    @property
    def steps_per_epoch(self) -> int:
        """How many steps see each record once in expectation."""
        return steps_per_epoch_of(self.sampling, self.steps)

    @property
    def event(self) -> Event:
        """What the first step will record, and every other that releases the same sums."""
        return self.event_at(1)

    def noise_at(self, step: int) -> float:
        """Return the noise multiplier of a step, counted from 1, as it is planned."""
        if self.noise_multiplier is None:
            raise InvalidArgument(
                "The plan has no noise_multiplier yet. Call .calibrate(epsilon=…, delta=…), or "
                "give noise_multiplier=…."
            )
        return self.noise_multiplier * (
            1.0 if self.noise_schedule is None else self.noise_schedule.at(step)
        )

    def event_at(self, step: int, noise: float = 1.0, rate: float | None = None) -> Event:
        """Return what a step, counted from 1, will record; where an event pays for an epoch, it has
        all the sums.

        ``noise`` is the factor by which a controller changed the planned noise; ``rate`` is its
        own, if it chose one.
        """
        due = step if self.sampling.steps_per_event == 1 else 1
        queries = self.query.sum_queries(self.noise_at(step) * noise, due)
        policy = self.sampling.at(step)
        if rate is not None:
            policy = replace(policy, rate=rate)  # type: ignore[type-var]
        return Sampled(policy, queries, adaptive=self.adaptive)

    @property
    def envelope(self) -> Envelope:
        """The events of the plan in order: fixed before the first one, unless controllers choose
        their noise.

        What is released beside steps, for controllers that do, comes first.
        """
        paid = self.sampling.steps_per_event
        whole = math.ceil(self.steps / paid) * paid
        length = whole if self.noise_schedule is None else self.noise_schedule.length
        if isinstance(self.sampling, ImportanceSchedule) and len(self.sampling.ratios) > 1:
            length = math.gcd(length, self.sampling.length)
        steps = (
            run
            for first in range(1, whole + 1, length)
            for run in self._events(first, min(length, whole + 1 - first))
        )
        return run_lengths((*self.extra_events, *steps))

    @property
    def extra_events(self) -> Envelope:
        """What controllers have released beside the steps."""
        return tuple(
            run for controller in self.controllers for run in controller.extra_events(self.steps)
        )

    def _events(self, first: int, steps: int) -> Envelope:
        """The events of so many steps from the ``first`` on, all with the same noise."""
        paid, period = self.sampling.steps_per_event, self.query.period
        if paid > 1 or period == 1:
            return (Repeated(self.event_at(first), steps // paid),)
        cycle = [
            Repeated(self.event_at(step), 1) for step in range(first, first + min(period, steps))
        ]
        whole, rest = divmod(steps, len(cycle))
        return run_lengths((*run_lengths(cycle) * whole, *cycle[:rest]))

    def guard(self) -> Guard:
        """Return who decides, before any record is read, whether the next step may be taken.

        A plan whose own first step is refused is an error here, before there is a ledger; and so is
        one that cannot pay for what is released beside its steps.
        """
        if self.filter is None:
            if self.adaptive:
                names = " and ".join(
                    controller.tag for controller in self.controllers if controller.adaptive
                )
                raise InvalidArgument(
                    f"The plan's {names} chooses the noise of a step from outputs, so that no list "
                    "of steps can be registered before them. Declare a filter: "
                    ".calibrate(epsilon, delta) finds one, .under(filter) takes yours."
                )
            return EnvelopeGuard(self.envelope, self.budget, self.relation)
        tried = self.filter.guard(self.relation)
        for run in (*self.extra_events, Repeated(self.event, 1)):
            tried.admit(run.event, run.times)
            tried.record(run.event, run.times)
        return self.filter.guard(self.relation)

    def under(self, filter: Filter) -> Self:
        """Return the same plan, whose ledger declares ``filter`` in the place of a budget and of
        the list of steps.

        *Formal guarantee*: that of the filter, whatever is recorded: the steps of this plan, of
        plans that are added to the ledger later, and steps that were chosen from outputs and are
        marked as adaptive. The filter may stop the run before its last step.

        >>> from dpfy.accounting import RenyiFilter
        >>> plan = dpsgd(rate=0.01, divisor=600, steps=100, noise_multiplier=1.0)
        >>> plan = plan.under(RenyiFilter.tuned(epsilon=2.0, delta=1e-5, to=plan.envelope))
        >>> Plan.from_json(plan.to_json()) == plan
        True
        """
        return replace(self, filter=filter, budget=None)

    def calibrate(self, epsilon: float, delta: float | Literal["auto"]) -> Self:
        """Return the same plan with the least noise whose claimed ε stays within ``epsilon`` at
        ``delta``.

        ``delta="auto"`` is 1/records^1.1, where records counts the units of privacy. A noise
        schedule is scaled as a whole. Where controllers choose the noise, the plan is put under the
        Rényi filter of ``epsilon`` and ``delta`` instead, and begins with the noise at which all
        steps would pass, were it never lowered.
        """
        _validate.epsilon(epsilon)
        budget = Budget(
            float(epsilon), self._auto_delta() if delta == "auto" else _validate.delta(delta)
        )

        def envelope(noise_multiplier: float) -> Envelope:
            planned = replace(self, noise_multiplier=noise_multiplier, filter=None).envelope
            return tuple(Repeated(as_fixed(run.event), run.times) for run in planned)

        noise_multiplier = calibrate_envelope(
            envelope,
            epsilon=budget.epsilon,
            delta=budget.delta,
            relation=self.relation,
            method="rdp" if self.adaptive else "pld",
        )
        if not self.adaptive:
            return replace(self, noise_multiplier=noise_multiplier, budget=budget)
        rule = RenyiFilter.tuned(
            budget.epsilon, budget.delta, envelope(noise_multiplier), self.relation
        )
        return replace(self, noise_multiplier=noise_multiplier, filter=rule)

    def _auto_delta(self) -> float:
        if self.records is None:
            raise InvalidArgument(
                "delta='auto' is 1/records^1.1; declare records=…, or give delta a value."
            )
        delta = self.records**-1.1 if self.records > 1 else 0.5
        sys.stdout.write(f"delta='auto': delta = {self.records}^-1.1 = {delta:.4g}\n")
        return delta

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        budget = self.budget and {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        # A header without these stays as it was.
        more = {
            "filter": self.filter and self.filter.to_json(),
            "controllers": [controller.to_json() for controller in self.controllers],
            "noise_schedule": self.noise_schedule and self.noise_schedule.to_json(),
        }
        return {
            "sampling": self.sampling.to_json(),
            "query": self.query.to_json(),
            "steps": self.steps,
            "divisor": self.divisor,
            "noise_multiplier": self.noise_multiplier,
            "records": self.records,
            "budget": budget,
            "unit": str(self.unit),
            "relation": str(self.relation),
            **{name: value for name, value in more.items() if value},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the plan that :meth:`to_json` wrote."""
        budget, rule, schedule = (
            value.get("budget"),
            value.get("filter"),
            value.get("noise_schedule"),
        )
        try:
            return cls(
                **{
                    **value,
                    "sampling": Policy.from_json(value.get("sampling")),
                    "query": _query(value.get("query")),
                    "budget": Budget(**budget) if budget else None,
                    "unit": Unit(value["unit"]),
                    "relation": Relation(value["relation"]),
                    "filter": Filter.from_json(rule) if rule else None,
                    "controllers": tuple(map(Controller.from_json, value.get("controllers", ()))),
                    "noise_schedule": Schedule.from_json(schedule) if schedule else None,
                }
            )
        except (TypeError, KeyError) as error:
            raise InvalidArgument(
                f"Expected a plan written by Plan.to_json; {error} does not fit."
            ) from None


def _query(value: object) -> Query:
    query = Fact.from_json(value)
    if not isinstance(query, Query):
        raise InvalidArgument("Expected the plan's query to be a 'query'.")
    return query


def steps_per_epoch_of(sampling: Policy, steps: int) -> int:
    """How many steps see each record once in expectation."""
    return max(1, round(1 / sampling.rate)) if sampling.rate > 0 else steps
