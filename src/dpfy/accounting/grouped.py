"""The guarantee of a run whose groups of records have rates and bounds of their own.

There is one guarantee for each group, each as exact as if all records were in that group
(:mod:`dpfy.accounting.individual`). One number for all of them can only be the weakest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dpfy.accounting.guarantee import Guarantee
from dpfy.accounting.sources import Source, declared_groups
from dpfy.accounting.to_pairs import Canonical, canonical
from dpfy.ledger.events import Envelope, Repeated
from dpfy.ledger.individual import event_of_group
from dpfy.types import GroupInterval, Relation, Unit


@dataclass(frozen=True, repr=False)
class GroupGuarantee(Guarantee):
    """The guarantees of all groups of a run, each under its name, and the weakest of them.

    *Formal guarantee*: for neighbours that differ in a record of group g the released values have
    the guarantee ``groups[g]``. ε and δ of the whole are those of the weakest group, at each δ and
    ε, and hold for every record.

    *Assumes*, beside what every :class:`~dpfy.accounting.Guarantee` assumes, that which group a
    record is in is public or at least independent of the data, that a record of no group took part
    in nothing but events without groups, and under replace-one that both records are of one group.
    That a record changes its group, or that a group's name is secret, is not covered.

    Args:
        source: The events and their context.
        canonical: The number of steps and the numerical δ; it has no pairs and claims nothing, as
            there are none for all groups.
        method: "pld" or "rdp".
        relation: The neighbouring relation.
        unit: The unit of privacy.
        accuracy: How wide the bracket of ε may be, relative to ε.
        groups: The guarantee of each group, by name.

    Reference: Boenisch, Mühl, Dziedzic, Rinberg & Papernot 2023 (individualised DP-SGD).

    >>> from dpfy.accounting import account
    >>> from dpfy.ledger.events import Sampled, SumQuery
    >>> from dpfy.ledger.individual import Individual
    >>> groups = Individual(("strict", "open"), (0.002, 0.01), (1.0, 1.0), (0.5, 0.5))
    >>> found = account(Repeated(Sampled(groups, (SumQuery(1.0, 1.0),)), 100))
    >>> found.claim(1e-5) == found.groups["open"].claim(1e-5) > found.groups["strict"].claim(1e-5)
    True
    """

    groups: Mapping[str, Guarantee] = field(kw_only=True, hash=False)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}; .groups has {', '.join(map(repr, self.groups))}>"

    @property
    def noise_multiplier(self) -> float | None:
        """The noise multiplier that all steps and groups share, if they do."""
        return _shared([each.noise_multiplier for each in self.groups.values()])

    @property
    def rate(self) -> float | None:
        """The sampling rate that all steps and groups share, if they do."""
        return _shared([each.rate for each in self.groups.values()])

    @property
    def envelope(self) -> "GroupGuarantee | None":
        """The guarantee of the registered events, for a ledger that has them."""
        if self.source.registered is None:
            return None
        source = replace(self.source, events=self.source.registered, registered=None)
        return group_guarantee(source, self.method, self.relation, self.unit, self.accuracy)

    def epsilon(self, delta: float) -> GroupInterval:
        """Return the brackets of ε at ``delta``, one for each group."""
        return GroupInterval({name: each.epsilon(delta) for name, each in self.groups.items()})

    def delta(self, epsilon: float) -> GroupInterval:
        """Return the brackets of δ at ``epsilon``, one for each group."""
        return GroupInterval({name: each.delta(epsilon) for name, each in self.groups.items()})

    def claim(self, delta: float) -> float:
        """Return the ε that one may claim at ``delta`` for every record: the weakest group's."""
        return max(each.claim(delta) for each in self.groups.values())

    def note(self, delta: float) -> str:
        """Say whose claim it is, and how that was computed."""
        claims = {name: each.claim(delta) for name, each in self.groups.items()}
        weakest = max(claims, key=lambda name: claims[name])
        said = self.groups[weakest].note(delta)
        return f"group {weakest!r}, the weakest of {len(claims)}{said and f'; {said}'}"


def group_guarantee(
    source: Source, method: str, relation: Relation, unit: Unit, accuracy: float
) -> GroupGuarantee:
    """Return the guarantees of a source whose events have groups.

    Raises:
        UnsupportedEvent: Two events have different groups, or a group has no sound rule.
    """
    groups = {}
    for name in declared_groups(source):
        events, registered = source.events, source.registered
        own = replace(
            source,
            events=events_of_group(events, name),
            registered=registered and events_of_group(registered, name),
        )
        table = canonical(own.events, method, relation)
        groups[name] = Guarantee(own, table, method, relation, unit, accuracy)
    tables = [each.canonical for each in groups.values()]
    together = Canonical(
        (),
        tables[0].steps,
        tables[0].numerical_delta,
        non_private=True,  # whoever composes its pairs, of which there are none, may claim nothing
        failure=max(table.failure for table in tables),
        exact=all(table.exact for table in tables),
    )
    return GroupGuarantee(source, together, method, relation, unit, accuracy, groups=groups)


def events_of_group(events: Envelope, name: str) -> Envelope:
    """Return events as they are for a record of a group."""
    # a ledger repeats the same objects: each is looked at once
    own = {id(run.event): event_of_group(run.event, name) for run in events}
    return tuple(Repeated(own[id(run.event)], run.times) for run in events)


def _shared(values: list[float | None]) -> float | None:
    return values[0] if len(set(values)) == 1 else None
