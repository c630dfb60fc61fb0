"""A plan: everything public about a private training run, frozen before any record is read."""

import math
import sys
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, Self

from dpfy import _validate
from dpfy._notebook import html_of
from dpfy.accounting import EnvelopeGuard, Filter, RenyiFilter, calibrate_envelope
from dpfy.accounting.filters import as_fixed
from dpfy.errors import InvalidArgument
from dpfy.ledger import Guard
from dpfy.ledger.events import (
    Envelope,
    Event,
    Fact,
    ImportanceSchedule,
    Policy,
    Repeated,
    Sampled,
    run_lengths,
)
from dpfy.ledger.individual import Individual
from dpfy.ledger.streams import Strategy
from dpfy.mechanisms.controllers import Controller, Schedule
from dpfy.mechanisms.query import Query
from dpfy.plans.correlation import Alternative, row_of
from dpfy.plans.plan_checks import check_plan
from dpfy.types import Budget, GroupBudgets, Relation, Unit, budget_from_json


@dataclass(frozen=True)
class Plan:
    """A frozen declaration of what will run, how often, and what it may cost.

    A plan has public constants only: nothing in it is read off the data. :func:`dpfy.dpsgd`,
    :func:`dpfy.dpis`, :func:`dpfy.dpftrl` and :func:`dpfy.idpsgd` make plans.

    Args:
        sampling: The policy by which records are drawn.
        query: The bounded sums that a step releases.
        steps: The number of steps, at least 1.
        divisor: The public constant that the released sum is divided by: the expected batch size,
            above zero and at most 2¹⁹.
        noise_multiplier: The noise over the sensitivity, at least 0; None until :meth:`calibrate`.
        records: The declared size of the data set; it is never compared with the data.
        budget: The (ε, δ) that limits the steps of the plan, which are fixed; where groups of
            records are sampled or bounded in ways of their own, one for each group.
        unit: The unit of privacy, a record or a user.
        relation: The neighbouring relation.
        filter: The filter that limits everything that the ledger may record, including steps that
            are chosen from outputs. A plan has a budget or a filter.
        controllers: What chooses bounds, noise or coordinates of steps from releases; one each.
        noise_schedule: The factors of the noise multiplier over time, fixed in advance.
        correlation: The strategy by which the noise of steps is correlated; None if it is
            independent.
        alternatives: Ways to correlate noise, of which :meth:`calibrate` takes the best.

    Raises:
        InvalidArgument: If the parts contradict each other, or no rule accounts them.

    >>> from dpfy.plans import dpsgd
    >>> plan = dpsgd(records=60_000, batch_size=256, epochs=10, noise_multiplier=1.1)
    >>> plan.steps, plan.epochs, round(plan.rate, 6)
    (2344, 10, 0.004267)
    >>> Plan.from_json(plan.to_json()) == plan
    True
    """

    sampling: Policy
    query: Query
    steps: int
    divisor: float
    noise_multiplier: float | None = None
    records: int | None = None
    budget: Budget | GroupBudgets | None = None
    unit: Unit = Unit.RECORD
    relation: Relation = field(default=Relation.ADD_OR_REMOVE_ONE)
    filter: Filter | None = None
    controllers: tuple[Controller, ...] = ()
    noise_schedule: Schedule | None = None
    correlation: Strategy | None = None
    alternatives: tuple[Alternative, ...] = ()

    def __post_init__(self) -> None:
        check_plan(self)
        for controller in self.controllers:
            object.__setattr__(self, "query", controller.extend_query(self.query))

    def __repr__(self) -> str:
        noise = (
            "not calibrated"
            if self.noise_multiplier is None
            else f"noise multiplier {self.noise_multiplier:.4g}"
        )
        limit = self.budget or self.filter
        spent = (
            f", ε ≤ {limit.epsilon:g} at δ = {limit.delta:g}" if isinstance(limit, Budget) else ""
        )
        return (
            f"<Plan: {self.steps:,} steps in {self.epochs:,} epochs, {self.sampling.tag} sampling "
            f"at rate {self.rate:.4g}, clip {self.clip:g}, {noise}{spent}>"
        )

    def _repr_html_(self) -> str | None:
        return html_of(self)

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
        """The expected number of records in a step, as far as it was declared."""
        return self.rate * self.records if self.records is not None else self.divisor

    @property
    def clip(self) -> float:
        """The bound of each record's gradient; of all clipped sums together if it has several."""
        return self.query.bound

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps that see each record once in expectation, rounded."""
        return steps_per_epoch_of(self.sampling, self.steps)

    @property
    def epochs(self) -> int:
        """The number of epochs, the last of which may be a part of one."""
        return self.epoch_of(self.steps)

    def epoch_of(self, step: int) -> int:
        """Return the epoch, counted from 1, in which a step, counted from 1, begins.

        Where an epoch is no whole number of steps, epochs differ by one step in length.
        """
        return math.floor((step - 1) / self._epoch_length) + 1

    def last_step_of(self, epoch: int) -> int:
        """Return the last step of an epoch; both are counted from 1."""
        return min(self.steps, math.ceil(epoch * self._epoch_length))

    @property
    def _epoch_length(self) -> Fraction:
        """The length of an epoch in steps, exactly as the declared numbers make it."""
        if self.sampling.steps_per_event > 1:
            return Fraction(self.sampling.steps_per_event)
        if isinstance(self.sampling, Individual) and self.records is not None:
            return self.records / Fraction(self.divisor)  # rates are calibrated, and not exact
        # A batch size over a number of records, which the float is nearest to of all such fractions
        rate = Fraction(self.sampling.rate).limit_denominator(10**9)
        return 1 / rate if rate else Fraction(self.steps)

    @property
    def steps_per_event(self) -> int:
        """The number of steps that one event of the plan pays for."""
        return 1 if self.correlation is not None else self.sampling.steps_per_event

    @property
    def event(self) -> Event:
        """The event of the first step, and of every other that releases the same sums."""
        return self.event_at(1)

    def noise_at(self, step: int) -> float:
        """Return the planned noise multiplier of a step, counted from 1."""
        if self.noise_multiplier is None:
            raise InvalidArgument(
                "The plan has no noise_multiplier yet. Call .calibrate(epsilon=…, delta=…), or "
                "give noise_multiplier=…."
            )
        return self.noise_multiplier * (
            1.0 if self.noise_schedule is None else self.noise_schedule.at(step)
        )

    def event_at(self, step: int, noise: float = 1.0, rate: float | None = None) -> Event:
        """Return the event that a step, counted from 1, will record.

        Where an event pays for an epoch, it has all the sums of the epoch. ``noise`` is the factor
        by which a controller changed the planned noise; ``rate`` is its own, if it chose one.
        """
        if self.correlation is not None:
            return row_of(self.sampling, self.correlation, self.steps, self.noise_at(step))
        due = step if self.steps_per_event == 1 else 1
        queries = self.query.sum_queries(self.noise_at(step) * noise, due)
        policy = self.sampling.at(step)
        if rate is not None:
            policy = replace(policy, rate=rate)  # type: ignore[type-var]
        return Sampled(policy, queries, adaptive=self.adaptive)

    @property
    def envelope(self) -> Envelope:
        """The events of the plan in order, with releases besides steps first.

        They are fixed before the first step, unless controllers choose their noise.
        """
        paid = self.steps_per_event
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
        """The events of what controllers have released besides the steps."""
        return tuple(
            run for controller in self.controllers for run in controller.extra_events(self.steps)
        )

    def _events(self, first: int, steps: int) -> Envelope:
        """Return the events of ``steps`` steps from the ``first`` on, all with the same noise."""
        paid, period = self.steps_per_event, self.query.period
        if paid > 1 or period == 1:
            return (Repeated(self.event_at(first), steps // paid),)
        cycle = [
            Repeated(self.event_at(step), 1) for step in range(first, first + min(period, steps))
        ]
        whole, rest = divmod(steps, len(cycle))
        return run_lengths((*run_lengths(cycle) * whole, *cycle[:rest]))

    def guard(self) -> Guard:
        """Return the guard that decides, before any record is read, whether a step may be taken.

        Raises:
            BudgetExhausted: If the plan cannot pay for its first step, or for what is released
                besides its steps. It is raised before there is a ledger.
            InvalidArgument: If the noise is chosen from outputs and there is no filter.
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
        """Return the same plan under a filter, which replaces the budget and the list of steps.

        *Formal guarantee*: that of the filter, whatever is recorded: the steps of this plan, of
        plans that are added to the ledger later, and steps that were chosen from outputs and are
        marked as adaptive. The filter may stop the run before its last step. Under a
        :class:`~dpfy.accounting.IndividualFilter` records leave, and the run goes on.

        >>> from dpfy.accounting import RenyiFilter
        >>> from dpfy.plans import dpsgd
        >>> plan = dpsgd(rate=0.01, divisor=600, steps=100, noise_multiplier=1.0)
        >>> plan = plan.under(RenyiFilter.tuned(epsilon=2.0, delta=1e-5, to=plan.envelope))
        >>> Plan.from_json(plan.to_json()) == plan
        True
        """
        known = isinstance(filter, Filter)  # or the plan says what it expects
        sampling = filter.sampling_for(self.sampling) if known else self.sampling
        return replace(self, sampling=sampling, filter=filter, budget=None)

    def calibrate(self, epsilon: float, delta: float | Literal["auto"]) -> Self:
        """Return the same plan with the least noise that keeps the claimed ε within ``epsilon``.

        A noise schedule is scaled as a whole. Where controllers choose the noise, the plan is put
        under the Rényi filter of ``epsilon`` and ``delta`` instead, and begins with the noise at
        which all steps would pass, were it never lowered. Of several ways to correlate noise, the
        one with the least error at that noise is taken.

        Args:
            epsilon: The largest ε that may be claimed, above zero.
            delta: The δ of the claim, in (0, 1); ``"auto"`` is 1/records^1.1, where records counts
                the units of privacy.

        Returns:
            A plan with a noise multiplier and a budget, or a filter.

        Raises:
            InvalidArgument: If an argument is out of its range, ``"auto"`` has no records, or
                groups of records have an ε of their own each.
        """
        _validate.epsilon(epsilon)
        if isinstance(self.sampling, Individual):
            raise InvalidArgument(
                f"The plan has groups of records ({', '.join(self.sampling.names)}), and no one "
                "epsilon is meant for all of them. dpfy.idpsgd(groups={name: (epsilon, share)}) "
                "returns a plan that is calibrated for each."
            )
        budget = Budget(
            float(epsilon), auto_delta(self.records) if delta == "auto" else _validate.delta(delta)
        )
        if self.alternatives:
            return self._best_of_alternatives(budget)

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

    def _best_of_alternatives(self, budget: Budget) -> Self:
        """Return the calibrated plan with the least error of what the optimizer adds up."""

        def error(tried: tuple[Alternative, Self]) -> float:
            return tried[0].error * tried[1].noise_at(1)

        calibrated = (
            replace(self, sampling=each.sampling, correlation=each.strategy, alternatives=())
            for each in self.alternatives
        )
        plans = [each.calibrate(budget.epsilon, budget.delta) for each in calibrated]
        return min(zip(self.alternatives, plans, strict=True), key=error)[1]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        # A header without these stays as it was.
        more = {
            "filter": self.filter and self.filter.to_json(),
            "controllers": [controller.to_json() for controller in self.controllers],
            "noise_schedule": self.noise_schedule and self.noise_schedule.to_json(),
            "correlation": self.correlation and self.correlation.to_json(),
            "alternatives": [each.to_json() for each in self.alternatives],
        }
        return {
            "sampling": self.sampling.to_json(),
            "query": self.query.to_json(),
            "steps": self.steps,
            "divisor": self.divisor,
            "noise_multiplier": self.noise_multiplier,
            "records": self.records,
            "budget": self.budget and self.budget.to_json(),
            "unit": str(self.unit),
            "relation": str(self.relation),
            **{name: value for name, value in more.items() if value},
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the plan that :meth:`to_json` wrote."""
        budget, rule, schedule, correlation = (
            value.get("budget"),
            value.get("filter"),
            value.get("noise_schedule"),
            value.get("correlation"),
        )
        try:
            return cls(
                **{
                    **value,
                    "sampling": Policy.from_json(value.get("sampling")),
                    "query": _query(value.get("query")),
                    "budget": budget_from_json(budget) if budget else None,
                    "unit": Unit(value["unit"]),
                    "relation": Relation(value["relation"]),
                    "filter": Filter.from_json(rule) if rule else None,
                    "controllers": tuple(map(Controller.from_json, value.get("controllers", ()))),
                    "noise_schedule": Schedule.from_json(schedule) if schedule else None,
                    "correlation": Strategy.from_json(correlation) if correlation else None,
                    "alternatives": tuple(
                        map(Alternative.from_json, value.get("alternatives", ()))
                    ),
                }
            )
        except (TypeError, KeyError) as error:
            raise InvalidArgument(
                f"Expected a plan written by Plan.to_json; {error} does not fit."
            ) from None


def _query(value: object) -> Query:
    """Return the query that :meth:`Query.to_json` wrote."""
    query = Fact.from_json(value)
    if not isinstance(query, Query):
        raise InvalidArgument("Expected the plan's query to be a 'query'.")
    return query


def auto_delta(records: int | None) -> float:
    """Return 1/records^1.1 and print it.

    Raises:
        InvalidArgument: If the number of records is not declared.
    """
    if records is None:
        raise InvalidArgument(
            "delta='auto' is 1/records^1.1; declare records=…, or give delta a value."
        )
    delta = records**-1.1 if records > 1 else 0.5
    sys.stdout.write(f"delta='auto': delta = {records}^-1.1 = {delta:.4g}\n")
    return delta


def steps_per_epoch_of(sampling: Policy, steps: int) -> int:
    """Return the number of steps that see each record once in expectation."""
    return max(1, round(1 / sampling.rate)) if sampling.rate > 0 else steps
