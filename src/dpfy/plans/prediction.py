"""The plan of private predictions: what an answer costs, and how many a budget buys."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from dpfy import _validate
from dpfy.accounting import GaussianFilter
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.ledger.events import Event, Poisson, RecordedQuery, Sampled, SumQuery
from dpfy.ledger.guard import Guard
from dpfy.ledger.journal import Header
from dpfy.types import Budget, Relation, Unit

KIND = "prediction"
"""What a ledger's plan says of itself if its releases are predictions."""

_MOST = 2**40  # answers; a budget that buys more needs no count of them
_LARGEST = 1e300  # of a bound, so that the distance of two bounds is finite


@dataclass(frozen=True)
class PredictionPlan:
    """What private predictions release, with how much noise, and within which budget.

    An answer is the class with most votes after noise, or the mean of clipped predictions after
    noise. With a ``threshold`` the largest count of votes is compared with it first, with noise of
    its own, and an input without consensus costs that comparison alone.

    *Formal guarantee*: all answers together, however the inputs were chosen, are (``epsilon``,
    ``delta``)-differentially private: each is a Gaussian sum that one record moves by at most √2
    votes, 1 vote in the comparison, or the distance between ``bounds``; and a Gaussian filter,
    declared before the first answer, refuses the one that would exceed the budget.

    *Assumes* that every record (or, for the unit "user", everything of one user) is in one part.

    Args:
        parts: The number of teachers, which is public; at least 1.
        noise: The standard deviation of the noise, in votes; for regression, in units of the sum
            of the teachers' predictions.
        epsilon: The ε of all answers together, above 0.
        delta: The δ of all answers together, in (0, 1).
        classes: The number of classes, at least 2; None for regression.
        bounds: The least and the largest prediction of a teacher that count; None for classes.
        threshold: The votes that the most popular class needs to be answered; None answers always.
        check_noise: The standard deviation of the noise of that comparison, in votes.
        shape: The shape of one input; inputs of another shape are refused. None leaves it open.
        relation: The neighbouring relation.
        unit: The unit of privacy.

    Raises:
        InvalidArgument: If an argument is out of its range, or has no use beside the others.

    Reference: Papernot et al. 2018, §4.1 (GNMax and Confident-GNMax); Dwork & Feldman 2018;
    docs/proofs/prediction.md.

    >>> plan = PredictionPlan(parts=250, noise=40, epsilon=2.6, delta=1e-5, classes=10)
    >>> plan.answers
    321
    >>> PredictionPlan.from_json(plan.to_json()) == plan
    True
    """

    parts: int
    noise: float
    epsilon: float
    delta: float
    classes: int | None = None
    bounds: tuple[float, float] | None = None
    threshold: float | None = None
    check_noise: float | None = None
    shape: tuple[int, ...] | None = None
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "parts", _validate.count("parts", self.parts))
        set_field(self, "noise", _validate.positive("noise", self.noise))
        Budget(self.epsilon, self.delta)
        for name, kind in (("relation", Relation), ("unit", Unit)):
            set_field(self, name, kind(_validate.choice(name, getattr(self, name), tuple(kind))))
        if (self.classes is None) == (self.bounds is None):
            raise InvalidArgument(
                "Expected classes=, the number of classes, or bounds=(low, high) of a regression; "
                f"got classes={self.classes!r} and bounds={self.bounds!r}."
            )
        if self.classes is not None:
            _validate.count("classes", self.classes, minimum=2)
        if self.bounds is not None:
            set_field(self, "bounds", _checked_bounds(self.bounds))
        self._check_threshold()
        if self.shape is not None:
            sizes = tuple(_validate.count("shape", each) for each in tuple(self.shape))
            set_field(self, "shape", sizes)

    @property
    def answer(self) -> Sampled:
        """The cost of one answer."""
        if self.bounds is not None:
            low, high = self.bounds
            return _chosen_by_outputs(SumQuery(high - low, self.noise, "predictions"))
        return _chosen_by_outputs(SumQuery(math.sqrt(2), self.noise, "votes"))

    @property
    def check(self) -> Sampled | None:
        """The cost of one comparison with the threshold, if there is one."""
        if self.check_noise is None:
            return None
        return _chosen_by_outputs(SumQuery(1.0, self.check_noise, "most_votes"))

    @property
    def price(self) -> Sampled:
        """The most that one input can cost: its comparison, if there is one, and its answer."""
        check = self.check.queries if self.check is not None else ()
        return _chosen_by_outputs(*check, *self.answer.queries)

    @property
    def filter(self) -> GaussianFilter:
        """The limit that is declared before the first answer."""
        return _filter(self.epsilon, self.delta)

    @property
    def answers(self) -> int:
        """The number of inputs that the whole budget buys if each costs the full price."""
        return affordable(self.filter.guard(self.relation), self.price, _MOST)

    def header(self, key_source: str = "operating system") -> Header:
        """Return the declaration with which a ledger of these predictions begins."""
        return Header(
            unit=self.unit,
            relation=self.relation,
            plan=self.to_json(),
            key_source=key_source,
            filter=self.filter.to_json(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        values = {
            item.name: _plain(getattr(self, item.name))
            for item in fields(self)
            if item.name not in ("epsilon", "delta") and getattr(self, item.name) is not None
        }
        return {"kind": KIND, "budget": Budget(self.epsilon, self.delta).to_json(), **values}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        """Return the plan that :meth:`to_json` wrote.

        Raises:
            InvalidArgument: If it is the plan of something else.
        """
        if value is None or value.get("kind") != KIND:
            raise InvalidArgument(
                "Expected the plan of private predictions; the ledger was begun for something else."
            )
        rest = {name: each for name, each in value.items() if name not in ("kind", "budget")}
        for name in {"bounds", "shape"} & set(rest):
            rest[name] = tuple(rest[name])
        return cls(**value["budget"], **rest)

    def _check_threshold(self) -> None:
        if (self.threshold is None) != (self.check_noise is None):
            raise InvalidArgument(
                "Expected threshold= and check_noise= together: the comparison with the threshold "
                f"has noise of its own. Got {self.threshold!r} and {self.check_noise!r}."
            )
        if self.threshold is None:
            return
        if self.classes is None:
            raise InvalidArgument("A threshold is about votes. Leave it out for a regression.")
        _validate.real("threshold", self.threshold, 0, self.parts)
        object.__setattr__(self, "check_noise", _validate.positive("check_noise", self.check_noise))


def affordable(guard: Guard, event: Event, most: int) -> int:
    """Return how many of ``event`` a guard would admit now, up to ``most``; nothing is spent.

    Args:
        guard: The guard; what it admits does not grow with the number.
        event: The event.
        most: The number at which to stop looking.

    Returns:
        The largest number that it admits.
    """

    def fits(times: int) -> bool:
        try:
            guard.admit(event, times)
        except BudgetExhausted:
            return False
        return True

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _chosen_by_outputs(*queries: RecordedQuery) -> Sampled:
    """Return an event on all records that follows earlier outputs, as questions may."""
    return Sampled(Poisson(1.0), queries, adaptive=True)


@lru_cache(maxsize=64)
def _filter(epsilon: float, delta: float) -> GaussianFilter:
    return GaussianFilter.within(epsilon, delta)


def _checked_bounds(given: Any) -> tuple[float, float]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidArgument(f"Expected bounds={given!r} to be two numbers, low and high.")
    low = _validate.real("low", given[0], -_LARGEST, _LARGEST)
    high = _validate.real("high", given[1], low, _LARGEST, open_low=True)
    _validate.real("high - low", high - low, 1 / _LARGEST, 2 * _LARGEST)
    return low, high


def _plain(value: object) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
