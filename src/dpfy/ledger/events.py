"""Events: frozen facts that a machine without torch can read back years later.

An event states exactly what its cost depends on and nothing else: never an ε, never a value derived
from the records. Queries are in units of their bound, so a run whose clip bound changes while noise
stays proportional to it is one event, repeated. The realised scale is an annotation of the ledger
line, not part of the event.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from dpfy import _validate
from dpfy.errors import InvalidArgument

_FACTS: dict[str, type["Fact"]] = {}


class Fact:
    """A frozen dataclass with a tag, a JSON round trip and a content address.

    >>> Fact.from_json(Poisson(rate=0.01).to_json())
    Poisson(rate=0.01)
    """

    tag: ClassVar[str]

    def __init_subclass__(cls, tag: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if tag is not None:
            cls.tag = tag
            _FACTS[tag] = cls

    def to_json(self) -> dict[str, Any]:
        """Return the fact as plain JSON values."""
        values = {field.name: _encode(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        return {"type": self.tag, **values}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the fact that :meth:`to_json` wrote; unknown types and fields are errors."""
        if not isinstance(value, dict) or value.get("type") not in _FACTS:
            known = ", ".join(sorted(_FACTS))
            raise InvalidArgument(
                f"Expected an object whose 'type' is one of {known}, got {_shorten(value)}."
            )
        fact = _FACTS[value["type"]]
        try:
            result = fact(**{name: _decode(item) for name, item in value.items() if name != "type"})
        except TypeError:
            names = ", ".join(field.name for field in fields(fact))  # type: ignore[arg-type]
            raise InvalidArgument(
                f"Expected a {fact.tag!r} with the fields {names}, got {_shorten(value)}."
            ) from None
        if not isinstance(result, cls):
            raise InvalidArgument(f"Expected a {cls.__name__}, got a {fact.tag!r}.")
        return result

    @property
    def address(self) -> str:
        """The content address: equal facts, and only they, have equal addresses."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()[:32]


class Policy(Fact):
    """A rule that chooses the records of a step.

    ``rate`` is the expected fraction of the records in one step.
    """

    rate: float

    @property
    def steps_per_event(self) -> int:
        """The number of steps that one event pays for.

        It is the steps of an epoch for policies in which participation in one step depends on
        others.
        """
        return 1

    def at(self, step: int) -> "Policy":
        """Return the policy of a step, counted from 1; only schedules differ from step to step."""
        return self


class RecordedQuery(Fact):
    """A bounded function of one sample, released with noise."""


class Event(Fact):
    """One release, or something else that costs privacy."""

    @property
    def numerical_delta(self) -> float:
        """The δ that the arithmetic of the release adds; 0 by default."""
        return 0.0

    @property
    def adaptive(self) -> bool:
        """Whether the event was chosen from earlier outputs; False by default."""
        return False

    @property
    def at_most(self) -> int | None:
        """How often the event can happen in one ledger; None, the default, for any number."""
        return None

    @property
    def source(self) -> str:
        """The run that the event is of, if it is paid for together with others of that run only."""
        return ""

    @property
    def unnamed(self) -> "Event":
        """The event without the name of its run.

        Events that hold others hold them so: they are equal only if they cost the same.
        """
        return self

    def charged(self, times: int) -> "Envelope":
        """Return what the event costs if it happens ``times`` times: itself so often, by default.

        Events that are paid for together, as the rows of a stream are, cost something else.
        """
        return (Repeated(self, times),)


@dataclass(frozen=True)
class Poisson(Policy, tag="poisson"):
    """Poisson sampling: each record is included independently with probability ``rate``.

    Args:
        rate: inclusion probability, in [0, 1].
    """

    rate: float

    def __post_init__(self) -> None:
        # Equal facts must have equal addresses: 1 and 1.0 are written differently.
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))


@dataclass(frozen=True)
class FixedSize(Policy, tag="fixed_size"):
    """Fixed-size sampling: a uniformly random subset, drawn afresh for every step.

    Args:
        size: the exact number of records in the subset.
        records: the number of records to draw from.
    """

    size: int
    records: int

    def __post_init__(self) -> None:
        _counts(self, "size", "records")

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The probability that one record is in the sample."""
        return self.size / self.records


@dataclass(frozen=True)
class TruncatedPoisson(Policy, tag="truncated_poisson"):
    """Poisson sampling with a largest batch.

    If more than ``capacity`` records are included, a uniformly random ``capacity`` of them stay.

    Args:
        rate: inclusion probability before truncation, in [0, 1].
        capacity: the largest number of records in a sample.
        records: the number of records to draw from.
    """

    rate: float
    capacity: int
    records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))
        _counts(self, "capacity", "records")


