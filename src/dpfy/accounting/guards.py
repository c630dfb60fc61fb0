"""Guards: whether the next step may be taken, decided before any record is read.

A decision takes constant time.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Protocol

from dpfy import _validate
from dpfy.accounting.grouped import events_of_group
from dpfy.accounting.guarantee import METHODS, account
from dpfy.accounting.to_pairs import noise_multiplier
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerMismatch, UnsupportedEvent
from dpfy.ledger.events import Envelope, Event, Poisson, Repeated, Sampled, SumQuery, run_lengths
from dpfy.ledger.guard import Guard
from dpfy.ledger.individual import group_names
from dpfy.types import Budget, GroupBudgets, Relation


class _Walk:
    """A position in an envelope, moved in constant time."""

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = run_lengths(envelope)
        self.total = sum(run.times for run in self.envelope)
        self.spent = 0
        self._run, self._before = 0, 0  # the current run of the envelope, and the steps before it

    def following(self, steps: int) -> Iterator[Repeated]:
        """Yield the next ``steps`` of the envelope, or what is left of it."""
        run, left = self._run, self._before + self._times(self._run) - self.spent
        while steps > 0 and run < len(self.envelope):
            taken = min(steps, left)
            yield Repeated(self.envelope[run].event, taken)
            steps, run = steps - taken, run + 1
            left = self._times(run)

    def move(self, steps: int) -> None:
        """Go ``steps`` on, or back if negative."""
        self.spent += steps
        while self._run > 0 and self.spent < self._before:
            self._run -= 1
            self._before -= self._times(self._run)
        while self._run < len(self.envelope) and self.spent >= self._before + self._times(
            self._run
        ):
            self._before += self._times(self._run)
            self._run += 1

    def _times(self, run: int) -> int:
        return self.envelope[run].times if run < len(self.envelope) else 0


class EnvelopeGuard:
    """Guard that admits the events of a registered envelope, in order and within a budget.

    *Formal guarantee*: what it admits is a prefix of the envelope whose claimed ε is at most
    ``budget.epsilon``, for every group of records at most that of the group; a prefix of a list
    fixed in advance costs no more than the list, so stopping earlier is free.

    *Assumes* that the ledger asks before every step and tells it about every durable one.

    Args:
        envelope: The events, in the order in which they will run.
        budget: The ε and δ that may be spent, by every record or by those of each group; None for
            all of the envelope.
        relation: The neighbouring relation; adding or removing one record by default.
        method: "pld" (the default) or "rdp".

    Raises:
        InvalidArgument: ``relation`` or ``method`` is unknown, or the budget and the envelope name
            different groups.
        UnsupportedEvent: A step of the envelope is adaptive, or has no rule.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> step = Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),))
    >>> guard = EnvelopeGuard((Repeated(step, 2),), budget=None)
    >>> guard.admit(step, 2)
    >>> guard.limit
    2
    """

    def __init__(
        self,
        envelope: Envelope,
        budget: Budget | GroupBudgets | None,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        method: str = "pld",
    ) -> None:
        if any(run.event.adaptive for run in envelope):
            raise UnsupportedEvent(
                "An adaptive step is chosen from earlier outputs and cannot be registered before "
                "them. Declare a filter in the ledger's header, and open it with filter.guard()."
            )
        self._walk = _Walk(envelope)
        self._budget = budget
        self._relation = Relation(_validate.choice("relation", relation, tuple(Relation)))
        self._method = _validate.choice("method", method, tuple(METHODS))
        self.limit, self._first = self._limit()

    def describe(self) -> dict[str, Any]:
        """Return the guard's name and declared limits as plain JSON values.

        None of them was computed by an accountant.
        """
        return {
            "name": "envelope",
            "steps": self._walk.total,
            "budget": self._budget and self._budget.to_json(),
            "relation": str(self._relation),
            "method": self._method,
        }

    def admit(self, event: Event, times: int) -> None:
        """Raise unless ``times`` more of ``event`` are the next steps and within the limit."""
        spent = self._walk.spent
        if spent + times > self.limit:
            reason = (
                f"the budget{self._first} would be exceeded"
                if self.limit < self._walk.total
                else "the plan registered no further step"
            )
            raise BudgetExhausted(
                f"{spent} of {self.limit} steps are spent, {times} more were asked for: {reason}. "
                "Nothing was read; begin a new ledger for a new plan."
            )
        current = next(self._walk.following(times))
        if event != current.event:
            raise LedgerMismatch(f"Step {spent + 1} of the plan is {current.event}, got {event}.")
        if current.times < times:
            raise BudgetExhausted(
                f"Only {current.times} more of this event are planned before another one, {times} "
                "were asked for. Reserve a shorter block."
            )

    def record(self, event: Event, times: int) -> None:
        """Count ``times`` more steps as spent; a negative number hands steps back."""
        self._walk.move(times)

    def _limit(self) -> tuple[int, str]:
        """Return how many steps every group can afford, and whose budget is used up first."""
        if self._budget is None:
            return self._walk.total, ""
        if isinstance(self._budget, Budget):
            return self._affordable(self._walk.envelope, self._budget), ""
        envelope, budgets = self._walk.envelope, self._budget
        _check_groups(group_names(envelope), budgets.names)
        limits = {
            name: self._affordable(events_of_group(envelope, name), budgets.of(name))
            for name in budgets.names
        }
        first = min(limits, key=lambda name: limits[name])
        return limits[first], f" of group {first!r}"

    def _affordable(self, envelope: Envelope, budget: Budget) -> int:
        """Return the length of the longest prefix within budget; ε never falls with more steps."""
        walk = _Walk(envelope)

        def claim(steps: int) -> float:
            prefix = tuple(walk.following(steps))
            return account(prefix, self._method, self._relation).claim(budget.delta)

        low, high = 0, walk.total
        if claim(high) <= budget.epsilon:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if claim(middle) <= budget.epsilon else (low, middle)
        return low


def _check_groups(named: tuple[str, ...], budgeted: tuple[str, ...]) -> None:
    """Raise unless events and budgets name the same groups."""
    for name in budgeted:
        if name not in named:
            raise InvalidArgument(
                f"The budget names the group {name!r}, and no event does; events name "
                f"{', '.join(map(repr, named)) or 'no group'}."
            )
    for name in named:
        if name not in budgeted:
            raise InvalidArgument(
                f"The events name the group {name!r}, which has no budget; there is one for "
                f"{', '.join(map(repr, budgeted))}."
            )


class FilterGuard(Guard, Protocol):
    """The guard of a filter, which also knows how much of it is used."""

    @property
    def used(self) -> float:
        """The share of the filter that is spent; 1 is all of it."""


class AdditiveGuard:
    """Guard that admits steps while one of several running sums of costs is within its limit.

    *Formal guarantee*: the sums are exact, so they do not depend on the order of steps, on blocks
    that were handed back, or on how often the ledger was opened again; a refused step changes
    nothing.

    *Assumes* that ``cost`` bounds from above what one step costs, and is ∞ for what must never
    pass; and that ``mass`` is all of δ that a step adds beside its cost.

    Args:
        description: What was declared, as plain JSON values.
        limits: The limit of each sum.
        cost: The cost of a step in each of the sums.
        numerical_delta: The δ that is set aside for ``mass``; 0 by default.
        mass: The δ that a step adds beside its cost; its numerical δ by default.

    >>> step = Sampled(Poisson(1.0), (SumQuery(1.0, 2.0),))
    >>> guard = AdditiveGuard({"name": "at most 1"}, limits=(1.0,), cost=lambda event: (0.25,))
    >>> guard.record(step, 3)
    >>> guard.admit(step, 1)
    >>> guard.used
    0.75
    """

    def __init__(
        self,
        description: dict[str, Any],
        limits: tuple[float, ...],
        cost: Callable[[Event], tuple[float, ...]],
        numerical_delta: float = 0.0,
        mass: Callable[[Event], float] = lambda event: event.numerical_delta,
    ) -> None:
        self._description = description
        self._limits = limits
        self._cost, self._mass = cost, mass
        self._numerical_limit = numerical_delta
        self._spent: list[Fraction | float] = [Fraction(0)] * len(limits)
        self._numerical: Fraction | float = Fraction(0)

    @property
    def used(self) -> float:
        """The share of the limit that has most left."""
        return min(
            float(spent) / limit for spent, limit in zip(self._spent, self._limits, strict=True)
        )

    def describe(self) -> dict[str, Any]:
        """Return what was declared, as plain JSON values."""
        return self._description

    def admit(self, event: Event, times: int) -> None:
        """Raise unless ``times`` more of ``event`` keep one sum within its limit."""
        if _plus(self._numerical, self._mass(event), times) > self._numerical_limit:
            raise BudgetExhausted(
                f"The arithmetic of {times} more steps adds {times} times {self._mass(event):.3g} "
                "to delta, more than is left of what the filter sets aside "
                f"(numerical_delta={self._numerical_limit:g}). Nothing was read; declare more of "
                "it."
            )
        if all(
            after > limit
            for after, limit in zip(self._after(event, times), self._limits, strict=True)
        ):
            raise BudgetExhausted(
                f"{times} more of this step would exceed the filter, of which {self.used:.2%} are "
                "spent. Nothing was read; add more noise or stop."
            )

    def record(self, event: Event, times: int) -> None:
        """Add the cost of ``times`` more steps; a negative number hands them back."""
        self._spent = self._after(event, times)
        self._numerical = _plus(self._numerical, self._mass(event), times)

    def _after(self, event: Event, times: int) -> list[Fraction | float]:
        return [
            _plus(spent, cost, times)
            for spent, cost in zip(self._spent, self._cost(event), strict=True)
        ]


class DominationGuard:
    """Guard that admits steps which the committed step at their position dominates.

    A step is dominated if it has at most the rate and at least the noise.

    Args:
        description: What was declared, as plain JSON values.
        envelope: The committed steps.

    >>> guard = DominationGuard({}, (Repeated(Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),)), 1),))
    >>> guard.admit(Sampled(Poisson(0.1), (SumQuery(1.0, 0.9),)), 1)
    Traceback (most recent call last):
    dpfy.errors.BudgetExhausted: ...
    """

    def __init__(self, description: dict[str, Any], envelope: Envelope) -> None:
        self._description = description
        self._walk = _Walk(envelope)

    @property
    def used(self) -> float:
        """The share of the committed steps that were taken."""
        return self._walk.spent / self._walk.total if self._walk.total else 1.0

    def describe(self) -> dict[str, Any]:
        """Return what was declared, as plain JSON values."""
        return self._description

    def admit(self, event: Event, times: int) -> None:
        """Raise unless the next ``times`` committed steps all dominate ``event``."""
        if self._walk.spent + times > self._walk.total:
            raise BudgetExhausted(
                f"{self._walk.spent} of {self._walk.total} committed steps are spent, {times} more "
                "were asked for. Nothing was read; begin a new ledger."
            )
        for run in self._walk.following(times):
            if not dominates(run.event, event):
                raise BudgetExhausted(
                    f"Step {self._walk.spent + 1} is committed to {run.event}, which does not "
                    f"dominate {event}. Nothing was read; use at most its rate, at least its noise."
                )

    def record(self, event: Event, times: int) -> None:
        """Go on by ``times`` committed steps; a negative number hands them back."""
        self._walk.move(times)


def dominates(committed: Event, event: Event) -> bool:
    """Tell whether ``event`` is post-processing of ``committed``.

    It is if it has at most the rate, at least the noise, and no more numerical δ.

    Reference: ``docs/proofs/filters.md``, Lemma 4.
    """
    if not isinstance(committed, Sampled) or not isinstance(event, Sampled):
        return event == committed
    if not isinstance(committed.policy, Poisson) or not isinstance(event.policy, Poisson):
        return False
    if not all(isinstance(query, SumQuery) for query in (*committed.queries, *event.queries)):
        return event == committed
    return (
        event.policy.rate <= committed.policy.rate
        and noise_multiplier(event.queries) >= noise_multiplier(committed.queries)
        and event.numerical_delta <= committed.numerical_delta
    )


def _plus(sum_so_far: Fraction | float, cost: float, times: int) -> Fraction | float:
    """Add without rounding; what became infinite stays so, also when a block is handed back."""
    if math.isinf(sum_so_far) or math.isinf(cost):
        return math.inf
    return sum_so_far + times * Fraction(cost)
