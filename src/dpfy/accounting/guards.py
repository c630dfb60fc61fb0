"""The guard of a run that registered all its steps in advance."""

from typing import Any

from dpfy import _validate
from dpfy.accounting.guarantee import METHODS, account
from dpfy.errors import BudgetExhausted, LedgerMismatch
from dpfy.ledger.events import Envelope, Event, Repeated, run_lengths
from dpfy.types import Budget, Relation


class EnvelopeGuard:
    """Admits the events of a registered envelope, in order, up to its last step or to the budget.

    *Formal guarantee*: what it admits is a prefix of the envelope whose claimed ε is at most ``budget.epsilon``; a
    prefix of a list fixed in advance costs no more than the list, so stopping earlier is free.

    *Assumes* that the ledger asks before every step and tells it about every durable one.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> step = Sampled(Poisson(0.1), (SumQuery(1.0, 1.0),))
    >>> guard = EnvelopeGuard((Repeated(step, 2),), budget=None)
    >>> guard.admit(step, 2)
    >>> guard.limit
    2
    """

    def __init__(self, envelope: Envelope, budget: Budget | None,
                 relation: Relation | str = Relation.ADD_OR_REMOVE_ONE, method: str = "pld") -> None:
        self._envelope = run_lengths(envelope)
        self._budget = budget
        self._relation = Relation(_validate.choice("relation", relation, tuple(Relation)))
        self._method = _validate.choice("method", method, tuple(METHODS))
        self._total = sum(run.times for run in self._envelope)
        self.limit = self._total if budget is None else self._affordable(budget)
        self._spent = 0
        self._run, self._before = 0, 0  # the current run of the envelope, and the steps before it

    def describe(self) -> dict[str, Any]:
        """Return the guard's name and limits as plain JSON values."""
        budget = self._budget and {"epsilon": self._budget.epsilon, "delta": self._budget.delta}
        return {"name": "envelope", "steps": self._total, "limit": self.limit, "budget": budget,
                "relation": str(self._relation), "method": self._method}

    def admit(self, event: Event, times: int) -> None:
        """Raise unless ``times`` more of ``event`` are the next steps of the envelope and within the limit."""
        if self._spent + times > self.limit:
            reason = ("the budget would be exceeded" if self.limit < self._total
                      else "the plan registered no further step")
            raise BudgetExhausted(f"{self._spent} of {self.limit} steps are spent, {times} more were asked for: "
                                  f"{reason}. Nothing was read; begin a new ledger for a new plan.")
        current = self._envelope[self._run]
        if event != current.event:
            raise LedgerMismatch(f"Step {self._spent + 1} of the plan is {current.event}, got {event}.")
        if self._spent + times > self._before + current.times:
            raise BudgetExhausted(f"Only {self._before + current.times - self._spent} more of this event are planned "
                                  f"before another one, {times} were asked for. Reserve a shorter block.")

    def record(self, event: Event, times: int) -> None:
        """Count ``times`` more steps as spent; a negative number hands steps back."""
        self._spent += times
        while self._run > 0 and self._spent < self._before:
            self._run -= 1
            self._before -= self._envelope[self._run].times
        while self._run < len(self._envelope) and self._spent >= self._before + self._envelope[self._run].times:
            self._before += self._envelope[self._run].times
            self._run += 1

    def _affordable(self, budget: Budget) -> int:
        """The number of steps in the longest prefix whose claim is within budget; ε never falls as steps are added."""
        low, high = 0, self._total
        if self._claim(high, budget) <= budget.epsilon:
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._claim(middle, budget) <= budget.epsilon else (low, middle)
        return low

    def _claim(self, steps: int, budget: Budget) -> float:
        return account(self._prefix(steps), self._method, self._relation).claim(budget.delta)

    def _prefix(self, steps: int) -> Envelope:
        taken, left = [], steps
        for run in self._envelope:
            taken.append(Repeated(run.event, min(run.times, left)))
            left -= taken[-1].times
        return tuple(taken)
