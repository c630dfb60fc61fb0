"""The guarantee of a ledger that declares a filter, and how far a run under a filter has come.

PLD or RDP over the realised list would be smaller than either, and is not a guarantee: steps chosen
from outputs can be chosen so that every realised list is within a budget which the choice exceeds
(``docs/proofs/filters.md``).
"""

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from dpfy import _validate
from dpfy.accounting.filters import DominatedBy, Filter, Profile, as_fixed
from dpfy.accounting.group_filters import GroupGaussianFilter
from dpfy.accounting.grouped import GroupGuarantee, events_of_group
from dpfy.accounting.guarantee import Guarantee, account
from dpfy.accounting.sources import Source, read_source
from dpfy.accounting.to_pairs import Canonical
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerError, UnsupportedEvent
from dpfy.ledger.events import Repeated, canonical_json
from dpfy.types import Interval, Relation, Unit


@dataclass(frozen=True, repr=False)
class FilterGuarantee(Guarantee):
    """The guarantee of a ledger with a filter: the filter's limit, whatever was spent of it.

    *Formal guarantee*: that of the filter. It covers every run that the guard would have admitted,
    which is why it does not shrink when this one spent less: how much a run spends may depend on
    the data.

    Args:
        source: The events and their context.
        canonical: The number of steps, and the δ that the filter sets aside.
        method: The filter's tag, or the method that composes a committed list.
        relation: The neighbouring relation.
        unit: The unit of privacy.
        accuracy: How wide the bracket of ε may be, relative to ε.
        filter: The filter.
    """

    filter: Filter = field(kw_only=True)

    @property
    def noise_multiplier(self) -> None:
        """None: the steps were free to differ."""

    @property
    def rate(self) -> None:
        """None: the steps were free to differ."""

    @property
    def envelope(self) -> None:
        """None: nothing but the filter was registered."""

    def epsilon(self, delta: float) -> Interval:
        """Return the bracket of ε at ``delta``; numerical δ is set aside first."""
        rest = _validate.delta(delta) - self.numerical_delta
        return self._profile.epsilon(rest) if rest > 0 else Interval(0.0, math.inf)

    def delta(self, epsilon: float) -> Interval:
        """Return the bracket of δ at ``epsilon``; numerical δ is included."""
        _validate.real("epsilon", epsilon, 0, math.inf, open_high=True)
        lower, upper = self._profile.delta(epsilon)
        return Interval(
            max(0.0, lower - self.numerical_delta), min(1.0, upper + self.numerical_delta)
        )

    def claim(self, delta: float) -> float:
        """Return the ε that one may claim at ``delta``."""
        return self.epsilon(delta).upper

    def note(self, delta: float) -> str:
        """Say whose limit this is."""
        return f"the limit of the {self.filter.title}, declared before the first step"

    @property
    def _profile(self) -> Profile:
        return self.filter.profile(self.method, self.relation, self.accuracy)


@dataclass(frozen=True, repr=False)
class GroupFilterGuarantee(GroupGuarantee):
    """The guarantees of a ledger whose filter has a limit for each group of records.

    Args:
        source: The events and their context.
        canonical: The number of steps; it has no pairs and claims nothing.
        method: The filter's tag.
        relation: The neighbouring relation.
        unit: The unit of privacy.
        accuracy: How wide the bracket of ε may be, relative to ε.
        groups: The guarantee of each group, by name.
        filter: The filter.
    """

    filter: GroupGaussianFilter = field(kw_only=True)

    @property
    def envelope(self) -> None:
        """None: nothing but the filter was registered."""


@dataclass(frozen=True)
class Reading:
    """The reading of an odometer, which is no guarantee.

    It is what the realised steps would have cost, had they been fixed in advance. They were not.
    There is deliberately nothing here that could stand in for an ε in a report.

    Args:
        if_fixed_in_advance: The ε that the steps would have cost.
        at_delta: The δ at which.
        steps: The number of steps.
        used: The share of the filter that is spent.
    """

    if_fixed_in_advance: float
    at_delta: float
    steps: int
    used: float

    def to_json(self) -> dict[str, Any]:
        """Return the reading as plain JSON values that say what they are not."""
        return {"is_a_guarantee": False, **asdict(self)}

    def __str__(self) -> str:
        return (
            f"odometer reading, not a guarantee: {self.steps:,} steps that would cost "
            f"{self.if_fixed_in_advance:.4f} at delta = {self.at_delta:g} had they been fixed in "
            f"advance; {self.used:.1%} of the filter is spent"
        )


