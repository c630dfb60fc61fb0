"""The pages about runs: all of them, one, and some side by side.

Tests: tests/page/test_app.py.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfy.page import words
from dpfy.page.charts import Axis, Line, chart
from dpfy.page.layout import live, meter, table, tiles
from dpfy.page.reports import Rendered
from dpfy.page.runs import RunState, State
from dpfy.page.words import name, text
from dpfy.reporting.numbers import delta_text, plain

_STATES = {
    State.RUNNING: "A process of this machine holds the ledger.",
    State.COMPLETE: "Every planned step is paid for.",
    State.ENDED: "The run said that it ended, before its last planned step.",
    State.STOPPED: "No process of this machine holds the ledger, and the run did not say that it "
    "ended: it was killed, or is on another machine. What it paid stays paid.",
    State.UNKNOWN: "This system does not tell whether a process holds the ledger.",
    State.REFUSED: "Nothing may be claimed from this ledger.",
    State.READING: "The ledger is being verified.",
}


def all_runs(root: Path, states: Sequence[RunState]) -> str:
    """Return the content of the page of all runs."""
    where = f'<p class="lead">Ledgers in <code>{text(root)}</code>.</p>'
    if not states:
        hint = (
            "<p>There is no ledger yet. A run appears here as soon as it has one: "
            "<code>dpfy train</code> writes to the folder <code>runs</code>.</p>"
        )
        return f"<h1>Runs</h1>{where}{live('runs', hint)}"
    columns = ("Run", "State", "Steps paid", "ε so far", "On public data", "Steps lost", "Compare")
    rows = table("All runs", columns, [_row(state) for state in states])
    form = (
        '<form id="compare" class="actions" action="/compare" method="get">'
        "<button>Compare the chosen runs</button></form>"
    )
    return f"<h1>Runs</h1>{where}{live('runs', rows)}{form}"


def _row(state: RunState) -> tuple[str, ...]:
    measured = state.progress.metric
    metric = (
        "–"
        if measured is None
        else f'{text(words.metric(*measured))}<span class="under">{name(measured[0])}</span>'
    )
    pick = (
        f'<input type="checkbox" class="pick" form="compare" name="run" value="{state.key}" '
        f'id="pick-{state.key}" aria-label="Compare {text(state.name)}">'
    )
    if state.state is State.REFUSED:
        refusal = f'{badge(state)}<span class="under">{text(_short(state.refusal))}</span>'
        return (_link(state), refusal, "–", "no claim", "–", "–", "")
    return (
        _link(state),
        badge(state),
        words.steps(state) + meter(state.steps, state.total, f"Steps of {state.name}"),
        _spent(state),
        metric,
        words.count(state.lost) if state.lost else "none",
        pick,
    )


def _link(state: RunState) -> str:
    day = f'<span class="under">{text(state.created[:16].replace("T", " "))}</span>'
    return f'<a href="/runs/{state.key}" id="run-{state.key}">{name(state.name)}</a>{day}'


def badge(state: RunState) -> str:
    """Return the state of a run in a word, with a shape that needs no colour."""
    return f'<span class="state {state.state.replace(" ", "-")}">{state.state}</span>'


def _spent(state: RunState) -> str:
    said = text(words.spent(state))
    found = state.spent
    if found is not None and not found.private:
        return f'<span class="void-cell">{said}</span>'
    bar = ""
    if found is not None and found.used is not None:
        bar = meter(found.used, 1.0, f"Share of the filter that {state.name} has used")
    elif found is not None and found.epsilon is not None and state.budget is not None:
        bar = meter(found.epsilon, state.budget, f"ε of {state.name} so far, of its budget")
    return f'{said}<span class="under">{text(words.budget(state))}</span>{bar}'


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 160 else sentence[:159] + "…"


def one_run(state: RunState, rendered: Rendered | None) -> str:
    """Return the content of the page of one run."""
    top = f"<h1>{name(state.name)}</h1>"
    if state.state is State.REFUSED:
        refusal = f'{badge(state)}<p class="refusal" role="alert">{text(state.refusal)}</p>'
        return top + live("now", f"{refusal}<p>{_STATES[state.state]}</p>")
    if state.state is State.READING:
        return top + live("now", f"{badge(state)}<p>{_STATES[state.state]}</p>")
    curves = f'<div class="figures">{"".join(_figures(state))}</div>'
    notices = "".join(f'<p class="caution">{text(each)}</p>' for each in state.progress.notices)
    return "".join(
        (
            top,
            live("now", tiles(_facts(state)) + notices),
            live("curves", curves),
            "<h2>Report</h2>",
            live("report", _report(state, rendered)),
        )
    )


def _facts(state: RunState) -> list[tuple[str, str, str]]:
    measured = state.progress.metric
    metric = (
        []
        if measured is None
        else [(f"{words.clean(measured[0])} on public data", text(words.metric(*measured)), "")]
    )
    lost = "Paid for before a crash, and in no model."
    spent_note = state.spent.note if state.spent is not None else ""
    so_far = "Of the steps that are paid for; what may be claimed is in the report."
    return [
        ("State", badge(state), _STATES[state.state]),
        (
            "Steps paid",
            words.steps(state) + meter(state.steps, state.total, "Steps paid of those planned"),
            "",
        ),
        ("ε so far", _spent(state), spent_note or so_far),
        *metric,
        ("Steps lost", words.count(state.lost) if state.lost else "none", lost),
        ("Unit of privacy", text(f"one {state.unit}" if state.unit else "–"), ""),
        ("Ledger head", f"<code>{text(state.head)}</code>", f"{words.count(state.lines)} lines"),
    ]


def _figures(state: RunState) -> list[str]:
    """Return the curves of what was computed and released; under a filter there is none of ε."""
    found = [_spent_curve([state])] if _has_curve(state) else []
    for label, points in state.progress.public.items():
        found.append(
            chart(
                f"{words.clean(label)} on public data",
                Axis("steps"),
                Axis(words.clean(label)),
                [Line("", points)],
            )
        )
    for label, points in state.progress.released.items():
        title = f"{words.clean(label)}, released by steps with noise"
        line = [Line("", points)]
        found.append(chart(title, Axis("steps"), Axis(words.clean(label)), line))
    return found


def _has_curve(state: RunState) -> bool:
    """Whether ε was computed after several steps, by which it is a guarantee."""
    spent = state.spent
    holds = spent is not None and spent.private and spent.epsilon is not None
    return holds and not state.filtered and len(state.progress.epsilons) > 1


def _spent_curve(states: Sequence[RunState]) -> str:
    deltas = {delta_text(state.delta) for state in states}
    whose = f" at δ = {deltas.pop()}" if len(deltas) == 1 else ""
    lines = [Line(words.clean(each.name), each.progress.epsilons) for each in states]
    return chart(f"ε{whose} at the steps at which it was computed", Axis("steps"), Axis("ε"), lines)


def _report(state: RunState, rendered: Rendered | None) -> str:
    if rendered is None:
        return "<p>The report is being computed; it appears here.</p>"
    older = (
        ""
        if rendered.head == state.head
        else '<p class="lead">The report is of some steps ago; a newer one follows.</p>'
    )
    return older + rendered.body


def comparison(states: Sequence[RunState]) -> str:
    """Return the content of the page that shows runs side by side."""
    if not states:
        return (
            "<h1>Compare runs</h1><p>Choose runs on <a href='/'>the page of all runs</a>, and "
            "compare them here.</p>"
        )
    rows = table("Runs side by side", ("Run", *_ROWS), [_column(state) for state in states])
    private = [state for state in states if _has_curve(state)]
    figures = [_spent_curve(private)] if private else []
    for label in dict.fromkeys(label for each in states for label in each.progress.public):
        having = [each for each in states if label in each.progress.public]
        shown = words.clean(label)
        by_step = [Line(words.clean(each.name), each.progress.public[label]) for each in having]
        figures.append(
            chart(f"{shown} on public data over steps", Axis("steps"), Axis(shown), by_step)
        )
        by_cost = [Line(words.clean(e.name), _over_cost(e, label)) for e in having if _has_curve(e)]
        if by_cost:
            title = f"{shown} on public data over the ε of its step"
            figures.append(chart(title, Axis("ε"), Axis(shown), by_cost))
    caution = (
        '<p class="caution">Every run on the same records costs the ε of all of them together, '
        "also of those that are not chosen.</p>"
        if len(states) > 1
        else ""
    )
    return (
        f"<h1>Compare runs</h1>{caution}{live('table', rows)}"
        f"{live('curves', '<div class=figures>' + ''.join(figures) + '</div>')}"
    )


_ROWS = (
    "State",
    "Steps paid",
    "ε so far",
    "On public data",
    "Steps lost",
    "Records",
    "Sampling rate",
    "Noise multiplier",
    "Unit",
)


def _column(state: RunState) -> tuple[str, ...]:
    measured, plan = state.progress.metric, state.plan
    metric = "–" if measured is None else text(words.metric(*measured))
    under = "" if measured is None else f'<span class="under">{name(measured[0])}</span>'
    return (
        _link(state),
        badge(state),
        words.steps(state),
        _spent(state) if state.state is not State.REFUSED else "no claim",
        metric + under,
        words.count(state.lost) if state.lost else "none",
        text(_number(plan.get("records"))),
        text(_number(state.rate)),
        text(_number(plan.get("noise_multiplier"))),
        text(state.unit or "–"),
    )


def _number(value: Any) -> str:
    if type(value) is int:
        return words.count(value)
    return plain(value) if isinstance(value, float) and math.isfinite(value) else "–"


def _over_cost(state: RunState, label: str) -> list[tuple[float, float]]:
    """Return the metric where the ε of its very step is known."""
    epsilons = dict(state.progress.epsilons)
    return [
        (epsilons[step], value) for step, value in state.progress.public[label] if step in epsilons
    ]
