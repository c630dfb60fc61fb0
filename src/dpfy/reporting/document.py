"""The privacy report of a ledger, computed once and written as Markdown, JSON and HTML."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfy._notebook import html_of
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground
from dpfy.ledger.grant import Booking
from dpfy.reporting import conditions, html, markdown, model_card, statement
from dpfy.reporting.basis import grounds
from dpfy.reporting.costs import Costs
from dpfy.reporting.facts import RunFacts
from dpfy.reporting.record import LedgerRecord
from dpfy.reporting.statement import Item
from dpfy.reporting.verdict import Tier, Verdict, judge, tier

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class Report:
    """The statement of "How to DP-fy ML" §5.3.3 about one ledger at one δ.

    Args:
        facts: the declared facts.
        record: what the ledger says.
        costs: all numbers.
        verdict: whether there is a guarantee, and why not.
        tier: the tier of ε.
        statement: the items of the guide's list.
        assumptions: what the guarantee assumes, with the status of each assumption.
        protection: the attackers that it protects from.
        exclusions: what it does not cover.
        basis: the grounds of the guarantee.

    *Formal guarantee*: where ``verdict.private`` is True, ``formal_statement`` holds for what the
    ledger recorded, given the assumptions that the report lists with their status.

    *Assumes* that the declared facts are true; they are marked as declared.

    Reference: Ponomareva et al. 2023, "How to DP-fy ML", §3.1, Table 1, §5.2.1 and §5.3.3.
    """

    facts: RunFacts
    record: LedgerRecord
    costs: Costs
    verdict: Verdict
    tier: Tier
    statement: tuple[Item, ...]
    assumptions: tuple[Item, ...]
    protection: tuple[Item, ...]
    exclusions: tuple[Item, ...]
    basis: tuple[Ground, ...]

    @property
    def formal_statement(self) -> str:
        """The guarantee in one sentence that can be quoted alone."""
        return statement.formal_statement(self.record, self.costs, self.verdict)

    @property
    def plain_statement(self) -> str:
        """The meaning of the guarantee, without formulas."""
        return statement.plain_statement(self.record, self.costs, self.verdict)

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        return markdown.render(self)

    def to_model_card(self) -> str:
        """Return the section on privacy for the model's card, as Markdown."""
        return model_card.render(self)

    def to_html(self) -> str:
        """Return the report as one HTML page without scripts, other files or network access."""
        return html.render(self)

    def _repr_html_(self) -> str | None:
        return html_of(self)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values that follow ``schema.json`` beside this module."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict.to_json(),
            "guarantee": self._guarantee(),
            "formal_statement": self.formal_statement,
            "plain_statement": self.plain_statement,
            "tier": self.tier.to_json(),
            "costs": self.costs.to_json(),
            **{
                name: [item.to_json() for item in getattr(self, name)]
                for name in ("statement", "assumptions", "protection", "exclusions")
            },
            "basis": [{**ground.to_json(), "status": ground.status} for ground in self.basis],
            "facts": self.facts.to_json(),
            "ledger": self.record.to_json(),
        }

    def _guarantee(self) -> dict[str, Any]:
        """Return the claim, without numbers if there is no guarantee.

        A program that reads only this must not find a number that is no guarantee.
        """
        claim, private = self.costs.headline.to_json(), self.verdict.private
        void = (
            {}
            if private
            else {
                "epsilon": None,
                "epsilon_lower": None,
                "why_null": " ".join(self.verdict.reasons),
            }
        )
        return {
            **claim,
            **void,
            "delta": self.costs.delta,
            "relation": str(self.record.relation),
            "unit": str(self.record.unit),
            "guess": self.costs.guess if private else None,
            **({"groups": self._groups()} if self.costs.groups else {}),
        }

    def _groups(self) -> list[dict[str, Any]]:
        """Return the claim of each group, without numbers if there is no guarantee."""
        numbers = ("epsilon", "epsilon_lower", "guess", "true_positives")
        void = {} if self.verdict.private else dict.fromkeys(numbers)
        return [{**group.to_json(), **void} for group in self.costs.groups]

    def write(self, folder: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
        """Write ``report.md``, ``report.json`` and ``report.html`` into ``folder``.

        Args:
            folder: the folder; it is created if it does not exist.

        Returns:
            The three paths, in this order.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        texts = {
            "report.md": self.to_markdown(),
            "report.html": self.to_html(),
            "report.json": json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
            + "\n",
        }
        for name, text in texts.items():
            (target / name).write_text(text, encoding="utf-8")
        return target / "report.md", target / "report.json", target / "report.html"


def report(
    ledger: Ledger | str | os.PathLike[str] | Booking, delta: float, facts: RunFacts | None = None
) -> Report:
    """Return the privacy report of a ledger at ``delta``.

    Args:
        ledger: an open ledger, or the path of one.
        delta: the δ of the claim, in (0, 1).
        facts: public facts that no ledger can know; None declares nothing.

    Returns:
        The report.

    >>> from dpfy.ledger import Header
    >>> from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
    >>> step = Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),))
    >>> with Ledger.in_memory(header=Header(envelope=(Repeated(step, 100),))) as ledger:
    ...     ledger.reserve(step)
    >>> report(ledger, delta=1e-5).costs.headline.interval.upper
    0.71...
    """
    facts = facts or RunFacts()
    ledger = ledger if isinstance(ledger, Ledger) else Ledger.read(ledger)
    record = LedgerRecord.of(ledger)
    costs = Costs.of(ledger, delta, measured=[step for step, _ in facts.history])
    verdict = judge(record, costs)
    return Report(
        facts=facts,
        record=record,
        costs=costs,
        verdict=verdict,
        tier=tier(facts, record, costs, verdict),
        statement=statement.statement(facts, record, costs, verdict),
        assumptions=conditions.assumptions(facts, record, costs),
        protection=conditions.protection(record, verdict),
        exclusions=conditions.exclusions(facts, record, costs),
        basis=grounds(record, costs.filter),
    )