def odometer(source: object, delta: float, method: str = "pld") -> Reading:
    """Read how much of its filter a run has spent.

    A reading is no guarantee: :func:`~dpfy.accounting.account` gives that.

    Args:
        source: A ledger or its path.
        delta: δ, between 0 and 1, both excluded.
        method: "pld" (the default) or "rdp".

    Returns:
        The reading.

    Raises:
        InvalidArgument: ``delta`` or ``method`` is not valid.
        LedgerError: The ledger declares no filter, or cannot be read.
        UnsupportedEvent: The filter is unknown, or an event has no rule.

    >>> from dpfy.accounting.filters import GaussianFilter
    >>> from dpfy.ledger import Header, Ledger
    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> rule = GaussianFilter(mu=1.0)
    >>> step = Sampled(Poisson(1.0), (SumQuery(1.0, 2.0),), adaptive=True)
    >>> with Ledger.in_memory(rule.guard(), Header(filter=rule.to_json())) as ledger:
    ...     ledger.reserve(step)
    >>> round(odometer(ledger, delta=1e-5).used, 6)
    0.25
    """
    facts = read_source(source)
    used = _used(facts)
    fixed = [Repeated(as_fixed(run.event), run.times) for run in facts.events]
    total = account(fixed, method, facts.relation)
    return Reading(total.claim(delta), delta, total.steps, used)


def share_used(source: object) -> float:
    """Return the share of its filter that a ledger has spent: a reading, and nothing to claim."""
    return _used(read_source(source))


def _used(facts: Source) -> float:
    if facts.filter is None:
        raise LedgerError(
            "The ledger declares no filter, so there is nothing to read off. Use account instead."
        )
    guard = declared_filter(facts.filter).guard(facts.relation)
    for run in facts.events:
        guard.record(run.event, run.times)
    return guard.used


def declared_filter(value: object) -> Filter:
    """Return the filter that a header declares.

    Raises:
        UnsupportedEvent: The filter is not known here.
    """
    try:
        return Filter.from_json(value)
    except InvalidArgument as error:
        raise UnsupportedEvent(
            f"The ledger declares a filter that cannot be read, so nothing may account it: {error}"
        ) from None


def filter_guarantee(
    source: Source, method: str, relation: Relation, unit: Unit, accuracy: float
) -> Guarantee:
    """Return the guarantee of a ledger with a filter, after checking that the filter was enforced.

    A guard other than the filter's would have let runs pass that the filter stops; that this one
    stayed within the limit proves nothing, so it is refused.

    Raises:
        UnsupportedEvent: The filter is unknown, was enforced for another relation or not at all, or
            does not admit the steps of the ledger.
    """
    rule = declared_filter(source.filter)
    if relation != source.relation:
        raise UnsupportedEvent(
            f"The filter was enforced for {source.relation}; it says nothing about {relation}."
        )
    guard = rule.guard(relation)
    if canonical_json(source.guard) != canonical_json(guard.describe()):
        name = (source.guard or {}).get("name")
        raise UnsupportedEvent(
            f"The ledger declares a {rule.tag!r} but was guarded by {name!r}: nothing stopped a "
            "run that exceeds the filter. Open such a ledger with filter.guard(relation)."
        )
    for run in source.events:
        try:
            guard.admit(run.event, run.times)
        except BudgetExhausted as error:
            raise UnsupportedEvent(
                f"The ledger holds steps that its filter does not admit: {error}"
            ) from None
        guard.record(run.event, run.times)
    if isinstance(rule, GroupGaussianFilter):
        return _group_guarantees(rule, source, relation, unit, accuracy)
    return _limit_of(rule, source, method, relation, unit, accuracy)


def _limit_of(
    rule: Filter, source: Source, method: str, relation: Relation, unit: Unit, accuracy: float
) -> FilterGuarantee:
    """Return what a filter promises that admitted the steps of a source."""
    steps = sum(run.times for run in source.events)
    method = method if isinstance(rule, DominatedBy) else rule.tag
    return FilterGuarantee(
        source,
        Canonical((), steps, rule.set_aside, False),
        method,
        relation,
        unit,
        accuracy,
        filter=rule,
    )


def _group_guarantees(
    rule: GroupGaussianFilter, source: Source, relation: Relation, unit: Unit, accuracy: float
) -> GroupFilterGuarantee:
    """Return what the filter of each group promises to its records."""
    groups = {
        name: _limit_of(
            each,
            replace(
                source,
                events=events_of_group(source.events, name),
                registered=None,
                filter=each.to_json(),
                guard=each.guard(relation).describe(),
            ),
            rule.tag,
            relation,
            unit,
            accuracy,
        )
        for name, each in rule.groups.items()
    }
    # whoever composes its pairs, of which there are none, may claim nothing
    together = Canonical((), sum(run.times for run in source.events), 0.0, non_private=True)
    return GroupFilterGuarantee(
        source, together, rule.tag, relation, unit, accuracy, groups=groups, filter=rule
    )