@dataclass(frozen=True)
class _Epochs(Policy):
    """Base of policies in which every record takes part once per event, which is an epoch.

    ``numerical_delta`` of such an event covers all its steps.
    """

    batch_size: int
    records: int

    def __post_init__(self) -> None:
        _counts(self, "batch_size", "records")

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The fraction of the records in a full batch."""
        return self.batch_size / self.records

    @property
    def steps_per_event(self) -> int:
        """The number of batches in an epoch."""
        return -(-self.records // self.batch_size)


@dataclass(frozen=True)
class Shuffled(_Epochs, tag="shuffled"):
    """Batches from a fresh uniformly random order of the records in every epoch.

    The last batch of an epoch may be smaller. One event is one epoch, in which every record takes
    part once. Accounting claims no amplification from the random order.

    Args:
        batch_size: the number of records in a full batch.
        records: the number of records in an epoch.
    """


@dataclass(frozen=True)
class Cyclic(_Epochs, tag="cyclic"):
    """Batches from the same public order of the records in every epoch.

    The last batch of an epoch may be smaller. One event is one epoch, in which every record takes
    part once.

    Args:
        batch_size: the number of records in a full batch.
        records: the number of records in an epoch.
    """


@dataclass(frozen=True)
class BallsInBins(Policy, tag="balls_in_bins"):
    """Each record draws one of the batches of an epoch, uniformly and independently.

    One event is one epoch, in which every record takes part once.

    Args:
        bins: the number of batches in an epoch.
        records: the number of records in an epoch.
    """

    bins: int
    records: int

    def __post_init__(self) -> None:
        for name in ("bins", "records"):
            _validate.count(name, getattr(self, name))

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The probability that one record is in one batch."""
        return 1 / self.bins

    @property
    def steps_per_event(self) -> int:
        """The number of batches in an epoch."""
        return self.bins


