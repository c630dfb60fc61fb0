"""Groups of records with a sampling rate and a bound of their own.

Tests: tests/ledger/test_individual.py.
"""

import math
from dataclasses import dataclass

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Policy

_ADDS_UP = 1e-6  # how far the declared shares may be from 1 in all


@dataclass(frozen=True)
class Individual(Policy, tag="individual"):
    """Poisson sampling in which each public group of records has a rate and a bound of its own.

    A record of group g is included with probability ``rates[g]``, independently of all others, and
    moves every query by at most ``bounds[g]`` times what the query declares. A record of no group
    is never included. Privacy is accounted for each group by itself: there is no guarantee that
    holds for all of them but the weakest.

    Args:
        names: the names of the groups.
        rates: the inclusion probability of each group, in [0, 1].
        bounds: the bound of each group, above 0, as a multiple of the bound that queries declare.
        shares: the declared share of each group among the records, above 0; they add up to 1. They
            are public, and no part of the guarantee.

    Raises:
        InvalidArgument: if a number is out of its range, groups are missing or named twice, or the
            shares do not add up to 1.
    """

    names: tuple[str, ...]
    rates: tuple[float, ...]
    bounds: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        check_names(self.names)
        for field in ("rates", "bounds", "shares"):
            if len(getattr(self, field)) != len(self.names):
                raise InvalidArgument(
                    f"Expected one of {field} for each of the {len(self.names)} groups, got "
                    f"{len(getattr(self, field))}."
                )
        pairs = tuple(zip(self.names, self.rates, strict=True))
        rates = tuple(_validate.real(f"rate of group {name!r}", each, 0, 1) for name, each in pairs)
        object.__setattr__(self, "rates", rates)
        for field in ("bounds", "shares"):
            values = tuple(
                _validate.positive(f"{field[:-1]} of group {name!r}", each)
                for name, each in zip(self.names, getattr(self, field), strict=True)
            )
            object.__setattr__(self, field, values)
        check_shares(dict(zip(self.names, self.shares, strict=True)))

    @property
    def rate(self) -> float:  # type: ignore[override]
        """The expected fraction of the records in one step, by the declared shares."""
        return math.fsum(
            share * rate for share, rate in zip(self.shares, self.rates, strict=True)
        ) / math.fsum(self.shares)

    def number(self, name: str) -> int:
        """Return the position of a group.

        Raises:
            InvalidArgument: if there is no such group.
        """
        return self.names.index(_validate.choice("group", name, self.names))


def check_names(names: tuple[str, ...]) -> None:
    """Raise unless there is a group, and each has a name of its own."""
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if not names or wrong or len(set(names)) != len(names):
        raise InvalidArgument(
            f"Expected groups with a name each, none of them twice, got {list(names)!r}."
        )


def check_shares(shares: dict[str, float]) -> None:
    """Raise unless the shares of all groups add up to 1."""
    total = math.fsum(shares.values())
    if abs(total - 1) > _ADDS_UP:
        listed = ", ".join(f"{name!r}: {share:g}" for name, share in shares.items())
        raise InvalidArgument(
            f"Expected the shares of all groups to add up to 1, got {total:g} ({listed}). They are "
            "public: declare what fraction of the records is in each group."
        )


@dataclass(frozen=True)
class FilteredPoisson(Policy, tag="filtered_poisson"):
    """Poisson sampling from the records whose own filter has room for the step.

    A record that has left takes no part in the arithmetic of the step either. One that has not is
    included with probability ``rate``, independently of all others, and moves the query by at most
    its stored bound, which is at most the bound that the query declares. Whether it has left, and
    its bound, follow from the record and from earlier outputs.

    Args:
        rate: inclusion probability of a record that has not left, in [0, 1].

    Raises:
        InvalidArgument: if the rate is out of its range.

    Reference: docs/proofs/individual-filter.md.
    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.real("rate", self.rate, 0, 1))
