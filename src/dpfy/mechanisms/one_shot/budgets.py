"""Budgets of groups of records, and what may be chosen from them before any record is read.

Tests: tests/mechanisms/one_shot/test_budgets.py.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.individual import Individual, check_names, check_shares

_DOWN = 1 - 1e-12  # more than the error of a rate: e^(ε - t) loses |ε - t|·2⁻⁵³
_POINTS = 512  # thresholds that are tried

Groups = Mapping[str, tuple[float, float]]
"""The ε and the declared share of the records of each group, by name."""


@dataclass(frozen=True)
class Budgets:
    """The ε that each public group of records allows one answer, and the groups' sizes.

    Args:
        names: The names of the groups.
        epsilons: The ε of each group, finite and above 0.
        shares: The declared share of each group among the records, above 0; they add up to 1. They
            are public, and only the accuracy of answers rests on them.

    Raises:
        InvalidArgument: If a number is out of its range, groups are missing or named twice, or the
            shares do not add up to 1.

    >>> Budgets.of({"strict": (0.5, 0.4), "open": (2.0, 0.6)}).largest
    2.0
    """

    names: tuple[str, ...]
    epsilons: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        check_names(self.names)
        for field, each in (("epsilons", "epsilon"), ("shares", "share")):
            given = getattr(self, field)
            if len(given) != len(self.names):
                raise InvalidArgument(
                    f"Expected one {each} for each of the {len(self.names)} groups, got "
                    f"{len(given)}."
                )
            checked = tuple(
                _validate.positive(f"{each} of group {name!r}", value)
                for name, value in zip(self.names, given, strict=True)
            )
            object.__setattr__(self, field, checked)
        check_shares(dict(zip(self.names, self.shares, strict=True)))

    @classmethod
    def of(cls, groups: "Groups | Budgets") -> Self:
        """Return the budgets of a mapping from names to pairs of ε and share.

        Raises:
            InvalidArgument: If a group has no such pair, or as for the budgets themselves.
        """
        if isinstance(groups, cls):
            return groups
        if not isinstance(groups, Mapping):
            raise InvalidArgument(
                f"Expected groups as {{name: (epsilon, share)}}, got {type(groups).__name__}."
            )
        for name, pair in groups.items():
            if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
                raise InvalidArgument(
                    f"Expected group {name!r} to have an epsilon and a share of the records, as in "
                    f"(1.0, 0.5), got {pair!r}."
                )
        return cls(
            tuple(groups),
            tuple(pair[0] for pair in groups.values()),
            tuple(pair[1] for pair in groups.values()),
        )

    @property
    def largest(self) -> float:
        """The largest ε of a group."""
        return max(self.epsilons)

    def of_bin(self, names: Sequence[str]) -> tuple[float, float]:
        """Return the smallest ε and the share of several groups."""
        places = [self.names.index(name) for name in names]
        shares = math.fsum(self.shares[place] for place in places)
        return min(self.epsilons[place] for place in places), shares

    def precision(self, names: Sequence[str], records: int) -> float:
        """Return one over the squared error of a count of all records from a bin alone.

        The count of a bin of share s, over s, errs by the noise, 2/(ε·s)², and because others are
        in the bin than on average, by up to records/(4·s); both without a constant that all bins
        share (docs/proofs/personalised.md, Lemma 3).
        """
        epsilon, share = self.of_bin(names)
        return share**2 / (2 / epsilon**2 + records * share / 4)

    def rates(self, threshold: float) -> tuple[float, ...]:
        """Return the rate at which each group has its ε, if what runs on the sample has another.

        It is (e^ε − 1)/(e^threshold − 1), never rounded up, and 1 where ε is the threshold or more
        (docs/proofs/personalised.md, Theorem 1).
        """
        return tuple(
            1.0
            if epsilon >= threshold
            else math.exp(epsilon - threshold)
            * (math.expm1(-epsilon) / math.expm1(-threshold))
            * _DOWN
            for epsilon in self.epsilons
        )

    def policy(
        self, rates: Sequence[float] | None = None, bounds: Sequence[float] | None = None
    ) -> Individual:
        """Return the policy by which groups have these rates and bounds; by default ones."""
        ones = (1.0,) * len(self.names)
        return Individual(
            self.names,
            ones if rates is None else tuple(rates),
            ones if bounds is None else tuple(bounds),
            self.shares,
        )

    def numbers(self, group_of: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return the position of each record's group, and −1 for a record of no known group."""
        places = {name: place for place, name in enumerate(self.names)}
        return np.array([_looked_up(places, name) for name in group_of], dtype=np.int64)


