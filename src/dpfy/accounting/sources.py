"""Sources: a ledger, a plan, events or their JSON, all read as one envelope with its context.

Tests: tests/accounting/test_guarantee.py.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dpfy.errors import InvalidArgument, LedgerError
from dpfy.ledger import Ledger
from dpfy.ledger.events import Envelope, Event, Repeated, run_lengths
from dpfy.ledger.individual import group_names
from dpfy.types import Relation, Unit

_SECRET_KEYS = ("os", "operating system")


@runtime_checkable
class PlanLike(Protocol):
    """Anything that declares its events, unit of privacy, relation and perhaps a filter."""

    @property
    def envelope(self) -> Envelope:
        """The events, fixed in advance."""

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""

    @property
    def unit(self) -> Unit:
        """The unit of privacy."""

    @property
    def filter(self) -> Any:
        """The filter, or None."""


@dataclass(frozen=True)
class Source:
    """The events that were, or will be, spent, and their context.

    Args:
        events: The events.
        relation: The neighbouring relation.
        unit: The unit of privacy.
        registered: The events that a ledger registered before the first step, if any.
        private: Whether sampling and noise came from a secret key.
        durable: Whether a ledger on stable storage recorded the events; None without a ledger.
        filter: The filter that a plan or a ledger's header declares; without one the events
            themselves are composed.
        guard: The guard that a plan or a ledger's header declares.
    """

    events: Envelope
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    unit: Unit = Unit.RECORD
    registered: Envelope | None = None
    private: bool = True
    durable: bool | None = None
    filter: dict[str, Any] | None = None
    guard: dict[str, Any] | None = None


def read_source(source: object) -> Source:
    """Read ``source`` as events with their context.

    Text is JSON if it opens with a bracket, and a path otherwise.

    Raises:
        InvalidArgument: ``source`` is none of the kinds that can be accounted, or is not JSON.
        LedgerError: The file cannot be read, or the ledger has no header.
    """
    if isinstance(source, Ledger):
        return _from_ledger(source)
    if isinstance(source, os.PathLike):
        return _from_path(Path(source))
    if isinstance(source, str):
        return (
            Source(_from_json(source))
            if source.lstrip().startswith(("[", "{"))
            else _from_path(Path(source))
        )
    if isinstance(source, PlanLike):
        return _from_plan(source)
    if isinstance(source, Event | Repeated | dict):
        source = [source]
    if not isinstance(source, Iterable):
        raise InvalidArgument(
            "Expected a ledger, a plan, a path, an event or a list of events, got "
            f"{type(source).__name__}."
        )
    return Source(run_lengths(_as_run(item) for item in source))


def declared_groups(source: Source) -> tuple[str, ...]:
    """Return the names of the groups in what a source reserved or registered, if there are any.

    Raises:
        UnsupportedEvent: Two events have different groups.
    """
    return group_names((*source.events, *(source.registered or ())))


def _from_plan(plan: PlanLike) -> Source:
    relation, unit, rule = Relation(plan.relation), Unit(plan.unit), plan.filter
    if rule is None:
        return Source(plan.envelope, relation, unit)
    return Source((), relation, unit, filter=rule.to_json(), guard=rule.guard(relation).describe())


def _from_ledger(ledger: Ledger) -> Source:
    header = ledger.header
    if header is None:
        raise LedgerError(
            "The ledger has no header yet: it names neither unit nor relation. Register a plan "
            "first."
        )
    registered = (*header.envelope, *ledger.interruptions) if header.envelope else None
    return Source(
        ledger.uses,
        Relation(header.relation),
        Unit(header.unit),
        registered,
        header.key_source in _SECRET_KEYS,
        ledger.durable,
        header.filter,
        header.guard,
    )


def _from_path(path: Path) -> Source:
    try:
        with path.open("rb") as file:
            opening = file.read(64)
    except OSError as error:
        raise LedgerError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    if opening.lstrip().startswith(b"["):
        return Source(_from_json(path.read_bytes()))
    return _from_ledger(Ledger.read(path))


def _from_json(text: str | bytes) -> Envelope:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgument("Expected a JSON list of events; this is not JSON.") from None
    return run_lengths(_as_run(item) for item in (values if isinstance(values, list) else [values]))


def _as_run(item: Any) -> Repeated:
    if isinstance(item, Repeated):
        return item
    return Repeated(item, 1) if isinstance(item, Event) else Repeated.from_json(item)
