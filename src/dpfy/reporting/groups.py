"""What each group of records got, where groups have rates and bounds of their own."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dpfy.accounting import GroupGuarantee, Guarantee
from dpfy.accounting.conversions import membership_advantage, tpr_at_fpr
from dpfy.ledger.individual import group_policies
from dpfy.reporting.attacks import FALSE_ALARM
from dpfy.reporting.numbers import (
    bracket_text,
    delta_text,
    epsilon_text,
    finite,
    most_text,
    plain,
    share_text,
)
from dpfy.reporting.table import Table
from dpfy.types import Interval

CHANGES = (
    "That a record moves from one group to another is a difference that no number here covers: "
    "where neighbours replace a record, both are of one group."
)
LABELS = (
    "Which group a record is in is not hidden. Where the group says something about a person, as a "
    "choice of strict privacy may, the label is itself sensitive and needs protection of its own."
)


@dataclass(frozen=True)
class GroupCost:
    """The guarantee of one group, and what is declared of it.

    Args:
        name: the name of the group.
        share: the declared share of the records; None where events differ.
        rate: the probability with which one of its records takes part; None where events differ.
        bound: its bound as a multiple of the declared one; None where events differ.
        interval: the bracket of its ε.
        guess: how often a fair coin, that decides whether one of its records is in the data, is
            guessed.
        true_positives: the largest true positive rate at a false positive rate of 1 %.
    """

    name: str
    share: float | None
    rate: float | None
    bound: float | None
    interval: Interval
    guess: float
    true_positives: float

    def to_json(self) -> dict[str, Any]:
        """Return the group as plain JSON values."""
        return {
            "name": self.name,
            "share": self.share,
            "rate": self.rate,
            "bound": self.bound,
            "epsilon": finite(self.interval.upper),
            "epsilon_lower": finite(self.interval.lower),
            "guess": self.guess,
            "true_positives": self.true_positives,
        }


def group_costs(guarantee: Guarantee, delta: float) -> tuple[GroupCost, ...]:
    """Return the cost of each group at ``delta``; nothing where records have no groups."""
    if not isinstance(guarantee, GroupGuarantee):
        return ()
    policies = group_policies(guarantee.source.events)

    def cost(name: str, each: Guarantee) -> GroupCost:
        interval = each.epsilon(delta)
        bounded = math.isfinite(interval.upper)
        return GroupCost(
            name,
            _shared(policy.shares[policy.number(name)] for policy in policies),
            _shared(policy.rates[policy.number(name)] for policy in policies),
            _shared(policy.bounds[policy.number(name)] for policy in policies),
            interval,
            (1 + membership_advantage(each)) / 2,
            min(1.0, tpr_at_fpr(each, FALSE_ALARM)) if bounded else 1.0,
        )

    return tuple(cost(name, each) for name, each in guarantee.groups.items())


def listed(groups: Iterable[GroupCost]) -> str:
    """Return the ε of each group in words, rounded up."""
    return ", ".join(
        f"{epsilon_text(group.interval.upper)} for group {group.name!r}" for group in groups
    )


def group_table(groups: tuple[GroupCost, ...], delta: float, unit: str, private: bool) -> Table:
    """Return what each group got; without rows where records have no groups."""
    rows = tuple(
        (
            group.name,
            *(
                "varies" if value is None else plain(value)
                for value in (group.share, group.rate, group.bound)
            ),
            bracket_text(group.interval),
            most_text(group.guess),
            most_text(group.true_positives),
        )
        for group in groups
    )
    void = "" if private else "NOT PRIVATE: the numbers below are no guarantee. "
    return Table(
        f"Each group by itself, at δ = {delta_text(delta)}",
        (
            "Group",
            "Share (declared)",
            "Rate",
            "Bound",
            "ε",
            "Right about a fair coin",
            f"True positives at {share_text(FALSE_ALARM)} false ones",
        ),
        rows,
        f"{void}A group's ε is for neighbours that differ in a {unit} of that group. Its bound is "
        "a multiple of the clip bound. Groups with equal ε at this δ may still differ elsewhere, "
        "which the last two columns show: each is the most that any attacker reaches. All other "
        "tables are about the weakest group.",
    )


def _shared(values: Iterable[float]) -> float | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None