@dataclass(frozen=True)
class CyclicPoisson(Policy, tag="cyclic_poisson"):
    """Poisson sampling from the parts of the data in turn.

    Step i, counted from 0, draws each record whose place is i modulo ``parts``, independently, with
    probability ``chance``; no other record can be in it.

    Args:
        chance: inclusion probability of a record of the part whose turn it is, in [0, 1].
        parts: the number of parts.
        records: the number of records in all parts.
    """

    chance: float
    parts: int
    records: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "chance", _validate.real("chance", self.chance, 0, 1))
        _counts(self, "parts", "records")

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The expected fraction of all records in one step, if parts are equally large."""
        return self.chance / self.parts


@dataclass(frozen=True)
class Importance(Policy, tag="importance"):
    """Importance sampling: records take part independently, in proportion to gradient norms.

    Args:
        rate: the largest inclusion probability of a record, in [0, 1].
        jitter: privacy charge, as the μ of a Gaussian sum on all records, for what one record does
            to the acceptance coins and the rounding of others.
    """

    rate: float
    jitter: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))
        object.__setattr__(self, "jitter", _validate.positive("jitter", self.jitter))


@dataclass(frozen=True)
class ImportanceSchedule(Policy, tag="importance_schedule"):
    """Importance sampling in which the norm of contributions follows a schedule fixed in advance.

    Args:
        batch_size: the declared expected batch size.
        population: the declared number of records.
        ratios: the norm that all contributions have, in clip bounds, for each stretch of steps; the
            last one stays.
        length: the number of steps in a stretch.
        slack: how much more often a record is proposed than its last known norm asks for.
        floor: the smallest norm that a record counts with, in clip bounds.
        jitter: as of :class:`Importance`.

    Raises:
        InvalidArgument: if a ratio is too small for the batch size.
    """

    batch_size: float
    population: int
    ratios: tuple[float, ...]
    length: int
    slack: float
    floor: float
    jitter: float

    def __post_init__(self) -> None:
        for name in ("batch_size", "slack", "floor", "jitter"):
            object.__setattr__(self, name, _validate.positive(name, getattr(self, name)))
        for name in ("population", "length"):
            _validate.count(name, getattr(self, name))
        if not self.ratios:
            raise InvalidArgument("Expected a ratio for the first step.")
        object.__setattr__(
            self, "ratios", tuple(_validate.positive("ratio", ratio) for ratio in self.ratios)
        )
        if self.batch_size > min(self.ratios) * self.population:
            raise InvalidArgument(
                "Expected ratios of at least batch_size/records = "
                f"{self.batch_size / self.population:.4g}, got {min(self.ratios)!r}. Take smaller "
                "batches, or larger ratios."
            )

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The declared batch size over the declared number of records."""
        return self.batch_size / self.population

    def ratio_at(self, step: int) -> float:
        """Return the norm of the contributions to a step, counted from 1, in clip bounds."""
        return self.ratios[min((step - 1) // self.length, len(self.ratios) - 1)]

    def at(self, step: int) -> Importance:
        """Return the policy by which a step draws."""
        return Importance(self.rate / self.ratio_at(step), self.jitter)


@dataclass(frozen=True)
class SumQuery(RecordedQuery, tag="sum"):
    """A sum with Gaussian noise.

    Args:
        l2_bound: the largest L2 norm by which one record moves the sum.
        stddev: standard deviation of the noise in each coordinate.
        name: what the sum is of.
    """

    l2_bound: float
    stddev: float
    name: str = "gradient"

    def __post_init__(self) -> None:
        for name in ("l2_bound", "stddev"):
            object.__setattr__(
                self, name, _validate.real(name, getattr(self, name), 0, math.inf, open_high=True)
            )


@dataclass(frozen=True)
class LaplaceSum(RecordedQuery, tag="laplace"):
    """Numbers with Laplace noise.

    Args:
        l1_bound: the largest L1 norm by which one record moves the numbers.
        scale: scale of the noise on each number.
        name: what the numbers count.
    """

    l1_bound: float
    scale: float
    name: str = "count"

    def __post_init__(self) -> None:
        for name in ("l1_bound", "scale"):
            object.__setattr__(
                self, name, _validate.real(name, getattr(self, name), 0, math.inf, open_high=True)
            )


@dataclass(frozen=True)
class Sampled(Event, tag="sampled"):
    """One step: queries that are all answered on the same sample.

    Args:
        policy: the rule that draws the sample.
        queries: the queries that are answered on it.
        numerical_delta: what the arithmetic of the noise adds to δ; accountants subtract it before
            they claim an ε.
        adaptive: whether rate or noise multiplier was chosen from earlier outputs; only a filter
            can account for such a step.
    """

    policy: Policy
    queries: tuple[RecordedQuery, ...]
    numerical_delta: float = 0.0
    adaptive: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "numerical_delta", _validate.real("numerical_delta", self.numerical_delta, 0, 1)
        )
        if not isinstance(self.policy, Policy) or not all(
            isinstance(query, RecordedQuery) for query in self.queries
        ):
            raise InvalidArgument(
                "Expected a sampled event to hold one policy and a tuple of queries."
            )


@dataclass(frozen=True)
class NonPrivate(Event, tag="non_private"):
    """Something without any guarantee; it costs an infinite ε.

    Args:
        reason: why there is none.
    """

    reason: str


@dataclass(frozen=True)
class Repeated:
    """An event, and the number of times it was reserved in a row.

    Args:
        event: the event.
        times: the number of times, at least 0.
    """

    event: Event
    times: int

    def __post_init__(self) -> None:
        _validate.count("times", self.times, minimum=0)

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain JSON values."""
        return {"event": self.event.to_json(), "times": self.times}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the run that :meth:`to_json` wrote; a bare event counts once."""
        if isinstance(value, dict) and set(value) == {"event", "times"}:
            return cls(Event.from_json(value["event"]), value["times"])
        return cls(Event.from_json(value), 1)


Envelope = tuple[Repeated, ...]
"""The events of a whole run in order, run-length encoded."""


def envelope_to_json(envelope: Envelope) -> dict[str, Any]:
    """Return an envelope as plain JSON values.

    Each event is listed once; runs then refer to events by position and say how often each happens.
    """
    numbers: dict[tuple[Event, str], int] = {}  # rows of two runs are equal
    runs = [
        [numbers.setdefault((run.event, run.event.source), len(numbers)), run.times]
        for run in envelope
    ]
    return {"events": [event.to_json() for event, _ in numbers], "runs": runs}


def envelope_from_json(value: object) -> Envelope:
    """Return the envelope that :func:`envelope_to_json` wrote."""
    try:
        events = [Event.from_json(event) for event in value["events"]]  # type: ignore[index]
        return tuple(Repeated(events[number], times) for number, times in value["runs"])  # type: ignore[index]
    except (TypeError, KeyError, IndexError, ValueError):
        raise InvalidArgument(
            "Expected an envelope: its events, and runs of [event, times]."
        ) from None


def run_lengths(events: Iterable[Repeated]) -> Envelope:
    """Merge neighbouring runs of equal events."""
    merged: list[Repeated] = []
    for run in events:
        last = merged[-1].event if merged else None
        if last is not None and last == run.event and last.source == run.event.source:
            merged[-1] = Repeated(run.event, merged[-1].times + run.times)
        elif run.times:
            merged.append(run)
    return tuple(merged)


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: object) -> bytes:
    """Return the canonical bytes of a JSON value: sorted keys, no blanks, ASCII, no NaN."""
    return _CANONICAL.encode(value).encode("ascii")


def _counts(policy: Policy, part: str, whole: str) -> None:
    """Check that two fields are whole numbers, and that ``part`` is at most ``whole``."""
    few, many = (_validate.count(name, getattr(policy, name)) for name in (part, whole))
    if few > many:
        raise InvalidArgument(f"Expected {part}={few!r} to be at most {whole}={many!r}.")


def _encode(value: object) -> Any:
    if isinstance(value, Fact):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: object) -> Any:
    if isinstance(value, dict):
        return Fact.from_json(value)
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    return value


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
