"""Events that hold other events: several in a row, and several on parts of the data that have no
record in common.
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
    """``events``, each as often as ``times`` says, all on the same data: a run, seen as one event.

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

    @classmethod
    def of(cls, envelope: Iterable[Repeated]) -> Self:
        """Return what an envelope holds as one event."""
        runs = run_lengths(envelope)
        return cls(tuple(run.event for run in runs), tuple(run.times for run in runs))

    @property
    def envelope(self) -> Envelope:
        """The events and how often each happens."""
        return tuple(
            Repeated(event, count) for event, count in zip(self.events, self.times, strict=True)
        )

    @property
    def numerical_delta(self) -> float:
        """The sum of those of the events, rounded up."""
        return _up(
            math.fsum(
                event.numerical_delta * count
                for event, count in zip(self.events, self.times, strict=True)
            )
        )


@dataclass(frozen=True)
class Parallel(Event, tag="parallel"):
    """``parts``, each on the records of one part of the data; no record is in two.

    Which part a record is in follows from a public rule and from that record alone. ``moves`` says
    that replacing a record can put it into another part, as when the rule looks at its values; it
    cannot if parts go by public places.
    """

    parts: tuple[Event, ...]
    moves: bool = True

    def __post_init__(self) -> None:
        fixed(self.parts)
        if not self.parts:
            raise InvalidArgument("Expected at least one part.")
        if not isinstance(self.moves, bool):
            raise InvalidArgument(f"Expected moves={self.moves!r} to be True or False.")

    @property
    def numerical_delta(self) -> float:
        """The sum of the two largest of the parts: one record is in at most two, before and after
        it is replaced.
        """
        return _up(math.fsum(sorted(part.numerical_delta for part in self.parts)[-2:]))


def fixed(events: Iterable[object]) -> None:
    """Refuse what is no event, and steps that were chosen from outputs: a wrapping event is
    declared before them.
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
    return min(1.0, value * (1 + 1e-12))
