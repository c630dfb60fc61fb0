"""A filter with a limit for each group of records.

Tests: tests/accounting/test_group_filters.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dpfy import _validate
from dpfy.accounting.filters import Filter, GaussianFilter, Profile, description
from dpfy.accounting.guards import FilterGuard
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.ledger.events import Event
from dpfy.ledger.individual import check_names, event_of_group
from dpfy.types import Relation


@dataclass(frozen=True)
class GroupGaussianFilter(Filter, tag="group_gaussian_filter"):
    """Admit steps while Σ 1/z² ≤ μ² for every group, with the z and the μ of the group.

    *Formal guarantee*: for neighbours that differ in a record of group g, whatever is admitted, in
    any adaptive order, is μ_g-GDP: for them it is the :class:`~dpfy.accounting.GaussianFilter` of
    their own μ, and stopping earlier for the sake of another group is post-processing.

    Args:
        names: The names of the groups.
        mus: μ of each group, above 0.

    Raises:
        InvalidArgument: A number is out of range, or groups are missing or named twice.

    Reference: Smith & Thakurta 2022; docs/proofs/pate.md, Theorem 3.

    >>> from dpfy.ledger.events import Sampled, SumQuery
    >>> from dpfy.ledger.individual import Individual
    >>> groups = Individual(("strict", "open"), (1.0, 1.0), (0.5, 2.0), (0.5, 0.5))
    >>> guard = GroupGaussianFilter(("strict", "open"), (0.5, 2.0)).guard()
    >>> guard.admit(Sampled(groups, (SumQuery(1.0, 3.0),), adaptive=True), 9)
    """

    title: ClassVar[str] = "Gaussian filter of each group"
    reference: ClassVar[str] = GaussianFilter.reference
    rewards_sampling: ClassVar[bool] = False

    names: tuple[str, ...]
    mus: tuple[float, ...]

    def __post_init__(self) -> None:
        check_names(self.names)
        if len(self.mus) != len(self.names):
            raise InvalidArgument(
                f"Expected one mu for each of the {len(self.names)} groups, got {len(self.mus)}."
            )
        pairs = zip(self.names, self.mus, strict=True)
        mus = tuple(_validate.positive(f"mu of group {name!r}", mu) for name, mu in pairs)
        object.__setattr__(self, "mus", mus)

    @property
    def numerical_delta(self) -> float:  # type: ignore[override]
        """0: sums with Gaussian noise need none."""
        return 0.0

    @property
    def groups(self) -> dict[str, GaussianFilter]:
        """The filter of each group."""
        return {name: GaussianFilter(mu) for name, mu in zip(self.names, self.mus, strict=True)}

    def guard(self, relation: Relation | str = Relation.ADD_OR_REMOVE_ONE) -> "GroupGuard":
        """Return a guard that has spent nothing yet."""
        relation = Relation(_validate.choice("relation", relation, tuple(Relation)))
        guards = {name: each.guard(relation) for name, each in self.groups.items()}
        return GroupGuard(description(self, relation), guards)

    def profile(self, method: str, relation: Relation, accuracy: float) -> Profile:
        """Return what the weakest group's limit implies."""
        return GaussianFilter(max(self.mus)).profile(method, relation, accuracy)


class GroupGuard:
    """Guard that admits what the guard of every group admits.

    Args:
        description: What was declared, as plain JSON values.
        guards: The guard of each group, by name.
    """

    def __init__(self, description: dict[str, Any], guards: Mapping[str, FilterGuard]) -> None:
        self._description, self._guards = description, guards

    @property
    def used(self) -> float:
        """The share that is spent of the group with the least left."""
        return max(guard.used for guard in self._guards.values())

    def describe(self) -> dict[str, Any]:
        """Return what was declared, as plain JSON values."""
        return self._description

    def admit(self, event: Event, times: int) -> None:
        """Raise unless every group can afford ``times`` more of ``event``."""
        for name, guard in self._guards.items():
            try:
                guard.admit(event_of_group(event, name), times)
            except BudgetExhausted as error:
                raise BudgetExhausted(f"Group {name!r}: {error}") from None

    def record(self, event: Event, times: int) -> None:
        """Add the cost of ``times`` more steps for every group."""
        for name, guard in self._guards.items():
            guard.record(event_of_group(event, name), times)
