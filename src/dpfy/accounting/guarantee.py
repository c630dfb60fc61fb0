"""From recorded events to a claim: ``account(source).epsilon(delta)``."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType

from dpfy import _validate
from dpfy._notebook import html_of
from dpfy.accounting import rdp
from dpfy.accounting.dominating_pairs import Bound
from dpfy.accounting.known_samples import as_if_known
from dpfy.accounting.pld import accountant as pld
from dpfy.accounting.sources import Source, declared_groups, read_source
from dpfy.accounting.to_pairs import Canonical, canonical
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import NonPrivate, Repeated, Sampled
from dpfy.ledger.streams import Row
from dpfy.types import Interval, Relation, Unit

METHODS: dict[str, ModuleType] = {"pld": pld, "rdp": rdp}

_PARTS_OF_RECORDS = {
    Unit.LABEL: "where labels alone are protected, nothing is known of records that are absent or "
    "differ in features",
    Unit.REPORT: "who reports is public, and a report hides which value it is about",
}
_WIDE = 10  # times the accuracy: a bracket that deserves a word
_HALVINGS = 8  # of a factor of 2 in ε


@dataclass(frozen=True)
class Guarantee:
    """The privacy cost of a run under one method, relation and unit, for every δ.

    *Formal guarantee*: for neighbouring data sets the released values satisfy
    (``epsilon(δ).upper``, δ)-differential privacy. ``lower`` is certified too: for some data sets
    and what is asked of them no analysis can claim less. Where all rules are exact (see
    :func:`~dpfy.accounting.supported`) the two are as close as ``accuracy`` asks; elsewhere
    ``lower`` is that of an attack that is known, or 0. Where several rules know a bound, ``upper``
    is the least of them: method "pld" is never above "rdp" by more than ``accuracy``.

    *Assumes* that the events are what ran, that they were fixed or registered before the first
    step, and that noise and sampling came from a secret key (``private`` is False if they did not).

    ``envelope`` is the guarantee of what a ledger registered. If a run stopped early after looking
    at outputs, only that one may be claimed, because when to stop then depends on the data.

    Args:
        source: The events and their context.
        canonical: The same run as dominating pairs.
        method: "pld" or "rdp".
        relation: The neighbouring relation.
        unit: The unit of privacy.
        accuracy: How wide the bracket of ε may be, relative to ε; 0.001 by default.
    """

    source: Source
    canonical: Canonical
    method: str
    relation: Relation
    unit: Unit
    accuracy: float = pld.ACCURACY

    def __repr__(self) -> str:
        private = "" if self.private else ", not private: a test key"
        return (
            f"<Guarantee: {self.steps:,} {self.counted} by {self.method}, per {self.unit}, "
            f"{self.relation}{private}; .epsilon(delta) has the interval of ε>"
        )

    def _repr_html_(self) -> str | None:
        return html_of(self)

    @property
    def steps(self) -> int:
        """The number of steps that are accounted."""
        return self.canonical.steps

    @property
    def counted(self) -> str:
        """The name of what ``steps`` counts: "steps", "epochs" or "events".

        It is "epochs" where each event is an epoch, and "events" where some are neither.
        """
        events = [run.event for run in self.source.events]
        if not all(isinstance(event, Sampled | Row | NonPrivate) for event in events):
            return "events"
        epochs = [
            isinstance(event, Sampled) and event.policy.steps_per_event > 1 for event in events
        ]
        return "epochs" if epochs and all(epochs) else "steps"

    @property
    def numerical_delta(self) -> float:
        """The part of δ that the arithmetic of the noise uses up."""
        return self.canonical.numerical_delta

    @property
    def failure(self) -> float:
        """The probability that a sample was cut to its capacity, in any step.

        1 + e^ε times it is part of δ.
        """
        return self.canonical.failure

    @property
    def exact(self) -> bool:
        """Whether the rules of all steps are exact.

        Then ``lower`` and ``upper`` describe the same attack.
        """
        return self.canonical.exact

    @property
    def private(self) -> bool:
        """Whether sampling and noise came from a secret key."""
        return self.source.private

    @property
    def durable(self) -> bool | None:
        """Whether a ledger on stable storage recorded the events; None if there is no ledger."""
        return self.source.durable

    @property
    def noise_multiplier(self) -> float | None:
        """The noise multiplier that all steps share, if they do; that of one row, for a stream."""
        rows = {run.event for run in self.source.events if isinstance(run.event, Row)}
        if rows:
            shared = len(rows) == 1 and all(run.event in rows for run in self.source.events)
            return rows.pop().stream.noise_multiplier if shared else None
        pairs = self.canonical.pairs
        return (
            pairs[0][0].noise_multiplier
            if len(pairs) == 1 and pairs[0][0].distribution is None
            else None
        )

    @property
    def rate(self) -> float | None:
        """The sampling rate that all steps share, if they do; None for rows of a stream."""
        pairs = self.canonical.pairs
        rows = any(isinstance(run.event, Row) for run in self.source.events)
        return pairs[0][0].rate if len(pairs) == 1 and not rows else None

    @property
    def envelope(self) -> "Guarantee | None":
        """The guarantee of the registered events, for a ledger that has them."""
        if self.source.registered is None:
            return None
        source = replace(self.source, events=self.source.registered, registered=None)
        return replace(
            self, source=source, canonical=canonical(source.events, self.method, self.relation)
        )

    def epsilon(self, delta: float) -> Interval:
        """Return the bracket of ε at ``delta``; numerical δ is set aside first.

        Args:
            delta: δ, between 0 and 1, both excluded.

        Returns:
            The interval from the certified lower bound to the claim.

        Raises:
            InvalidArgument: ``delta`` is out of range.

        >>> from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
        >>> step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),))
        >>> lower, upper = account(Repeated(step, 100)).epsilon(delta=1e-5)
        >>> 0.99 * upper < lower <= upper < 0.85
        True
        """
        _validate.delta(delta)
        upper = self._epsilon_upper(delta).value
        return Interval(
            float(min(self._epsilon_lower(delta), upper)) if upper > 0 else 0.0, float(upper)
        )

    def delta(self, epsilon: float) -> Interval:
        """Return the bracket of δ at ``epsilon``; numerical δ is included.

        Args:
            epsilon: ε, at least 0 and finite.

        Returns:
            The interval from the certified lower bound to the claim.

        Raises:
            InvalidArgument: ``epsilon`` is out of range.
        """
        _validate.real("epsilon", epsilon, 0, math.inf, open_high=True)
        if self.canonical.non_private:
            return Interval(1.0, 1.0)
        exposed = self.canonical.unprotected
        if exposed > 0:
            return Interval(max(0.0, exposed - self.numerical_delta - self.failure), 1.0)
        upper = min(
            each._delta_upper(epsilon) for each in (self, *(other for other, _ in self._others))
        )
        lower = METHODS[self.method].delta_lower(self.canonical.attained, epsilon, self.accuracy)
        lower = max(0.0, lower - self.numerical_delta - self._failed(epsilon))
        return Interval(float(min(lower, upper)), float(upper))

    def claim(self, delta: float) -> float:
        """Return the ε that one may claim at ``delta``.

        It is ``epsilon(delta).upper`` without the work for the lower end.
        """
        return float(self._epsilon_upper(_validate.delta(delta)).value)

    def note(self, delta: float) -> str:
        """Say how the claim at ``delta`` was computed, if the method's name does not say it all."""
        said = self._epsilon_upper(_validate.delta(delta)).note
        if said or not self.exact or self.method != "pld":
            return said
        lower, upper = self.epsilon(delta)
        wide = math.isfinite(upper) and upper - lower > _WIDE * self.accuracy * upper
        return (
            f"the bracket is {(upper - lower) / upper:.1%} wide: rounding is near delta"
            if wide
            else ""
        )

    @cached_property
    def _others(self) -> "tuple[tuple[Guarantee, str], ...]":
        """Guarantees of this run by other rules, with the names of these rules.

        Each of them holds, so the least may be claimed. Steps have one pair for all methods, and
        its PLD is compared with its Rényi curve where it is made. What is left are events that hold
        others, which methods account differently, and samples that may be cut.
        """
        return tuple(self._by_other_rules()) if self.method == "pld" else ()

    def _by_other_rules(self) -> "Iterator[tuple[Guarantee, str]]":
        known = tuple(Repeated(as_if_known(run.event), run.times) for run in self.source.events)
        cut, nested = (
            known != self.source.events,
            any(not isinstance(run.event, Sampled | Row) for run in known),
        )
        for events, method, chosen, note in (
            (self.source.events, "rdp", nested, "by Rényi divergences"),
            (known, "pld", cut, "as if samples were known"),
            (known, "rdp", cut and nested, "by Rényi divergences"),
        ):
            if chosen:
                try:
                    yield (
                        replace(
                            self, canonical=canonical(events, method, self.relation), method=method
                        ),
                        note,
                    )
                except UnsupportedEvent:  # a method without a rule for one of the events
                    continue

    def _failed(self, epsilon: float) -> float:
        """Return what samples that were cut add to δ(ε).

        Replacing both output distributions by those of uncut samples costs their distance, once as
        it is and once e^ε times.
        """
        return (1 + math.exp(min(epsilon, 700.0))) * self.failure if self.failure else 0.0

    def _delta_upper(self, epsilon: float) -> float:
        """Return the bound at ε, or at a smaller ε past which failures are most of it.

        δ never grows with ε.
        """

        def certain(at: float) -> float:
            return float(
                METHODS[self.method].delta_upper(self.canonical.pairs, at, self.accuracy).value
            )

        if self._failed(epsilon) > certain(epsilon):
            low, high = 0.0, 1.0
            while high < epsilon and self._failed(high) <= certain(high):
                low, high = high, 2 * high
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                low, high = (
                    (low, middle) if self._failed(middle) > certain(middle) else (middle, high)
                )
            epsilon = min(low, epsilon)
        return min(1.0, certain(epsilon) + self._failed(epsilon) + self.numerical_delta)

    def _epsilon_upper(self, delta: float) -> Bound:
        best = self._own_epsilon_upper(delta)
        for other, note in self._others:
            found = other._own_epsilon_upper(delta)
            best = Bound(found.value, note) if found.value < best.value else best
        return best

    def _own_epsilon_upper(self, delta: float) -> Bound:
        rest = delta - self.numerical_delta
        if self.canonical.non_private or self.canonical.unprotected > 0 or rest <= 0:
            return Bound(
                math.inf,
                "numerical delta reaches delta" if rest <= 0 else "a step has no protection",
            )
        epsilon, slack = 0.0, 1e-2 * self.accuracy
        while True:  # raise ε until the δ that failures leave at it is that of an ε no larger
            left = rest - self._failed(epsilon)
            if left <= 0:
                return Bound(math.inf, "samples that were cut reach delta: raise their capacity")
            bound: Bound = METHODS[self.method].epsilon_upper(
                self.canonical.pairs, left, self.accuracy
            )
            if not self.failure or bound.value <= epsilon or math.isinf(bound.value):
                return bound._replace(value=max(bound.value, epsilon))
            epsilon, slack = bound.value * (1 + slack), 2 * slack

    def _epsilon_lower(self, delta: float) -> float:
        raised = delta + self.numerical_delta
        if self.canonical.non_private:
            return math.inf
        if self.canonical.unprotected > 0:
            return math.inf if self.canonical.unprotected > raised + self.failure else 0.0
        lower = self._certain_lower(raised)
        return (
            self._certain_lower(raised + self._failed(lower)) if self.failure else lower
        )  # failures hide no more

    def _certain_lower(self, delta: float) -> float:
        if delta >= 1:
            return 0.0
        lower: float = METHODS[self.method].epsilon_lower(
            self.canonical.attained, delta, self.accuracy
        )
        return lower


