"""A report as Markdown, readable as plain text.

Tests: tests/reporting/test_formats.py.
"""

import re
from typing import TYPE_CHECKING

from dpfy.reporting import layout
from dpfy.reporting.table import Table

if TYPE_CHECKING:
    from dpfy.reporting.document import Report


def render(report: "Report") -> str:
    """Return the whole report; the first line says NOT PRIVATE if it is not."""
    facts = report.facts
    warning = "" if report.verdict.private else "NOT PRIVATE: "
    blocks = [
        f"# {warning}{escape(facts.title)}: {escape(facts.name)}",
        f"**{escape(layout.headline(report))}**",
        *(f"> **{escape(caution)}**" for caution in layout.cautions(report)),
        escape(report.formal_statement),
        escape(report.plain_statement),
        "\n".join(f"- {name}: {escape(value)}" for name, value in layout.key_facts(report)),
        *(_table(table) for table in layout.tables(report) if table.rows),
        "The items follow Ponomareva et al. 2023, *How to DP-fy ML*.",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(table: Table) -> str:
    lines = [
        _row(table.columns),
        "|" + "---|" * len(table.columns),
        *(_row(row) for row in table.rows),
    ]
    lead = f"{escape(table.lead)}\n\n" if table.lead else ""
    return f"## {escape(table.title)}\n\n{lead}" + "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def escape(text: str) -> str:
    """Keep declared text from becoming markup or breaking a table."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", " ".join(text.split()))
