"""Cards that notebooks show of plans, guarantees, intervals, ledgers and reports.

A card is static: no script, no address, every text escaped. Its style is that of reports and stays
within the card.
"""

import re
from collections.abc import Iterable, Sequence
from functools import singledispatch
from hashlib import sha256

from dpfy.accounting import Guarantee
from dpfy.accounting.filtered import FilterGuarantee, GroupFilterGuarantee
from dpfy.accounting.grouped import GroupGuarantee
from dpfy.errors import DpfyError, UnsupportedEvent
from dpfy.ledger import Ledger
from dpfy.plans.plan import Plan
from dpfy.reporting import html
from dpfy.reporting.document import Report, report
from dpfy.reporting.facts import RunFacts
from dpfy.reporting.numbers import bracket_text, delta_text, epsilon_text
from dpfy.reporting.page import STYLE
from dpfy.reporting.plan_words import plan_rows
from dpfy.reporting.statement import METHOD_NAMES
from dpfy.reporting.table import Table
from dpfy.types import Budget, GroupBudgets, GroupInterval, Interval

DELTAS = (1e-5, 1e-6, 1e-8)
"""The δ at which a guarantee is shown that has been asked for none."""
_ROUNDED = "Each ε is rounded up; the bracket shows the certified interval."
TEST_KEY = "NOT PRIVATE: noise and samples came from a key that is not secret."
# Nested rules hold inside of the card only, so that a notebook keeps its own look.
_SCOPED = ".dpfy {" + STYLE.replace(":root {", "& {").replace("body {", "& {") + "}"
_LAYOUT = """
.dpfy { max-width: 60rem; padding: .25rem; }
.dpfy details { margin: .75rem 0; }
.dpfy summary { cursor: pointer; }
.dpfy .figures figure > svg { max-width: 40rem; }
"""


def framed(*parts: str) -> str:
    """Return parts of a page as one card with its style."""
    return f'<div class="dpfy"><style>{_SCOPED}{_LAYOUT}</style>{"".join(parts)}</div>'


def card(
    title: str,
    number: str = "",
    *,
    cautions: Iterable[str] = (),
    sentence: str = "",
    facts: Iterable[tuple[str, str]] = (),
) -> str:
    """Return the frame that a card begins with.

    Args:
        title: what is shown.
        number: the number to read first; nothing if there is none.
        cautions: what to know before any number; they make the card that of something not private.
        sentence: what the number means.
        facts: names and values.

    Returns:
        The HTML.
    """
    warned = "".join(f'<p class="caution">{html.escaped(text)}</p>' for text in cautions)
    shown = f'<p class="number">{html.escaped(number)}</p>' if number else ""
    meaning = f"<p>{html.escaped(sentence)}</p>" if sentence else ""
    tiles = "".join(
        f"<div><dt>{html.escaped(name)}</dt><dd>{html.escaped(value)}</dd></div>"
        for name, value in facts
    )
    return (
        f'<header class="{"bad" if warned else "good"}"><h1>{html.escaped(title)}</h1>{warned}'
        f'{shown}{meaning}<dl class="tiles">{tiles}</dl></header>'
    )


def picture(svg: str) -> str:
    """Return a drawing as part of a card."""
    drawn = _own_names(svg[svg.index("<svg") :])
    return f'<section class="figures"><figure>{drawn}</figure></section>'


def _own_names(drawn: str) -> str:
    """Return drawings whose parts have names of their own, as all cells are one page."""
    own = sha256(drawn.encode()).hexdigest()[:8]
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>d{own}-", drawn)


def _opening(found: Report) -> str:
    summary, figures = html.opening(found)
    return summary + _own_names(figures)


@singledispatch
def html_of(shown: object) -> str | None:
    """Return the card of an object, or None: notebooks then show its repr."""
    return None


@html_of.register
def _(shown: Interval) -> str:
    return framed(
        card(
            "Interval",
            epsilon_text(shown.upper),
            sentence="The upper end of a certified interval: the value that may be claimed.",
            facts=(("Certified lower bound", epsilon_text(shown.lower, lower=True)),),
        )
    )


@html_of.register
def _(shown: GroupInterval) -> str:
    rows = tuple((name, bracket_text(each)) for name, each in shown.groups.items())
    return framed(
        card(
            "Interval of each group",
            epsilon_text(shown.upper),
            sentence="The upper end of the weakest group's certified interval: the one value that "
            "may be claimed for every record.",
        ),
        html.table(Table("Groups", ("Group", "Claim, with its interval"), rows)),
    )