def account(
    source: object,
    method: str = "pld",
    relation: Relation | str | None = None,
    unit: Unit | str | None = None,
    accuracy: float = pld.ACCURACY,
) -> Guarantee:
    """Return the privacy guarantee of a ledger, a plan or events.

    A ledger is accounted for what it reserved; see :attr:`Guarantee.envelope` for what it
    registered. Rows of a stream count as one stream wherever they are in the source, run by run:
    the uses of several ledgers may be one list. Rows that were made by hand name no run and count
    as those of one; two such runs are accounted as a ``Composed`` event each, and beside equal
    rows that do name a run they are refused. A ledger that declared a filter is accounted by that
    filter's limit, never by the steps that it reserved.
    Where groups of records have rates and bounds of their own, there is one guarantee for each
    group: a :class:`~dpfy.accounting.GroupGuarantee`.

    Args:
        source: A ledger or its path, a plan, an event, or a list of events or of their JSON.
        method: "pld" (privacy loss distributions, the default) or "rdp" (Rényi divergences).
        relation: The neighbouring relation; by default what the source declares, and otherwise
            adding or removing one record.
        unit: The unit of privacy; by default what the source declares, and otherwise one record.
        accuracy: How wide the bracket of ε may be, relative to ε, where the method can narrow it:
            0.001 by default, from 1e-7 to 0.1; down to 1e-5 is practical.

    Returns:
        The guarantee, for every δ. See :class:`Guarantee` for what it promises and assumes.

    Raises:
        InvalidArgument: An argument is out of range, or ``source`` cannot be accounted.
        LedgerError: The ledger cannot be read.
        UnsupportedEvent: The method has no sound rule for an event under this relation.

    >>> from dpfy.ledger.events import Poisson, Sampled, SumQuery
    >>> account(Sampled(Poisson(1.0), (SumQuery(1.0, 4.0),))).epsilon(delta=1e-5).upper
    0.92...
    """
    _validate.choice("method", method, tuple(METHODS))
    facts = read_source(source)
    relation = (
        facts.relation
        if relation is None
        else Relation(_validate.choice("relation", relation, tuple(Relation)))
    )
    unit = facts.unit if unit is None else Unit(_validate.choice("unit", unit, tuple(Unit)))
    for part, why in _PARTS_OF_RECORDS.items():
        if part in (facts.unit, unit) and (unit, relation) != (part, Relation.REPLACE_ONE):
            raise UnsupportedEvent(
                f"Expected unit={part.value!r} with relation='replace_one', got {unit.value!r} "
                f"with {relation.value!r}: {why}."
            )
    accuracy = _validate.real("accuracy", accuracy, 1e-7, 0.1)
    if facts.filter is not None:
        from dpfy.accounting.filtered import filter_guarantee  # it builds on this module

        return filter_guarantee(facts, method, relation, unit, accuracy)
    if declared_groups(facts):
        from dpfy.accounting.grouped import group_guarantee  # it builds on this module

        return group_guarantee(facts, method, relation, unit, accuracy)
    return Guarantee(
        facts, canonical(facts.events, method, relation), method, relation, unit, accuracy
    )
