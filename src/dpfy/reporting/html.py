"""A report as one HTML page: no script, no address, light and dark, and printable.

Tests: tests/reporting/test_formats.py.
"""

import html
import re
from typing import TYPE_CHECKING

from dpfy.errors import MissingExtra
from dpfy.reporting import card, layout, plots
from dpfy.reporting.page import STYLE
from dpfy.reporting.table import Table

if TYPE_CHECKING:
    from dpfy.reporting.document import Report

_MARKS = {
    "holds": "✓",
    "does not hold": "✗",
    "declared": "◦",
    "not known": "?",
    "recorded": "◦",
    "cited": "◦",
    "checked on synthetic input": "◦",
    "checked when it was read": "◦",
    "allowed for, not proved": "~",
}


def render(report: "Report") -> str:
    """Return the whole page."""
    private = report.verdict.private
    title = _escape(f"{'' if private else 'NOT PRIVATE: '}{card.heading(report.facts)}")
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            content(report),
            "</main>",
            "</body>",
            "</html>",
            "",
        )
    )


def content(report: "Report") -> str:
    """Return what is on the page, without what makes it one."""
    return "\n".join(
        (
            _summary(report),
            _figures(report),
            *(_table(table) for table in layout.tables(report) if table.rows),
            "<footer>The items follow Ponomareva et al. 2023, <cite>How to DP-fy ML</cite>. "
            f"Ledger head <code>{_escape(report.record.head_hash)}</code>.</footer>",
        )
    )


def _summary(report: "Report") -> str:
    private = report.verdict.private
    flag = "" if private else '<p class="void">NOT PRIVATE</p>'
    number = f'<p class="number">{_escape(card.headline(report))}</p>' if private else ""
    cautions = "".join(f'<p class="caution">{_escape(text)}</p>' for text in card.cautions(report))
    tiles = "".join(map(_tile, card.key_facts(report)))
    return (
        f'<header class="{"good" if private else "bad"}">{flag}'
        f"<h1>{_escape(card.heading(report.facts))}</h1>{number}{cautions}"
        f"<p>{_escape(report.plain_statement)}</p>"
        f'<p class="formal">{_escape(report.formal_statement)}</p><dl '
        f'class="tiles">{tiles}</dl></header>'
    )


def _tile(fact: card.KeyFact) -> str:
    meaning = f'<p class="meaning">{_escape(fact.meaning)}</p>' if fact.meaning else ""
    return f"<div><dt>{_escape(fact.name)}</dt><dd>{_escape(fact.value)}{meaning}</dd></div>"


def _figures(report: "Report") -> str:
    void = "" if report.verdict.private else " NOT PRIVATE: this ε is no guarantee."
    try:
        drawn = _drawn(report)
    except MissingExtra as missing:
        note = f"There are no figures. {missing}"
        return f'<section class="figures"><p>{_escape(note)}</p></section>'
    figures = "".join(
        f"<figure>{svg}<figcaption>{_escape(caption + void)}</figcaption></figure>"
        for svg, caption in drawn
        if svg
    )
    return f'<section class="figures">{figures}</section>' if figures else ""


def _drawn(report: "Report") -> tuple[tuple[str | None, str], ...]:
    """The figures, each with what it shows."""
    return (
        (
            plots.epsilon_plot(report.record, report.costs),
            "Privacy spent: ε over the steps, by accounting method.",
        ),
        (
            plots.metric_plot(report.facts, report.costs),
            f"Metric on public data over the ε spent when it was measured: {report.facts.metric}.",
        ),
        (
            plots.tradeoff_plot(report.costs),
            "Errors of a test whether one unit of privacy took part: no point below the line is "
            "reachable.",
        ),
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_escape(name)}</th>' for name in table.columns)
    body = "".join(
        "<tr>" + "".join(_cell(index, cell) for index, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    lead = f"<p>{_escape(table.lead)}</p>" if table.lead else ""
    return (
        f"<section><h2>{_escape(table.title)}</h2>{lead}<div "
        f'class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _cell(index: int, text: str) -> str:
    if index == 0:
        return f'<th scope="row">{_escape(text)}</th>'
    if text in _MARKS:
        return (
            f'<td class="status {re.sub("[ ,]+", "-", text)}">{_MARKS[text]} {_escape(text)}</td>'
        )
    return f"<td>{_breakable(text)}</td>"


def _breakable(text: str) -> str:
    """Let hashes and other long words wrap in a narrow column; ordinary words stay whole."""
    return _escape(re.sub(r"(\S{16})(?=\S)", "\\1\0", text.replace("\0", ""))).replace(
        "\0", "<wbr>"
    )


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


def opening(report: "Report") -> tuple[str, str]:
    """Return the card of a report, and its figures."""
    return _summary(report), _figures(report)


def tables(report: "Report") -> tuple[str, ...]:
    """Return the tables of a report."""
    return tuple(table(each) for each in layout.tables(report) if each.rows)


def table(shown: Table) -> str:
    """Return one table with its title."""
    return _table(shown)


def escaped(text: str) -> str:
    """Return text that a page shows as it is."""
    return _escape(text)
