"""A snapshot of what the ledger says about a run.

Tests: tests/reporting/test_document.py.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Self

from dpfy._version import __version__
from dpfy.accounting.rules import NOISES
from dpfy.errors import LedgerError
from dpfy.ledger import Ledger
from dpfy.ledger.events import Envelope, Event, NonPrivate, Repeated, Sampled
from dpfy.ledger.streams import Row
from dpfy.reporting.modes import Mode, mode_of
from dpfy.reporting.search import Search, leaves
from dpfy.types import Relation, Unit


@dataclass(frozen=True)
class LedgerRecord:
    """A snapshot of a verified ledger: facts only, no ε."""

    file: str | None
    lines: int
    head_hash: str
    torn_bytes: int
    durable: bool
    unit: Unit
    relation: Relation
    key_source: str
    created: str
    written_by: str
    read_by: str
    guard: dict[str, Any]
    filter: dict[str, Any] | None
    plan: dict[str, Any] | None
    registered: Envelope
    reserved: Envelope
    # the part of ``reserved`` that was charged for interrupted searches
    interruptions: Envelope = ()
    strict: bool = False
    basis: tuple[dict[str, Any], ...] = ()
    grant: dict[str, Any] | None = None  # of a budget book

    @classmethod
    def of(cls, ledger: Ledger) -> Self:
        """Return the snapshot of ``ledger``.

        Raises:
            LedgerError: if the ledger has no header.
        """
        header = ledger.header
        if header is None:
            raise LedgerError(
                "The ledger has no header yet: it names neither unit nor relation. Register a plan "
                "first."
            )
        return cls(
            file=ledger.path.name if ledger.path else None,
            lines=ledger.lines,
            head_hash=ledger.head_hash,
            torn_bytes=ledger.torn_bytes,
            durable=ledger.durable,
            unit=header.unit,
            relation=header.relation,
            key_source=header.key_source,
            created=header.created,
            written_by=header.library,
            read_by=__version__,
            guard=header.guard,
            filter=header.filter,
            plan=header.plan,
            registered=header.envelope,
            reserved=ledger.uses,
            interruptions=ledger.interruptions,
            strict=header.strict,
            basis=ledger.basis,
            grant=header.grant,
        )

    @property
    def steps_registered(self) -> int:
        """The number of steps that the plan registered before the first one; 0 if none."""
        return sum(run.times for run in self.registered)

    @property
    def steps_reserved(self) -> int:
        """The number of steps that count as spent, including torn lines."""
        return sum(run.times for run in self.reserved)

    @property
    def unregistered(self) -> int:
        """The number of reserved steps that do not follow the registered list in order.

        A list that skips registered steps, or ends early, is still dominated by the registered list
        step by step; one that adds or reorders steps is not. The step that stands for a torn last
        line is left out: its reservation never returned, so nothing was released for it. Under a
        filter every step that its guard admitted is covered. Charges for interruptions are left out
        as well.
        """
        if not self.registered or self.filter is not None:
            return 0
        places, missing = list(self.registered), 0
        charged: Counter[Event] = Counter()
        for run in self.interruptions:
            charged[run.event] += run.times
        for run in self.reserved:
            beside = min(run.times, charged[run.event])
            charged[run.event] -= beside
            wanted = run.times - beside
            while wanted and places:
                place = places.pop(0)
                taken = min(wanted, place.times) if place.event == run.event else 0
                wanted -= taken
                if not wanted:
                    places.insert(0, Repeated(place.event, place.times - taken))
            missing += wanted
        return max(0, missing - (1 if self.torn_bytes else 0))

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """The sampling policies in use, each with the noise of its queries."""
        events = [leaf for run in (*self.registered, *self.reserved) for leaf in leaves(run.event)]
        return tuple(
            dict.fromkeys(
                (event.policy.tag, NOISES.get(type(query), query.tag))
                for event in events
                if isinstance(event, Sampled)
                for query in event.queries
            )
        )

    @property
    def streams(self) -> tuple[tuple[str, str], ...]:
        """The kinds of streams whose rows are on record, each with the policy of its steps."""
        events = [leaf for run in (*self.registered, *self.reserved) for leaf in leaves(run.event)]
        return tuple(
            dict.fromkeys(
                (event.stream.tag, event.policy.tag if event.policy else "declared")
                for event in events
                if isinstance(event, Row)
            )
        )

    @property
    def search(self) -> Search | None:
        """The search for settings that is on record, if there is one."""
        return Search.of(self.registered, self.reserved, self.interruptions, self.plan)

    @property
    def mode(self) -> Mode | None:
        """What leaves in place of a trained model, if something else does."""
        return mode_of(self.plan, self.reserved)

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the sampling policies in use."""
        names = (*(policy for policy, _ in self.kinds), *(policy for _, policy in self.streams))
        return tuple(dict.fromkeys(names))

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that runs recorded."""
        return tuple(
            dict.fromkeys(str(facts["engine"]) for facts in self.basis if "engine" in facts)
        )

    @property
    def exposures(self) -> tuple[str, ...]:
        """The recorded reasons of releases without any guarantee."""
        return tuple(
            dict.fromkeys(
                run.event.reason for run in self.reserved if isinstance(run.event, NonPrivate)
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as plain JSON values."""
        return {
            "file": self.file,
            "lines": self.lines,
            "head_hash": self.head_hash,
            "durable": self.durable,
            "torn_bytes": self.torn_bytes,
            "unit": str(self.unit),
            "relation": str(self.relation),
            "key_source": self.key_source,
            "created": self.created,
            "written_by": self.written_by,
            "read_by": self.read_by,
            "guard": self.guard,
            "filter": self.filter,
            "plan": self.plan,
            "steps_registered": self.steps_registered,
            "steps_reserved": self.steps_reserved,
            "registered": [run.to_json() for run in self.registered],
            "reserved": [run.to_json() for run in self.reserved],
            "strict": self.strict,
            "basis": list(self.basis),
            **({} if self.grant is None else {"grant": self.grant}),
        }
