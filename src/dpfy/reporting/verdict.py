"""The judgements of a report: whether there is a guarantee, and in which tier it is.

Tests: tests/reporting/test_document.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfy.reporting import label_words
from dpfy.reporting.costs import Costs
from dpfy.reporting.facts import NOT_DECLARED, RunFacts
from dpfy.reporting.numbers import delta_text
from dpfy.reporting.record import LedgerRecord
from dpfy.types import Relation, Unit


@dataclass(frozen=True)
class Verdict:
    """Whether the run is private, and every reason why it is not."""

    reasons: tuple[str, ...]

    @property
    def private(self) -> bool:
        """Whether the report states a guarantee."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain JSON values."""
        return {"private": self.private, "reasons": list(self.reasons)}


@dataclass(frozen=True)
class Tier:
    """The tier of ε (Ponomareva et al. 2023, §5.2.1), or None and why there is none."""

    number: int | None
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the tier as plain JSON values."""
        return {"number": self.number, "text": self.text}


def judge(record: LedgerRecord, costs: Costs) -> Verdict:
    """Collect everything that voids the guarantee; without reasons it stands."""
    reasons = []
    if not costs.secret_key:
        reasons.append(
            f"Noise and samples came from a key that is not secret ({record.key_source}): anybody "
            "who knows it can subtract the noise."
        )
    if record.exposures:
        reasons.append(
            "The ledger records releases without any protection: "
            + "; ".join(record.exposures)
            + "."
        )
        if record.search is not None and record.search.void:
            reasons.append(record.search.void)
    elif not costs.headline.finite:
        reasons.append(
            f"No finite ε holds at this δ: {costs.headline.note or 'the bound is infinite'}."
        )
    if record.unregistered:
        reasons.append(
            f"{record.unregistered} reserved steps are not among those registered before the first "
            "step; steps added after looking at outputs are not covered by this accounting."
        )
    return Verdict(tuple(reasons))


_TIERS = (
    (1.0, "Tier 1, strong formal guarantee (ε ≤ 1)."),
    (10.0, "Tier 2, reasonable guarantee (1 < ε ≤ 10)."),
    (
        math.inf,
        "Tier 3, weak formal guarantee (ε > 10): it is not by itself evidence of anonymisation; "
        "further measures such as an empirical audit are called for.",
    ),
)


TIERS_MEAN = "Tiers grade the ε of whole users: 1 is up to 1, 2 up to 10, 3 above."


def delta_caution(delta: float, plan: Mapping[str, Any] | None) -> str:
    """Return a warning if δ is not below one over the declared number of units; else nothing.

    >>> delta_caution(1e-5, {"records": 1000}), delta_caution(1e-5, None)
    ('', '')
    """
    count = (plan or {}).get("records")
    if not isinstance(count, int) or count < 1 or delta < 1 / count:
        return ""
    unit = "users" if (plan or {}).get("unit") == "user" else "records"
    advice = f", such as {delta_text(float(count) ** -1.1)} ({count}^-1.1)" if count > 1 else ""
    return (
        f"δ = {delta_text(delta)} is not below 1/{count}, one over the number of {unit}: to "
        "publish one of them, drawn at random, would be within such a δ. Choose a δ well below "
        f"1/{count}{advice}."
    )


def tier(facts: RunFacts, record: LedgerRecord, costs: Costs, verdict: Verdict) -> Tier:
    """Return the tier of the guarantee.

    The guide defines tiers only for whole users, and for add-or-remove or zero-out neighbours.
    """
    if not verdict.private:
        return Tier(None, "Not applicable: there is no guarantee to place in a tier.")
    if record.unit is Unit.LABEL:
        return Tier(None, label_words.TIER)
    if record.relation is Relation.REPLACE_ONE:
        return Tier(
            None,
            "Not applicable: the tiers are defined for add-or-remove and zero-out neighbours, and "
            "this guarantee is for replacing one.",
        )
    if record.unit is not Unit.USER and facts.records_per_user_at_most_one is not True:
        said = (
            "it is declared that a user may own several"
            if facts.records_per_user_at_most_one is False
            else "nobody declared that a user owns at most one"
        )
        return Tier(
            None,
            f"Not applicable: the tiers are about users, the unit here is one record, and {said}. "
            "A user with k records is protected by about k times this ε, at a larger δ.",
        )
    if record.unit is Unit.USER and facts.record == NOT_DECLARED:
        return Tier(
            None,
            "Not applicable: the unit is the user, but nobody declared that one item of the data "
            "set holds all that one user contributed.",
        )
    assert costs.headline.interval is not None
    number, text = next(
        (index, text)
        for index, (limit, text) in enumerate(_TIERS, start=1)
        if costs.headline.interval.upper <= limit
    )
    declared = (
        ""
        if record.unit is Unit.USER
        else " It rests on the declaration that a user owns at most one record."
    )
    weakest = " It is that of the weakest group of records." if costs.groups else ""
    return Tier(number, text + declared + weakest)
