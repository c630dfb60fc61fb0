"""Scopes: parts of the work that one event of the ledger has paid for in advance.

The wrapping event is reserved once, durably, before anything inside runs. Code inside gets a ledger
of its own, which admits exactly what was declared, lives in memory and leaves no line in the outer
ledger.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from types import TracebackType
from typing import Self

from dpfy import _validate
from dpfy.errors import BudgetExhausted, LedgerMismatch
from dpfy.ledger import sealed
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import Envelope, Event, Repeated
from dpfy.ledger.guard import Guard
from dpfy.ledger.journal import Header, Journal
from dpfy.ledger.ledger import Ledger
from dpfy.ledger.selection import Selected
from dpfy.ledger.store import MemoryStore

_SECRET_KEYS = ("os", "operating system")


class Scope(Ledger):
    """A ledger inside another one, which admits the declared events in their order and no others.

    *Formal guarantee*: what is reserved here was paid for, durably, by the event of the outer
    ledger.
    """

    def __init__(self, outer: Ledger, declared: Event) -> None:
        outer.require_opener()
        store = MemoryStore()
        super().__init__(store, Journal(store.name))
        self._outer = outer
        self._declared: Envelope = (
            declared.envelope if isinstance(declared, Composed) else (Repeated(declared, 1),)
        )
        self._ends = list(accumulate(run.times for run in self._declared))

    @property
    def durable(self) -> bool:
        """Whether the event that pays for the scope survives the process."""
        return self._outer.durable

    @property
    def anchored(self) -> bool:
        """Whether an anchor keeps a second copy of the outer ledger's head."""
        return self._outer.anchored

    def register(self, guard: Guard | None, header: Header) -> None:
        """Declare what runs here, for the unit and relation of the outer ledger.

        Raises:
            LedgerMismatch: if unit or relation differ, if keys are less secret than the outer
                ledger says, or if the outer ledger is strict and this run is not.
        """
        outer = self._outer.header
        if outer is not None and (outer.unit, outer.relation) != (header.unit, header.relation):
            raise LedgerMismatch(
                f"The outer ledger is for the unit {outer.unit} and the relation {outer.relation}, "
                f"this run for {header.unit} and {header.relation}. Declare the same in both."
            )
        if (
            outer is not None
            and outer.key_source in _SECRET_KEYS
            and header.key_source not in _SECRET_KEYS
        ):
            raise LedgerMismatch(
                "The outer ledger says that keys are secret, and this run's are not. Begin the "
                f"outer ledger with key_source={header.key_source!r}."
            )
        if outer is not None and outer.strict and not header.strict:
            raise LedgerMismatch(
                "The outer ledger is strict, and this run is not. Give the run strict=True."
            )
        super().register(guard, header)

    def begin(self, event: Event, before: Callable[[str], None] = lambda scope: None) -> str:
        """Refuse, because an interruption would have to be charged where no line is left."""
        raise LedgerMismatch(
            "A selection cannot begin inside another scope. Begin it on the outer ledger."
        )

    def _check_fixed(self, event: Event) -> None:
        super()._check_fixed(event)
        place = bisect_right(self._ends, self.count)
        if place == len(self._declared):
            raise BudgetExhausted(
                f"All {self.count} steps that the outer ledger paid for are taken. Nothing was "
                "read."
            )
        if event != self._declared[place].event:
            raise LedgerMismatch(
                f"Step {self.count + 1} of the scope was declared as "
                f"{self._declared[place].event}, got {event}."
            )


def composition(ledger: Ledger, event: Composed) -> Scope:
    """Reserve a whole run as one event and return the ledger for it.

    *Formal guarantee*: the run costs at most ``event``, wherever it stops. An interrupted run is
    paid for and cannot be continued, because it is not known how much of the event it used.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),))
    >>> with Ledger.in_memory() as ledger:
    ...     run = composition(ledger, Composed((step,), (2,)))
    ...     run.reserve(step)
    >>> ledger.count, run.count
    (1, 1)
    """
    ledger.reserve(event)
    return Scope(ledger, event)


def parallel(ledger: Ledger, event: Parallel) -> tuple[Scope, ...]:
    """Reserve runs on disjoint parts of the data as one event; return one ledger for each part.

    *Assumes* that the run of a part sees the records of that part only, and that parts follow from
    a public rule.
    """
    ledger.reserve(event)
    return tuple(Scope(ledger, part) for part in event.parts)


class Selection:
    """Repeat and select: run a secret number of trials and release only the best one's output.

    Iterate over the selection to get the ledger of each trial.

    *Formal guarantee*: the event is reserved before the number of trials is drawn, and no line of
    the ledger contains the number. If the block ends after the last trial, it costs ``event`` and
    nothing more. If the block or the process ends earlier, every trial is charged as if it had been
    released, because it may have been seen.

    *Assumes* that ``draw`` draws from ``event.trials`` with a secret key, and what
    :class:`~dpfy.ledger.selection.Selected` does: do not print, save or time trials.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> from dpfy.ledger.selection import NegativeBinomialTrials
    >>> step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),))
    >>> event = Selected(step, NegativeBinomialTrials.with_mean(10.0))
    >>> with Ledger.in_memory() as ledger, Selection(ledger, event, draw=lambda: 3) as trials:
    ...     for trial in trials:
    ...         trial.reserve(step)
    >>> ledger.uses == (Repeated(event, 1),)
    True
    """

    def __init__(self, ledger: Ledger, event: Selected, draw: Callable[[], int]) -> None:
        self._ledger = ledger
        self._event = event
        self._draw = draw
        self._left = -1

    def __enter__(self) -> Self:
        path = self._ledger.path
        self._scope = self._ledger.begin(
            self._event, before=lambda scope: sealed.remember(path, scope, None)
        )
        try:
            self._trials = _validate.count("trials", self._draw(), minimum=0)
            sealed.remember(path, self._scope, self._trials)
        except BaseException:
            self._ledger.end(self._scope)  # nothing has run
            sealed.forget(path, self._scope)
            raise
        self._left = self._trials
        return self

    def __iter__(self) -> Iterator[Scope]:
        while self._left > 0:
            yield Scope(self._ledger, self._event.run)
            self._left -= 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        whole = kind is None and self._left == 0
        self._ledger.end(
            self._scope, None if whole else sealed.interruption(self._event, self._trials)
        )
        sealed.forget(self._ledger.path, self._scope)
        if kind is None and not whole:
            raise LedgerMismatch(
                "A selection ended before its last trial, so each of them is charged as if it had "
                "been released. Run all trials; for fewer, draw from a law with a smaller mean."
            )
