"""Individual filters: every record has a filter of its own, and leaves when that is used up.

A record of small gradients costs itself little in a step, and may take part for longer than one of
large gradients, under the same limit for both. The limit is the guarantee; what a record has spent
of it is as private as the record. The proof is in ``docs/proofs/individual-filter.md``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Self

from dpfy import _validate
from dpfy.accounting.calibrate import calibrate_noise
from dpfy.accounting.filters import (
    Additive,
    Filter,
    GaussianFilter,
    Profile,
    RenyiFilter,
    description,
    left_out,
    step_cost,
)
from dpfy.accounting.guards import AdditiveGuard
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.ledger.events import Envelope, Event, Poisson, Policy, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import FilteredPoisson
from dpfy.types import Relation

BUDGET = 2**40
"""The units in which records spend; all of them are the limit of a record's steps."""

_MOST_LEVELS = 2**12
_WITHIN = 1 - 1e-9  # of the μ that is calibrated: the filter widens its limit by less


@dataclass(frozen=True)
class IndividualFilter(Filter, tag="individual_filter"):
    """Let every record take part until its own steps have used up a filter, and never again.

    At a refresh every record gets a bound from its present gradient: ``slack`` times its norm,
    rounded up to a whole number of ``levels`` of the clip bound. It is clipped to this bound until
    the next refresh, and each step costs it what a Gaussian sum of this bound costs, whether it is
    drawn or not.

    *Formal guarantee*: that of ``each``, for every record, under adding, removing or setting to
    zero one record, whatever the records are and however many steps there are.

    *Assumes* of a run that bounds and sums of a record follow from this record and from earlier
    outputs, and that a record that has left changes no bit of a step, as those of
    :func:`dpfy.privatize` do; and that nothing about single records leaves.

    Args:
        each: The filter of every record: one that has a single limit.
        refresh_epochs: The number of epochs for which bounds are kept, at least 1.
        slack: The factor by which a gradient may grow before it is clipped, at least 1.
        levels: The number of different bounds, from 1 to 4096.
        aside: The part of each record's budget that is kept for releases besides steps, which cost
            all records alike; at least 0 and below 1.

    Raises:
        InvalidArgument: An argument is out of its range.

    Reference: the theorem of docs/proofs/individual-filter.md, after Feldman & Zrnic 2021 and, for
    full batches, Koskela, Tobaben & Honkela 2023.

    >>> rule = IndividualFilter(GaussianFilter(mu=1.0), levels=4)
    >>> step = Sampled(FilteredPoisson(1.0), (SumQuery(1.0, 4.0),))
    >>> [round(BUDGET / cost) for cost in rule.costs(step)[1:]]
    [256, 64, 28, 16]
    """

    title: ClassVar[str] = "per-record filter"
    reference: ClassVar[str] = "Feldman & Zrnic 2021; Koskela, Tobaben & Honkela 2023"
    remark: ClassVar[str] = (
        "Individual filter: every record was dropped when its own budget was used. How many were, "
        "and what any record has spent, is private and not recorded; the share that is read off is "
        "that of a record at the clip bound in every step."
    )

    each: Additive
    refresh_epochs: int = 1
    slack: float = 1.25
    levels: int = 32
    aside: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.each, Additive) or len(self.each.limits) != 1:
            raise InvalidArgument(
                "Expected the filter of each record to have a single limit: a RenyiFilter of one "
                f"order, a GaussianFilter or a ZcdpFilter, got {self.each!r}."
            )
        _validate.count("refresh_epochs", self.refresh_epochs)
        _validate.count("levels", self.levels)
        _validate.real("levels", self.levels, 1, _MOST_LEVELS)
        slack = _validate.real("slack", self.slack, 1, math.inf, open_high=True)
        aside = _validate.real("aside", self.aside, 0, 1, open_high=True)
        object.__setattr__(self, "slack", slack)
        object.__setattr__(self, "aside", aside)

    @classmethod
    def tuned(
        cls,
        epsilon: float,
        delta: float,
        to: Envelope,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        *,
        refresh_epochs: int = 1,
        slack: float = 1.25,
        levels: int = 32,
        aside: float = 0.0,
    ) -> Self:
        """Return the filter at (ε, δ) that affords most of the steps expected in ``to``.

        Full batches are counted exactly, by Gaussian differential privacy; samples at the one
        Rényi order that suits a record at the clip bound. Both are fixed by public numbers.

        Args:
            epsilon: ε, above 0.
            delta: δ, between 0 and 1, both excluded.
            to: The steps expected.
            relation: The neighbouring relation; adding or removing one record by default.
            refresh_epochs: As of the class.
            slack: As of the class.
            levels: As of the class.
            aside: As of the class.

        Returns:
            The filter.

        Raises:
            InvalidArgument: An argument is out of its range.
            UnsupportedEvent: An event has no rule.

        >>> step = Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),)), 500)
        >>> IndividualFilter.tuned(2.0, 1e-5, to=(step,)).each.orders
        (7.92,)
        """
        each: Additive
        if to and all(_on_all_records(run.event) for run in to):
            noise = calibrate_noise(epsilon=epsilon, delta=delta, rate=1.0, steps=1)
            each = GaussianFilter(_WITHIN / noise)
        else:
            each = RenyiFilter.tuned(epsilon, delta, to, relation)
        return cls(each, refresh_epochs, slack, levels, aside)

    @property
    def rewards_sampling(self) -> bool:  # type: ignore[override]
        """Whether the filter of each record does."""
        return self.each.rewards_sampling

    @property
    def numerical_delta(self) -> float:  # type: ignore[override]
        """That of the filter of each record."""
        return self.each.numerical_delta

    @property
    def limit(self) -> Fraction:
        """What the steps of one record may cost."""
        return Fraction(self.each.limits[0]) * (1 - Fraction(self.aside))

    def sampling_for(self, policy: Policy) -> Policy:
        """Return the policy that leaves records out, for one that draws each by itself."""
        return FilteredPoisson(policy.rate) if isinstance(policy, Poisson) else policy

    def guard(self, relation: Relation | str = Relation.ADD_OR_REMOVE_ONE) -> "IndividualGuard":
        """Return a guard that admits steps in which records leave, and other releases if any."""
        relation = Relation(_validate.choice("relation", relation, tuple(Relation)))
        if relation is Relation.REPLACE_ONE:
            raise InvalidArgument(REPLACED)
        return IndividualGuard(self, relation)

    def profile(self, method: str, relation: Relation, accuracy: float) -> Profile:
        """Return what the limit of one record implies."""
        return self.each.profile(method, relation, accuracy)

    def costs(
        self,
        step: Event,
        allowance: float = 0.0,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ) -> tuple[int, ...]:
        """Return what a step costs a record of each level, in units of which a record has BUDGET.

        Args:
            step: The event of the step.
            allowance: The part of the sum's sensitivity that is for arithmetic, which a record
                moves whatever its bound is; from 0 to 1.
            relation: The neighbouring relation.

        Returns:
            The costs of levels 0 to ``levels``, rounded up; more than BUDGET if nothing pays for
            it. A record of level 0 takes no part, and pays nothing.

        Raises:
            InvalidArgument: ``step`` is no step of a run under an individual filter.
        """
        if not leaves_records_out(step):
            raise InvalidArgument(
                "Expected a step with one Gaussian sum and filtered_poisson sampling, got "
                f"{step.tag!r}."
            )
        return _costs(self, step, allowance, relation)

    def spent(self, events: Iterable[Repeated], relation: Relation) -> int:
        """Return what steps cost a record that was at the clip bound in all of them, in units."""
        return sum(
            run.times * self.costs(run.event, 0.0, relation)[-1]
            for run in events
            if leaves_records_out(run.event)
        )

    def epsilon_of(self, units: int, delta: float) -> float:
        """Return the ε at ``delta`` of a record that has spent some units: a reading, and private.

        *Formal guarantee*: none. What a record has spent depends on its data, and only the limit
        holds whatever they are.

        Args:
            units: The units spent, from 0 to BUDGET.
            delta: δ, between 0 and 1, both excluded.

        Returns:
            The ε that the same costs would have, had they been fixed in advance.
        """
        share = float(Fraction(units, BUDGET) * (1 - Fraction(self.aside)))
        rest = _validate.delta(delta) - self.each.set_aside
        if units == 0:
            return 0.0
        return self.each.profile_of(share).epsilon(rest).upper if rest > 0 else math.inf


