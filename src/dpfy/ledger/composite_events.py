"""Events that contain other events.

:class:`Composed` holds several events in a row on the same data, :class:`Parallel` several events
on disjoint parts of the data.

Tests: tests/ledger/test_scopes.py.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, Event, Repeated, run_lengths


@dataclass(frozen=True)
class Composed(Event, tag="composed"):
    """Several events on the same data, each repeated: a whole run seen as one event.

    Args:
        events: the distinct events, in order. Rows of a stream are held without the name of their
            run: all that are equal are of one.
        times: the number of repetitions of each event, at least 1.

    Raises:
        InvalidArgument: if the lengths differ, if an event is adaptive, or if equal rows are of
            several runs.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> run = Composed.of([Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),)), 200)])
    >>> run.times, Event.from_json(run.to_json()) == run
    ((200,), True)
    """

    events: tuple[Event, ...]
    times: tuple[int, ...]

    def __post_init__(self) -> None:
        fixed(self.events)
        if len(self.times) != len(self.events):
            raise InvalidArgument(
                f"Expected one number of times for each of {len(self.events)} events, got "
                f"{len(self.times)}."
            )
        for count in self.times:
            _validate.count("times", count)
        rows = [event for event in self.events if event.at_most is not None]
        if len({(row, row.source) for row in rows}) > len({*rows}):
            raise InvalidArgument(
                "Expected the equal rows of a composed event to be of one run, got rows of "
                "several, or some that name none. Compose each run as an event of its own."
            )
        object.__setattr__(self, "events", tuple(event.unnamed for event in self.events))

    @classmethod
    def of(cls, envelope: Iterable[Repeated]) -> Self:
        """Return the contents of an envelope as one event."""
        runs = run_lengths(envelope)
        return cls(tuple(run.event for run in runs), tuple(run.times for run in runs))

    @property
    def envelope(self) -> Envelope:
        """The events and the number of repetitions of each."""
        return tuple(
            Repeated(event, count) for event, count in zip(self.events, self.times, strict=True)
        )

    @property
    def numerical_delta(self) -> float:
        """The sum of the numerical δ of all events, rounded up."""
        charged = (each for run in self.envelope for each in run.event.charged(run.times))
        return _up(math.fsum(run.event.numerical_delta * run.times for run in charged))


@dataclass(frozen=True)
class Parallel(Event, tag="parallel"):
    """One event on each of several disjoint parts of the data.

    A public rule assigns each record to a part, and looks at that record alone.

    Args:
        parts: one event per part; no record is in two parts. A row of a stream is held without
            the name of its run.
        moves: whether replacing a record can move it to another part, as when the rule looks at its
            values. It is False if parts are assigned by public position.

    Raises:
        InvalidArgument: if there is no part, or if a part is adaptive.
    """

    parts: tuple[Event, ...]
    moves: bool = True

    def __post_init__(self) -> None:
        fixed(self.parts)
        if not self.parts:
            raise InvalidArgument("Expected at least one part.")
        if not isinstance(self.moves, bool):
            raise InvalidArgument(f"Expected moves={self.moves!r} to be True or False.")
        object.__setattr__(self, "parts", tuple(part.unnamed for part in self.parts))

    @property
    def numerical_delta(self) -> float:
        """The sum of the two largest numerical δ of the parts, rounded up.

        One record is in at most two parts: one before it is replaced, and one after.
        """
        return _up(math.fsum(sorted(part.numerical_delta for part in self.parts)[-2:]))


def fixed(events: Iterable[object]) -> None:
    """Refuse values that are no events, and adaptive events.

    A wrapping event is declared in advance, so it cannot contain steps that were chosen from
    outputs.
    """
    for event in events:
        if not isinstance(event, Event):
            raise InvalidArgument(
                f"Expected events inside a wrapping event, got {type(event).__name__}."
            )
        if event.adaptive:
            raise InvalidArgument(
                "Expected events inside a wrapping event to be fixed in advance, got an adaptive "
                "step. Reserve it in a ledger that declares a filter."
            )


def _up(value: float) -> float:
    """Round up, to at most 1."""
    return min(1.0, value * (1 + 1e-12))
