"""The figures of a report.

Tests: tests/reporting/test_formats.py.
"""

import math
from typing import Any

import numpy as np

from dpfy.reporting.costs import Costs, Scope
from dpfy.reporting.drawing import FIRST, INK, SECOND, axes_of, drawing, svg_of
from dpfy.reporting.facts import RunFacts
from dpfy.reporting.numbers import delta_text
from dpfy.reporting.record import LedgerRecord

_LINES: dict[str, dict[str, Any]] = {
    "pld": {"color": FIRST, "linestyle": "-", "label": "PLD"},
    "rdp": {"color": SECOND, "linestyle": "--", "label": "RDP"},
}


def epsilon_plot(record: LedgerRecord, costs: Costs) -> str | None:
    """Draw ε over the reserved steps by method; None if there is nothing finite to draw."""
    curve = costs.curve
    finite = {
        method: values
        for method, values in curve.epsilons.items()
        if all(map(math.isfinite, values))
    }
    if len(curve.steps) < 2 or not finite:
        return None
    with drawing():
        figure, axes = axes_of("Steps reserved", _epsilon_label(costs))
        for method, values in finite.items():
            axes.plot(curve.steps, values, **_LINES[method])
        claim = costs.headline
        if (
            claim.scope is Scope.REGISTERED
            and claim.interval
            and record.steps_reserved < claim.steps
        ):
            axes.axhline(
                claim.interval.upper,
                color=INK,
                linewidth=1,
                linestyle=":",
                label=f"claimed: all {claim.steps} registered steps",
            )
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend(loc="best")
        return svg_of(
            figure, "epsilon", "ε over the number of reserved steps, by accounting method"
        )


def metric_plot(facts: RunFacts, costs: Costs) -> str | None:
    """Draw the declared metric over the ε spent when it was measured.

    Return None without measurements or ε.
    """
    method = costs.headline.method
    epsilons = costs.curve.epsilons.get(method, ())
    if not facts.history or not epsilons or not all(map(math.isfinite, epsilons)):
        return None
    steps, values = zip(*sorted(facts.history), strict=True)
    # Interpolation between computed points is for the eye only.
    spent = np.interp(steps, costs.curve.steps, epsilons)
    with drawing():
        figure, axes = axes_of(
            f"{_epsilon_label(costs)} ({_LINES[method]['label']})",
            _one_line(facts.metric),
        )
        axes.plot(
            spent, values, marker="o" if len(steps) <= 60 else None, markersize=4, color=FIRST
        )
        return svg_of(figure, "metric", "metric on public data over the ε spent")


def tradeoff_plot(costs: Costs) -> str | None:
    """Draw the least errors that any attack makes; None if there is no guarantee."""
    if costs.attacks is None:
        return None
    curve = costs.attacks.curve
    with drawing():
        figure, axes = axes_of("false positive rate", "false negative rate")
        axes.fill_between(curve.fpr, curve.fnr, color=FIRST, alpha=0.15, linewidth=0)
        axes.plot(curve.fpr, curve.fnr, color=FIRST, label="no attack is below")
        axes.plot([0, 1], [1, 0], color=INK, linewidth=1, linestyle=":", label="guessing blindly")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.legend(loc="best")
        return svg_of(
            figure,
            "tradeoff",
            "least false negative rate of any attack over its false positive rate",
        )


def _epsilon_label(costs: Costs) -> str:
    whose = " of the weakest group" if costs.groups else ""
    return f"ε{whose} at δ = {delta_text(costs.delta)}"


def _one_line(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= 60 else short[:59] + "…"