REPLACED = (
    "An individual filter is for adding, removing or setting to zero one record; a record that "
    "replaces another has other bounds and leaves at another step, for which there is no proof. "
    "Declare relation='add_or_remove_one' or 'zero_out'."
)
"""Why individual filters have no guarantee for replaced records."""


class IndividualGuard:
    """Guard that admits all steps that leave records out, and other releases within what is aside.

    A step needs no limit: the run leaves out the records that it would cost too much. Releases that
    leave nobody out are charged to all records, and have a part of the budget of their own.

    Args:
        rule: The filter.
        relation: The neighbouring relation.

    >>> guard = IndividualFilter(GaussianFilter(mu=0.1)).guard()
    >>> guard.admit(Sampled(FilteredPoisson(1.0), (SumQuery(1.0, 1.0),)), 1000)
    """

    def __init__(self, rule: IndividualFilter, relation: Relation) -> None:
        self._rule, self._relation, self._spent = rule, relation, 0
        self._others = AdditiveGuard(
            description(rule, relation),
            (math.nextafter(rule.aside * rule.each.limits[0], 0.0),),
            lambda event: step_cost(rule.each, event, relation),
            rule.each.set_aside,
            lambda event: event.numerical_delta + left_out(rule.each, event, relation),
        )

    @property
    def used(self) -> float:
        """The share that a record at the clip bound has spent of its steps, at most 1."""
        return min(1.0, self._spent / BUDGET)

    def describe(self) -> dict[str, Any]:
        """Return what was declared, as plain JSON values."""
        return self._others.describe()

    def admit(self, event: Event, times: int) -> None:
        """Raise unless the run leaves records out of ``event``, or what is aside pays for it."""
        if leaves_records_out(event):
            if math.isinf(_cost_at(self._rule, event, 1.0, self._relation)):
                raise BudgetExhausted(
                    "A step without noise costs every record more than any filter has. Nothing was "
                    "read; add noise."
                )
            return
        if self._rule.aside == 0:
            raise BudgetExhausted(
                f"A {event.tag!r} that leaves no record out costs all records alike, and this "
                "individual filter has set nothing aside for it. Nothing was read; declare aside= "
                "when the ledger is created."
            )
        self._others.admit(event, times)

    def record(self, event: Event, times: int) -> None:
        """Count ``times`` more of ``event``; a negative number hands them back."""
        if leaves_records_out(event):
            self._spent += times * self._cost(event)
        else:
            self._others.record(event, times)

    def _cost(self, event: Event) -> int:
        return self._rule.costs(event, 0.0, self._relation)[-1]


