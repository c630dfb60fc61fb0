"""The plan of PATE: what a label costs, how many a budget buys, and what groups may spend.

Tests: tests/ensembles/test_pate.py.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Self

from dpfy import _validate
from dpfy.accounting import EnvelopeGuard, Filter, GaussianFilter, GroupGaussianFilter
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import (
    Envelope,
    LaplaceSum,
    Poisson,
    RecordedQuery,
    Repeated,
    Sampled,
    SumQuery,
)
from dpfy.ledger.guard import Guard
from dpfy.ledger.journal import Header
from dpfy.plans.pate_groups import TeacherGroups
from dpfy.plans.prediction import affordable
from dpfy.types import Budget, GroupBudgets, Relation, Unit, budget_from_json

KIND = "pate"
"""What a ledger's plan says of itself if its releases are the labels of PATE."""

MECHANISMS = ("confident", "gnmax", "lnmax", "interactive")
"""The ways in which teachers are asked."""

_MOST = 2**40  # labels; a budget that buys more needs no count of them


@dataclass(frozen=True)
class PatePlan:
    """What PATE releases, with how much noise, and within which limit.

    Teachers vote on public inputs, and the class with most votes after noise is the label:

    * ``"gnmax"``: with Gaussian noise, on every input.
    * ``"lnmax"``: with Laplace noise, on every input, for a number of ``answers`` fixed in advance.
    * ``"confident"``: the largest count is compared with ``threshold`` first, with noise of its
      own; an input without consensus has no label, and costs that comparison alone.
    * ``"interactive"``: the comparison is of the largest lead over what a student already predicts,
      so that only inputs are labelled of which it has more to learn. Where the comparison fails and
      the student is at least as sure as ``confidence``, its own prediction is the label.

    *Formal guarantee*: one record moves one teacher's vote. A label costs a Gaussian sum of ℓ2
    bound √2 (or a Laplace sum of ℓ1 bound 2), a comparison a Gaussian sum of bound 1. The sum of
    squared ratios of bound to noise never exceeds μ²: all labels together are μ-GDP, whatever the
    votes are. The cost does not depend on the data, and may be published. With ``groups``, votes
    and limits are those of the groups: each group has its own μ.

    Args:
        classes: The number of classes, at least 2.
        parts: The number of teachers, at least 1.
        mechanism: One of :data:`MECHANISMS`.
        answer_noise: The standard deviation of the noise of each count, in votes; for ``"lnmax"``,
            the scale.
        check_noise: The standard deviation of the noise of the comparison, in votes.
        threshold: What the comparison has to reach, in votes.
        confidence: The probability of the student's prediction from which on it is a label.
        answers: The number of labels, for ``"lnmax"``.
        mu: The limit μ, for all other mechanisms, without groups.
        groups: The groups of records, their weights and their limits.
        budget: The ε and δ that the limit was made from, if it was.
        relation: The neighbouring relation.
        unit: The unit of privacy.

    Raises:
        InvalidArgument: If an argument is out of its range, or has no use beside the others.

    Reference: Papernot et al. 2017, §2 (LNMax); 2018, §4 and Algorithms 1 and 2; Boenisch et al.
    2022 (groups); docs/proofs/pate.md.

    >>> plan = PatePlan(classes=10, parts=250, answer_noise=40.0, mu=0.6, mechanism="gnmax")
    >>> plan.most_answers
    288
    >>> PatePlan.from_json(plan.to_json()) == plan
    True
    """

    classes: int
    parts: int
    answer_noise: float
    mechanism: str = "confident"
    check_noise: float | None = None
    threshold: float | None = None
    confidence: float | None = None
    answers: int | None = None
    mu: float | None = None
    groups: TeacherGroups | None = None
    budget: Budget | GroupBudgets | None = None
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    unit: Unit = Unit.RECORD

    def __post_init__(self) -> None:
        _validate.count("classes", self.classes, minimum=2)
        _validate.count("parts", self.parts)
        _validate.choice("mechanism", self.mechanism, MECHANISMS)
        if self.groups is not None and self.mechanism == "lnmax":
            raise InvalidArgument(
                "Groups have limits of their own with Gaussian noise only. Use mechanism='gnmax' "
                "or 'confident'."
            )
        needed = {
            "answers": self.mechanism == "lnmax",
            "mu": self.mechanism != "lnmax" and self.groups is None,
            "check_noise": self._checks,
            "threshold": self._checks,
            "confidence": self.mechanism == "interactive",
        }
        for name, wanted in needed.items():
            if (getattr(self, name) is not None) != wanted:
                raise InvalidArgument(
                    f"Expected {name}= to be {'given' if wanted else 'left out'} for "
                    f"mechanism={self.mechanism!r}{' with groups' if self.groups else ''}, got "
                    f"{getattr(self, name)!r}."
                )
        self._check_numbers()
        for name, kind in (("relation", Relation), ("unit", Unit)):
            value = kind(_validate.choice(name, getattr(self, name), tuple(kind)))
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        for name in ("answer_noise", "check_noise", "mu"):
            if getattr(self, name) is not None:
                value = _validate.positive(name, getattr(self, name))
                object.__setattr__(self, name, value)
        if self.answers is not None:
            _validate.count("answers", self.answers)
        if self.threshold is not None:
            _validate.real("threshold", self.threshold, 0, self.parts)
        if self.confidence is not None:
            _validate.real("confidence", self.confidence, 0, 1)
        teachers = self.groups.teachers if self.groups is not None else ()
        if teachers and sum(teachers) != self.parts:
            raise InvalidArgument(
                f"Expected parts={self.parts!r} to be the sum of the groups' teachers "
                f"{list(teachers)!r}."
            )

    @property
    def _checks(self) -> bool:
        return self.mechanism in ("confident", "interactive")

    @property
    def answer(self) -> Sampled:
        """The cost of one label."""
        if self.mechanism == "lnmax":
            return Sampled(Poisson(1.0), (LaplaceSum(2.0, self.answer_noise, "votes"),))
        return self._event(SumQuery(math.sqrt(2), self.answer_noise, "votes"))

    @property
    def check(self) -> Sampled | None:
        """The cost of one comparison with the threshold, if there is one."""
        if self.check_noise is None:
            return None
        return self._event(SumQuery(1.0, self.check_noise, "most_votes"))

    @property
    def price(self) -> Sampled:
        """The most that one input can cost: its comparison, if there is one, and its label."""
        if self.check is None:
            return self.answer
        return self._event(*self.check.queries, *self.answer.queries)

    @property
    def envelope(self) -> Envelope:
        """The events that are fixed in advance: those of ``"lnmax"``."""
        return () if self.answers is None else (Repeated(self.answer, self.answers),)

    @property
    def filter(self) -> Filter | None:
        """The limit that is declared before the first label; ``"lnmax"`` has a fixed list."""
        if self.groups is not None:
            return GroupGaussianFilter(self.groups.names, self.groups.mus)
        return None if self.mu is None else GaussianFilter(self.mu)

    @property
    def guard(self) -> Guard:
        """A fresh guard that refuses what would exceed the limit."""
        if self.filter is None:
            return EnvelopeGuard(self.envelope, None, self.relation)
        return self.filter.guard(self.relation)

    @property
    def most_answers(self) -> int:
        """The number of labels that the limit buys if every comparison succeeds."""
        return self.answers or affordable(self.guard, self.price, _MOST)

    def answers_at(self, consensus: float) -> int:
        """Return how many labels the limit buys if a share of the comparisons succeeds.

        Args:
            consensus: The share, above 0 and at most 1: a public guess.

        Returns:
            The number of labels, rounded down.

        Raises:
            InvalidArgument: If the share is out of its range.
        """
        _validate.real("consensus", consensus, 0, 1, open_low=True)
        if self.check_noise is None:
            return self.most_answers
        label, check = 2 / self.answer_noise**2, 1 / self.check_noise**2
        return int(self.most_answers * (label + check) / (label + check / consensus) + 1e-9)

    def header(self, key_source: str = "operating system") -> Header:
        """Return the declaration with which a ledger of these labels begins."""
        return Header(
            unit=self.unit,
            relation=self.relation,
            plan=self.to_json(),
            envelope=self.envelope,
            key_source=key_source,
            filter=None if self.filter is None else self.filter.to_json(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON values."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"kind": KIND} | {
            name: _plain(value) for name, value in values.items() if value is not None
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        """Return the plan that :meth:`to_json` wrote.

        Raises:
            InvalidArgument: If it is the plan of something else.
        """
        if value is None or value.get("kind") != KIND:
            raise InvalidArgument("Expected the plan of PATE; this is one of something else.")
        rest: dict[str, Any] = {name: each for name, each in value.items() if name != "kind"}
        if "groups" in rest:
            rest["groups"] = TeacherGroups(**{k: tuple(v) for k, v in rest["groups"].items()})
        if "budget" in rest:
            rest["budget"] = budget_from_json(rest["budget"])
        return cls(**rest)

    def _event(self, *queries: RecordedQuery) -> Sampled:
        """Return an event on all records that follows earlier outputs, as checks and labels do."""
        policy = Poisson(1.0) if self.groups is None else self.groups.policy
        return Sampled(policy, queries, adaptive=True)


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, Budget | GroupBudgets):
        return value.to_json()
    if isinstance(value, TeacherGroups):
        return {name: list(each) for name, each in asdict(value).items()}
    return value