def _looked_up(places: dict[str, int], name: object) -> int:
    """Return the place of a name, or −1: a bad label must neither stop nor announce itself."""
    return places.get(name, -1) if isinstance(name, str) else -1


def best_threshold(groups: Groups | Budgets, records: int) -> float:
    """Return the threshold at which a personalised sample answers counts with the least error.

    A low threshold keeps many records and needs much noise, a high one the opposite. The expected
    squared error of a count of all records is N·Σ share·q·(1 − q) for the coins and 2/t² for the
    noise, both over (Σ share·q)². Everything in it is declared.

    *Assumes* for accuracy alone that ``records`` and the shares are about right. A threshold that
    was chosen from the records would itself be a release that nobody has paid for, and there is no
    function that chooses one.

    Args:
        groups: The ε and the share of the records of each group, by name.
        records: The public number of records, at least 1.

    Returns:
        The threshold, between the smallest and the largest ε of a group.

    Raises:
        InvalidArgument: If a declaration is out of its range, or ``records`` is no number.

    Reference: Niu et al. 2021 (AdaPDP), whose choice looks at the data;
    docs/proofs/personalised.md, section 5.

    >>> best_threshold({"strict": (0.1, 0.5), "open": (1.0, 0.5)}, records=20)
    1.0
    """
    budgets, number = Budgets.of(groups), check_records(records, 1)
    low, high = min(budgets.epsilons), budgets.largest
    tried = {*budgets.epsilons, *np.linspace(low, high, _POINTS).tolist()}
    return min(sorted(tried), key=lambda threshold: _squared_error(budgets, threshold, number))


def check_records(records: object, minimum: int = 0) -> int:
    """Return the declared number of records.

    Raises:
        InvalidArgument: If it is no number, but records themselves, or too small.
    """
    if not isinstance(records, Integral):
        raise InvalidArgument(
            f"Expected records to be a public whole number, got {type(records).__name__}. What is "
            "chosen from the records themselves tells something about them which no event pays "
            "for: declare shares and a number of records."
        )
    return _validate.count("records", records, minimum)


def _squared_error(budgets: Budgets, threshold: float, records: int) -> float:
    """Return the expected squared error of a count of all records, by a sample."""
    rates, shares = budgets.rates(threshold), budgets.shares
    kept = math.fsum(share * rate for share, rate in zip(shares, rates, strict=True))
    coins = math.fsum(share * rate * (1 - rate) for share, rate in zip(shares, rates, strict=True))
    return (records * coins + 2 / threshold**2) / kept**2


def best_bins(groups: Groups | Budgets, records: int = 0) -> tuple[tuple[str, ...], ...]:
    """Return the bins whose answers combine to the one with the least error.

    A bin is answered at the smallest ε in it. Where groups are alike, the best bins have the
    largest sum of :meth:`Budgets.precision`. They are neighbours in ε: between two bins the sum is
    convex in what is moved from one to the other.

    Args:
        groups: The ε and the share of the records of each group, by name.
        records: The public number of records, at least 0; with 0 noise alone counts as an error.

    Returns:
        The names of the groups in each bin, from the smallest ε to the largest.

    Raises:
        InvalidArgument: If a declaration is out of its range.

    Reference: Li et al. 2017 (partitioning); docs/proofs/personalised.md, Lemma 3.

    >>> best_bins({"a": (1.0, 0.3), "b": (1.1, 0.3), "c": (5.0, 0.4)})
    (('a', 'b'), ('c',))
    """
    budgets, number = Budgets.of(groups), check_records(records)
    places = range(len(budgets.names))
    names = [budgets.names[at] for at in sorted(places, key=lambda at: budgets.epsilons[at])]
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, (0,))]  # of the first k groups: value, cuts
    for end in range(1, len(names) + 1):
        options = (
            (best[start][0] + budgets.precision(names[start:end], number), (*best[start][1], end))
            for start in range(end)
        )
        best.append(max(options))
    return tuple(tuple(names[start:end]) for start, end in pairwise(best[-1][1]))