def leaves_records_out(event: Event) -> bool:
    """Tell whether an event is a step from which a run leaves out records that have no budget left.

    It has one Gaussian sum: nothing else is bounded by a record's own bound.
    """
    return (
        isinstance(event, Sampled)
        and isinstance(event.policy, FilteredPoisson)
        and len(event.queries) == 1
        and isinstance(event.queries[0], SumQuery)
        and event.numerical_delta == 0
    )


def _on_all_records(event: Event) -> bool:
    return isinstance(event, Sampled) and event.policy.rate == 1


@lru_cache(maxsize=1024)
def _costs(
    rule: IndividualFilter, event: Event, allowance: float, relation: Relation
) -> tuple[int, ...]:
    """Return the costs of all levels in whole units, rounded up."""
    shares = (level / rule.levels for level in range(1, rule.levels + 1))
    exposed = (min(1.0, (share + allowance * (1 - share)) * (1 + 2.0**-50)) for share in shares)
    costs = (_cost_at(rule, event, share, relation) for share in exposed)
    return (
        0,
        *(
            BUDGET + 1
            if math.isinf(cost)
            else min(BUDGET + 1, math.ceil(Fraction(cost) * BUDGET / rule.limit))
            for cost in costs
        ),
    )


def _cost_at(rule: IndividualFilter, event: Event, share: float, relation: Relation) -> float:
    """Return what a step costs a record whose bound is a share of the declared one."""
    assert isinstance(event, Sampled) and isinstance(event.queries[0], SumQuery)
    query = event.queries[0]
    own = SumQuery(query.l2_bound * share, query.stddev)
    return step_cost(rule.each, Sampled(Poisson(event.policy.rate), (own,)), relation)[0]
