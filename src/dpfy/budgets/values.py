"""The values that a budget book hands out: data sets, grants and entries.

Tests: tests/budgets/test_book.py.
"""

import getpass
import os
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from dpfy.ledger.events import (
    Envelope,
    canonical_json,
    envelope_from_json,
    envelope_to_json,
)
from dpfy.ledger.journal import Head, seal
from dpfy.types import Relation, Unit


class State(StrEnum):
    """How far a grant has come."""

    RESERVED = "reserved"
    ACTIVE = "active"
    SETTLED = "settled"
    FORFEITED = "forfeited"
    WITHDRAWN = "withdrawn"

    @property
    def outstanding(self) -> bool:
        """Whether the whole of what was reserved is still kept for the run."""
        return self in (State.RESERVED, State.ACTIVE)


@dataclass(frozen=True)
class GrantState:
    """What a book knows of one grant.

    Args:
        id: the name of the grant.
        dataset: the data set whose budget it takes from.
        part: the part of the data set, or None for all of it.
        purpose: what the run is for, in the words of whoever reserved it.
        holder: who runs it.
        state: how far it has come.
        epsilon: ε, at the δ of the data set, of what is kept for it or was charged.
        ledger: the identity of the ledger that it is bound to; None before it is active.
        head: the newest head of that ledger that the book was told.
        created: when it was reserved, ISO 8601, UTC.
        updated: when it last changed.
    """

    id: str
    dataset: str
    part: str | None
    purpose: str
    holder: str
    state: State
    epsilon: float
    ledger: str | None
    head: Head
    created: str
    updated: str

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the state that :meth:`to_json` wrote."""
        return cls(**{**value, "state": State(value["state"]), "head": Head(**value["head"])})


@dataclass(frozen=True)
class DatasetState:
    """What a book knows of one data set.

    ``spent``, ``reserved`` and ``free`` are for people: ε does not add up, so ``reserved`` is what
    outstanding grants would add to ``spent``, and ``free`` what is then left. The book itself
    decides by the costs of its filter, which do add up.

    Args:
        name: the name of the data set.
        unit: the unit of privacy.
        relation: the neighbouring relation.
        epsilon: the limit of ε that all runs together keep.
        delta: the δ of that limit.
        spent: ε of what was charged.
        reserved: what the outstanding grants would add to it.
        free: the rest.
        opened: the number of tranches that are open.
        tranches: the ε of each tranche; they add up to ``epsilon``.
        parts: the names of the parts that have budgets of their own.
        grants: the grants, in the order in which they were reserved.
        description: what the data set is.
        created: when its budget was declared, ISO 8601, UTC.
    """

    name: str
    unit: Unit
    relation: Relation
    epsilon: float
    delta: float
    spent: float
    reserved: float
    free: float
    opened: int
    tranches: tuple[float, ...]
    parts: tuple[str, ...]
    grants: tuple[GrantState, ...]
    description: str
    created: str

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the state that :meth:`to_json` wrote."""
        return cls(
            **{
                **value,
                "unit": Unit(value["unit"]),
                "relation": Relation(value["relation"]),
                "tranches": tuple(value["tranches"]),
                "parts": tuple(value["parts"]),
                "grants": tuple(map(GrantState.from_json, value["grants"])),
            }
        )


@dataclass(frozen=True)
class Entry:
    """One line of a book, chained to the one before it.

    Args:
        number: its position, from 1.
        time: when it was written, ISO 8601, UTC.
        actor: who wrote it.
        kind: what happened.
        dataset: the data set concerned, or an empty string.
        grant: the grant concerned, or an empty string.
        body: the facts, as plain JSON values.
        previous: the hash of the entry before.
        hash: the hash of this entry, which covers all of the above.
    """

    number: int
    time: str
    actor: str
    kind: str
    dataset: str
    grant: str
    body: dict[str, Any]
    previous: str
    hash: str

    def to_json(self) -> dict[str, Any]:
        """Return the entry as plain JSON values."""
        return dict(vars(self))  # not asdict, which copies the body

    @property
    def digest(self) -> str:
        """The hash that the entry must have, by what it says."""
        facts = {name: value for name, value in self.to_json().items() if name != "hash"}
        return seal(self.previous, canonical_json(facts))[1]


@dataclass(frozen=True)
class Request:
    """What a run asks of a book.

    Args:
        dataset: the data set.
        envelope: the events of the run.
        filter: the filter of its plan, if there is one, as JSON.
        unit: the unit that its plan protects; None for that of the data set.
        relation: the relation of its plan; None for that of the data set.
        purpose: what the run is for.
        holder: who runs it.
        part: the part of the data set that it reads; None for all of it.
        key: a random name, so that a request that is sent twice is granted once.
    """

    dataset: str
    envelope: Envelope
    filter: dict[str, Any] | None
    unit: Unit | None
    relation: Relation | None
    purpose: str
    holder: str
    part: str | None
    key: str

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain JSON values."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "envelope": envelope_to_json(self.envelope),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the request that :meth:`to_json` wrote."""
        unit, relation = value["unit"], value["relation"]
        return cls(
            **{
                **value,
                "envelope": envelope_from_json(value["envelope"]),
                "unit": None if unit is None else Unit(unit),
                "relation": None if relation is None else Relation(relation),
            }
        )


@dataclass(frozen=True)
class Terms:
    """What a grant permits, as the ledger that is opened under it has to know.

    Args:
        book: the identity of the book.
        id: the name of the grant.
        dataset: the data set.
        part: the part of it; None for all of it.
        unit: the unit of privacy of the data set.
        relation: its neighbouring relation.
        envelope: the events that were granted.
        filter: the filter of the plan, if it has one, as JSON.
        orders: the orders of the coordinates of a cost, after the mass.
        limits: the orders at which the filters of the data set have limits.
        cost: what may be spent, in each coordinate.
    """

    book: str
    id: str
    dataset: str
    part: str | None
    unit: Unit
    relation: Relation
    envelope: Envelope
    filter: dict[str, Any] | None
    orders: tuple[float, ...]
    limits: tuple[float, ...]
    cost: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the terms as plain JSON values."""
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "envelope": envelope_to_json(self.envelope),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the terms that :meth:`to_json` wrote."""
        return cls(
            **{
                **value,
                "unit": Unit(value["unit"]),
                "relation": Relation(value["relation"]),
                "envelope": envelope_from_json(value["envelope"]),
                "orders": tuple(value["orders"]),
                "limits": tuple(value["limits"]),
                "cost": tuple(value["cost"]),
            }
        )


def whoever() -> str:
    """Return who writes, as far as the operating system knows."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown"
