"""Turn values into text for a page: escaped, whole, and in the words of our reports.

Tests: tests/page/test_app.py.
"""

import html
import math
from typing import Any

from dpfy.page.runs import RunState
from dpfy.reporting.numbers import delta_text, epsilon_text, percent_text, plain


def clean(value: object) -> str:
    r"""Return a text that can be written as UTF-8, as the names of some files cannot.

    >>> clean("caf\udce9")
    'caf?'
    """
    return str(value).encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def text(value: object) -> str:
    """Return a value as text inside HTML, whatever it contains.

    >>> text("<script>")
    '&lt;script&gt;'
    """
    return html.escape(clean(value), quote=True)


def name(value: object) -> str:
    """Return a name that somebody chose; letters that change the direction stay inside it."""
    return f"<bdi>{text(value)}</bdi>"


def count(value: int) -> str:
    """Return a whole number with its thousands apart.

    >>> count(100000)
    '100,000'
    """
    return f"{value:,}"


def metric(label: str, value: float) -> str:
    """Return the value of a metric, as a percentage if it is a share of right answers.

    >>> metric("accuracy", 0.931), metric("loss", 0.931)
    ('93.1 %', '0.931')
    """
    share = "accuracy" in label.lower() and 0 <= value <= 1
    return f"{100 * value:.1f} %" if share else plain(value)


def spent(state: RunState) -> str:
    """Return ε so far in a few words; never a number where there is no guarantee."""
    found = state.spent
    if not state.lines or state.head == "":
        return "–"
    if found is None:
        return "being computed"
    if not found.private:
        return "NOT PRIVATE"
    if found.epsilon is None:
        return "no claim"
    if found.used is not None:
        return f"{percent_text(found.used)} of the filter"
    return "∞" if math.isinf(found.epsilon) else epsilon_text(found.epsilon)


def budget(state: RunState) -> str:
    """Return the budget of a run with its δ."""
    limit = f"of {plain(state.budget)}, " if state.budget is not None else ""
    usual = "" if state.declared else " (not declared)"
    return f"{limit}δ {delta_text(state.delta)}{usual}"


def steps(state: RunState) -> str:
    """Return how far a run has come."""
    total = f" of {count(state.total)}" if state.total else ""
    return f"{count(state.steps)}{total}"


def constant(value: Any) -> str:
    """Return a declared constant in short; "–" if there is none."""
    return "–" if value is None else plain(value)