@html_of.register
def _(shown: Plan) -> str:
    rows = (("Epochs", f"{shown.epochs:,}"), *plan_rows(shown.to_json()))
    facts = [(name, value) for name, value in rows if name != "Budget"]
    return framed(
        card(
            "Plan",
            _limit_of(shown),
            sentence="What will run, from public constants alone. Nothing is spent yet.",
            facts=(
                ("Unit of privacy", f"one {shown.unit}"),
                ("Neighbours", str(shown.relation).replace("_", " ")),
                *facts,
            ),
        )
    )


def _limit_of(plan: Plan) -> str:
    """Return the budget or the filter of a plan in words."""
    if isinstance(plan.budget, Budget):
        return f"ε ≤ {plan.budget.epsilon:g} at δ = {delta_text(plan.budget.delta)}"
    if isinstance(plan.budget, GroupBudgets):
        each = zip(plan.budget.names, plan.budget.epsilons, strict=True)
        listed = ", ".join(f"{name} {epsilon:g}" for name, epsilon in each)
        return f"ε ≤ {listed} at δ = {delta_text(plan.budget.delta)}"
    if plan.filter is not None:
        return f"Under a {plan.filter.title}"
    return "Not calibrated" if plan.noise_multiplier is None else "No budget"


@html_of.register
def _(shown: Guarantee) -> str:
    facts = (
        (shown.counted.capitalize(), f"{shown.steps:,}"),
        ("Unit of privacy", f"one {shown.unit}"),
        ("Neighbours", str(shown.relation).replace("_", " ")),
        ("Accountant", METHOD_NAMES.get(shown.method, shown.method.replace("_", " "))),
    )
    deltas = _deltas_of(shown)
    columns = {"ε": shown}
    lead = _ROUNDED
    if not _is_limit(shown) and (whole := shown.envelope) is not None:
        columns = {"ε of what is on record": shown, "ε of all registered steps": whole}
        lead = (
            f"{_ROUNDED} A run that stopped early after looking at outputs may claim the last "
            "column only."
        )
    elif isinstance(shown, GroupGuarantee):
        columns = {f"ε of {name}": each for name, each in shown.groups.items()}
    rows = tuple(
        (delta_text(delta), *(_claim_at(each, delta) for each in columns.values()))
        for delta in deltas
    )
    return framed(
        card("Guarantee", cautions=() if shown.private else (TEST_KEY,), facts=facts),
        html.table(Table("Privacy cost", ("δ", *columns), rows, lead)),
    )


def _deltas_of(shown: Guarantee) -> list[float]:
    """Return the usual δ, and that of a filter, from the largest to the smallest."""
    own = (shown.source.filter or {}).get("delta")
    return sorted({*DELTAS, *([own] if isinstance(own, float) else [])}, reverse=True)


def _is_limit(shown: Guarantee) -> bool:
    """Whether the guarantee is that of a filter, whatever is on record."""
    return isinstance(shown, FilterGuarantee | GroupFilterGuarantee)


def _claim_at(guarantee: Guarantee, delta: float) -> str:
    try:
        return bracket_text(guarantee.epsilon(delta))
    except DpfyError:
        return "no bound"


@html_of.register
def _(shown: Ledger) -> str:
    return ledger_card(shown, "Ledger")


@html_of.register
def _(shown: Report) -> str:
    return framed(_opening(shown), _folded(html.tables(shown)))


def ledger_card(ledger: Ledger, title: str, delta: float | None = None) -> str:
    """Return the card of what a ledger holds, and of nothing else.

    Args:
        ledger: the ledger.
        title: what is shown.
        delta: the δ of the claim. Default: that of the registered budget, or 1e-5 without one; the
            card names it.

    Returns:
        The HTML.
    """
    if ledger.header is None:
        text = "It has no header yet: no plan is registered, and nothing is spent."
        return framed(card(title, sentence=text))
    name = "in memory" if ledger.path is None else ledger.path.name
    facts = RunFacts(name=name, title=title)
    try:
        return framed(_opening(report(ledger, delta or _registered_delta(ledger), facts)))
    except UnsupportedEvent as error:
        return framed(card(f"{title}: {name}", cautions=(f"There is no bound: {error}",)))


def _registered_delta(ledger: Ledger) -> float:
    """Return the δ that a ledger's plan or filter names, or the first of the usual ones."""
    assert ledger.header is not None
    plan = ledger.header.plan or {}
    for declared in (plan.get("budget"), plan.get("filter"), ledger.header.filter, plan):
        delta = declared.get("delta") if isinstance(declared, dict) else None
        if isinstance(delta, float) and 0 < delta < 1:
            return delta
    return DELTAS[0]


def _folded(tables: Sequence[str]) -> str:
    return f"<details><summary>All of the report</summary>{''.join(tables)}</details>"
