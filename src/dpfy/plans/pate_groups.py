"""Groups of records in PATE: the weight of a group's teachers, or its copies, by its budget.

Tests: tests/ensembles/test_pate.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from dpfy import _validate
from dpfy.accounting import GaussianFilter
from dpfy.errors import InvalidArgument
from dpfy.ledger.individual import Individual, check_names

METHODS = ("weight", "upsample")
"""The ways in which records with a larger budget count more."""

UNIT = 2.0**-20
"""Weights are multiples of it, so that weighted votes are added without rounding."""


@dataclass(frozen=True)
class TeacherGroups:
    """Groups of records with limits of their own, and how much their records count.

    With teachers of its own, a group's bound is the weight of their votes. Without, it is the
    number of teachers that a record is given to.

    *Formal guarantee*: a record of group g moves votes by at most ``bounds[g]`` times what a record
    moves them without groups, so that a label costs it ``bounds[g]``² times as much; its limit is
    ``mus[g]``.

    Args:
        names: The names of the groups.
        shares: The declared share of each group among the records; they add up to 1.
        mus: The limit μ of each group, above 0.
        bounds: The weight or the number of copies of each group, above 0.
        teachers: The number of teachers of each group; empty where all groups share them.

    Raises:
        InvalidArgument: If a number is out of its range, or copies are no whole numbers.

    Reference: Boenisch et al. 2022; docs/proofs/pate.md, Theorem 3.

    >>> groups = TeacherGroups.weighted({"strict": (1.0, 0.5), "open": (3.0, 0.5)}, 100, 1e-5)
    >>> groups.teachers, [round(bound, 3) for bound in groups.bounds]
    ((50, 50), [0.543, 1.457])
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]
    mus: tuple[float, ...]
    bounds: tuple[float, ...]
    teachers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in ("mus", "bounds", "shares"):
            values = tuple(_validate.positive(field, each) for each in getattr(self, field))
            object.__setattr__(self, field, values)
        if len(self.mus) != len(self.names) or len(self.teachers) not in (0, len(self.names)):
            raise InvalidArgument("Expected one mu, and one number of teachers, for each group.")
        for count in self.teachers:
            _validate.count("teachers", count)
        _ = self.policy  # which checks the rest
        unit = UNIT if self.teachers else 1.0
        if any(bound % unit for bound in self.bounds):
            raise InvalidArgument(
                f"Expected weights to be multiples of 2⁻²⁰, and copies whole numbers; got "
                f"{list(self.bounds)!r}. TeacherGroups.weighted and .upsampled give such ones."
            )

    @property
    def policy(self) -> Individual:
        """All records, with the bounds of their groups."""
        return Individual(self.names, (1.0,) * len(self.names), self.bounds, self.shares)

    @property
    def parts(self) -> dict[str, int] | None:
        """The number of teachers of each group, where they have their own."""
        return dict(zip(self.names, self.teachers, strict=True)) if self.teachers else None

    @property
    def copies(self) -> dict[str, int]:
        """The number of teachers that a record of each group is given to, where they share them."""
        if self.teachers:
            return {}
        return {name: int(bound) for name, bound in zip(self.names, self.bounds, strict=True)}

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weight of each teacher's vote, or None where all count 1."""
        if not self.teachers:
            return None
        pairs = zip(self.bounds, self.teachers, strict=True)
        return tuple(bound for bound, count in pairs for _ in range(count))

    @classmethod
    def weighted(cls, groups: Mapping[str, tuple[float, float]], parts: int, delta: float) -> Self:
        """Give each group teachers by its share, whose weight is in proportion to its μ.

        The weights of all teachers add up to the number of teachers, or a millionth less.

        Args:
            groups: For each group's name its ε and its share of the records.
            parts: The number of teachers, at least one for each group.
            delta: The δ of all groups, in (0, 1).

        Returns:
            The groups.

        Raises:
            InvalidArgument: If an argument is out of its range.
        """
        names, shares, mus = _limits(groups, delta)
        teachers = _apportioned(shares, parts)
        mean = math.fsum(m * count for m, count in zip(mus, teachers, strict=True)) / parts
        bounds = tuple(math.floor(mu / mean / UNIT) * UNIT for mu in mus)
        return cls(names, shares, mus, bounds, teachers)

    @classmethod
    def upsampled(
        cls,
        groups: Mapping[str, tuple[float, float]],
        delta: float,
        copies: Sequence[int] | None = None,
    ) -> Self:
        """Give each record to a number of teachers that is about in proportion to its group's μ.

        Args:
            groups: For each group's name its ε and its share of the records.
            delta: The δ of all groups, in (0, 1).
            copies: The number of teachers for a record of each group; by default its μ over that of
                the strictest group, rounded. Each copy more asks for as many more teachers.

        Returns:
            The groups.

        Raises:
            InvalidArgument: If an argument is out of its range.
        """
        names, shares, mus = _limits(groups, delta)
        if copies is None:
            copies = [round(mu / min(mus)) for mu in mus]
        counts = tuple(_validate.count("copies", each) for each in copies)
        return cls(names, shares, mus, tuple(map(float, counts)))

    @property
    def gain(self) -> float:
        """How many times as many labels as at the strictest limit, at the same share of noise.

        Without teachers of their own, this takes as many more teachers as there are copies.
        """
        return (_worth(self.bounds, self.shares, self.mus) / min(self.mus)) ** 2


def _limits(
    groups: Mapping[str, tuple[float, float]], delta: float
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Return the names, shares and limits of the groups."""
    check_names(tuple(groups))
    for name, pair in groups.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgument(
                f"Expected group {name!r} to have an epsilon and a share of the records, as in "
                f"(1.0, 0.34); got {pair!r}."
            )
    mus = tuple(GaussianFilter.within(epsilon, delta).mu for epsilon, _ in groups.values())
    return tuple(groups), tuple(float(share) for _, share in groups.values()), mus


def _worth(bounds: Sequence[float], shares: Sequence[float], mus: Sequence[float]) -> float:
    """Return the mean bound, times the largest μ of an unweighted vote that all groups allow."""
    mean = math.fsum(b * s for b, s in zip(bounds, shares, strict=True)) / math.fsum(shares)
    return mean * min(mu / bound for mu, bound in zip(mus, bounds, strict=True))


def _apportioned(shares: Sequence[float], parts: int) -> tuple[int, ...]:
    """Return whole numbers about in proportion to shares, at least 1 each, that add up to parts."""
    if _validate.count("parts", parts) < len(shares):
        raise InvalidArgument(
            f"Expected at least one teacher for each of {len(shares)} groups, got parts={parts!r}."
        )
    counts = [max(1, math.floor(parts * share)) for share in shares]
    while sum(counts) != parts:
        step = 1 if sum(counts) < parts else -1
        able = [place for place, count in enumerate(counts) if count + step >= 1]
        place = max(able, key=lambda each: step * (parts * shares[each] - counts[each]))
        counts[place] += step
    return tuple(counts)
