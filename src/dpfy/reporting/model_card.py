"""The section on privacy of a model card, in Markdown.

Tests: tests/reporting/test_attacks.py.
"""

from typing import TYPE_CHECKING

from dpfy.reporting import card
from dpfy.reporting.markdown import escape

if TYPE_CHECKING:
    from dpfy.reporting.document import Report


def render(report: "Report") -> str:
    """Return a section for a model card: the claim, its meaning, and what it does not cover."""
    guarantee = [
        f"**{escape(card.headline(report))}**",
        escape(report.formal_statement),
        escape(report.plain_statement),
    ]
    listed = "\n".join(
        f"- {escape(name)}: {escape(value)}"
        for name, value in (
            *((each.name, each.line) for each in card.key_facts(report)),
            ("Data", report.facts.dataset),
            ("One record", report.facts.record),
            ("Hyper-parameters chosen", report.facts.hyperparameter_selection),
            ("Ledger (SHA-256)", report.record.head_hash),
        )
    )
    left = "\n".join(f"- {escape(item.title)}" for item in report.exclusions)
    return "\n\n".join(["## Privacy", *guarantee, listed, f"Not covered:\n\n{left}"]) + "\n"
