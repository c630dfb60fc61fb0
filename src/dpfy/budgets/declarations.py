"""Declarations: what a steward fixes of a data set before anything of it is read.

Tests: tests/budgets/test_book.py.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from dpfy import _validate
from dpfy.accounting.filters import RenyiFilter
from dpfy.budgets import costs
from dpfy.budgets.costs import Cost
from dpfy.errors import GrantRefused, InvalidArgument
from dpfy.ledger.events import Envelope, Event
from dpfy.ledger.streams import Row, SampledStream
from dpfy.types import Relation, Unit

WHOLE = ""  # the account of grants that read all parts
_SET_ASIDE = 1e-3  # of δ, for what arithmetic adds to it
_MOST_EPSILON = 1e6


@dataclass(frozen=True)
class Declaration:
    """The budget of one data set: declared once, and never raised.

    Args:
        name: the name of the data set; letters, digits, and ``-``, ``_`` or ``.`` between them.
        unit: the unit of privacy.
        relation: the neighbouring relation.
        epsilon: the ε that all runs together keep.
        delta: the δ at which.
        tranches: the ε of each tranche, which add up to ``epsilon``.
        parts: the names of parts with budgets of their own, if a public rule that looks at one
            record alone divides the data set.
        filters: the filter of each number of open tranches; the last one has ``epsilon``.
        description: what the data set is.

    Raises:
        InvalidArgument: if a value is outside its domain.
    """

    name: str
    unit: Unit
    relation: Relation
    epsilon: float
    delta: float
    tranches: tuple[float, ...]
    parts: tuple[str, ...]
    filters: tuple[RenyiFilter, ...]
    description: str = ""

    def __post_init__(self) -> None:
        name("name", self.name)
        _validate.real("epsilon", self.epsilon, 0, _MOST_EPSILON, open_low=True)
        _validate.delta(self.delta)
        self._check_parts()
        self._check_filters()

    def _check_parts(self) -> None:
        for part in self.parts:
            name("part", part)
        if len(set(self.parts)) != len(self.parts):
            raise InvalidArgument(f"Expected parts={self.parts!r} to have different names.")
        if self.parts and self.relation is not Relation.ADD_OR_REMOVE_ONE:
            raise InvalidArgument(
                f"Parts have budgets of their own under {Relation.ADD_OR_REMOVE_ONE} only, got "
                f"{self.relation}: a record that is replaced may move to another part. Declare no "
                "parts, or a data set for each."
            )

    def _check_filters(self) -> None:
        """Refuse filters that would admit more than was declared."""
        for tranche in self.tranches:
            _validate.positive("tranche", tranche)
        if abs(sum(self.tranches) - self.epsilon) > 1e-9 * self.epsilon:
            raise InvalidArgument(
                f"Expected tranches={self.tranches!r} to add up to epsilon={self.epsilon:g}, got "
                f"{sum(self.tranches):g}."
            )
        limits = [(each, self.delta) for each in _opened(self.tranches, self.epsilon)]
        if [(rule.epsilon, rule.delta) for rule in self.filters] != limits:
            raise InvalidArgument(
                f"Expected one filter for each number of open tranches, with epsilon and delta "
                f"{limits!r}."
            )

    @classmethod
    def make(
        cls,
        name: str,
        *,
        unit: Unit | str,
        epsilon: float,
        delta: float,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        tranches: tuple[float, ...] = (),
        parts: tuple[str, ...] = (),
        reference: Envelope = (),
        description: str = "",
    ) -> Self:
        """Return a declaration whose filters have the orders that suit the reference best."""
        unit = Unit(_validate.choice("unit", unit, tuple(Unit)))
        relation = Relation(_validate.choice("relation", relation, tuple(Relation)))
        epsilon = _validate.real("epsilon", epsilon, 0, _MOST_EPSILON, open_low=True)
        delta = _validate.delta(delta)
        tranches = tuple(_validate.positive("tranche", each) for each in (tranches or (epsilon,)))
        opened = _opened(tranches, epsilon)
        return cls(
            name=name,
            unit=unit,
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            tranches=tranches,
            parts=tuple(parts),
            filters=tuple(_filter(each, delta, reference, relation) for each in opened),
            description=description,
        )

    @cached_property
    def orders(self) -> tuple[float, ...]:
        """The orders at which costs are kept."""
        return costs.orders_of(self.filters)

    @property
    def limited(self) -> tuple[float, ...]:
        """The orders at which a filter has a limit."""
        return tuple(sorted({order for rule in self.filters for order in rule.orders}))

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts of the data set: that of all of it, and those of its parts."""
        return (WHOLE, *self.parts)

    def cost(self, envelope: Envelope) -> Cost:
        """Return what an envelope costs in the coordinates of this data set."""
        return costs.cost_of(envelope, self.orders, self.relation)

    def charge(self, uses: Envelope, granted: Cost) -> Cost:
        """Return the cost of what a ledger shows, within what its guard has admitted.

        A line that a crash tore counts as a step, though none was released for it, so a ledger can
        show more than was granted.
        """
        limited = {0, *(1 + self.orders.index(order) for order in self.limited)}
        return tuple(
            min(part, most) if at in limited else part
            for at, (part, most) in enumerate(zip(self.cost(uses), granted, strict=True))
        )

    def charge_finished(self, uses: Envelope, granted: Cost) -> Cost:
        """Return what a ledger shows that no run can release once more, if its end is not known.

        The rows that are left of a stream were paid for with the first one. A run that was lost and
        one that goes on from an older copy both take them, with other noise: each of the two costs
        the stream.

        Raises:
            GrantRefused: if rows of a sampled stream are left: both runs have the samples of the
                rows before in common, so that their costs do not add up.
        """
        left = {row for row, times in _rows(uses).items() if times < (row.at_most or 0)}
        if any(isinstance(row, Row) and isinstance(row.stream, SampledStream) for row in left):
            raise GrantRefused(
                "A run without a known end cannot be paid for while rows of a stream with cyclic "
                "Poisson sampling are left: what two runs draw after the same rows does not add "
                "up. Forfeit the grant, and reserve another one for a new ledger."
            )
        return self.charge(tuple(run for run in uses if run.event not in left), granted)

    def admits(self, total: Cost, opened: int) -> bool:
        """Tell whether a total is within the open tranches, and within all."""
        return all(
            costs.admits(rule, total, self.orders)
            for rule in {self.filters[opened - 1], self.filters[-1]}
        )

    def epsilon_of(self, total: Cost) -> float:
        """Return ε of a total: a reading at the δ of the data set."""
        return costs.epsilon_of(total, self.orders, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return the declaration as plain JSON values."""
        return {
            "name": self.name,
            "unit": str(self.unit),
            "relation": str(self.relation),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "tranches": list(self.tranches),
            "parts": list(self.parts),
            "filters": [rule.to_json() for rule in self.filters],
            "description": self.description,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the declaration that :meth:`to_json` wrote."""
        return cls(
            **{
                **value,
                "unit": Unit(value["unit"]),
                "relation": Relation(value["relation"]),
                "tranches": tuple(value["tranches"]),
                "parts": tuple(value["parts"]),
                "filters": tuple(map(RenyiFilter.from_json, value["filters"])),
            }
        )


def _rows(uses: Envelope) -> Counter[Event]:
    """Return how many rows of each stream there are."""
    found: Counter[Event] = Counter()
    for run in uses:
        if run.event.at_most is not None:
            found[run.event] += run.times
    return found


def name(label: str, value: object) -> str:
    """Return ``value`` if it can name a data set or a part, in addresses too."""
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= 100
        or not value[0].isalnum()
        or not all(letter.isalnum() or letter in "-_." for letter in value)
    ):
        raise InvalidArgument(
            f"Expected {label}={value!r} to be at most 100 letters, digits, '-', '_' and '.', "
            "beginning with a letter or digit."
        )
    return value


def _opened(tranches: tuple[float, ...], epsilon: float) -> tuple[float, ...]:
    """Return the limit of ε for each number of open tranches."""
    return (*(sum(tranches[:count]) for count in range(1, len(tranches))), epsilon)


def _filter(epsilon: float, delta: float, reference: Envelope, relation: Relation) -> RenyiFilter:
    orders = RenyiFilter.tuned(epsilon, delta, reference, relation).orders if reference else ()
    return RenyiFilter(epsilon, delta, orders, numerical_delta=delta * _SET_ASIDE)
