"""The figures of a report, as SVG that takes its colours from the page around it."""

import io
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfy.reporting.costs import Costs, Scope
from dpfy.reporting.facts import RunFacts
from dpfy.reporting.numbers import delta_text
from dpfy.reporting.record import LedgerRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Drawn in these, shown in the page's own colours; the two lines differ in dashes too, for whoever sees no colours.
_INK, _PALE, _PLD, _RDP = "#010203", "#040506", "#0072b2", "#d55e00"
_SHOWN = {_INK: "currentColor", _PALE: "var(--line)", _PLD: "var(--pld)", _RDP: "var(--rdp)"}
_LINES: dict[str, dict[str, Any]] = {
    "pld": {"color": _PLD, "linestyle": "-", "label": "PLD"},
    "rdp": {"color": _RDP, "linestyle": "--", "label": "RDP"},
}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "dpfy", "font.size": 10, "text.color": _INK, "axes.labelcolor": _INK,
    "axes.edgecolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": _PALE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "figure.facecolor": "none", "axes.facecolor": "none", "legend.frameon": False, "lines.linewidth": 1.8,
}


def epsilon_plot(record: LedgerRecord, costs: Costs) -> str | None:
    """Draw ε over the reserved steps by method; None if there is nothing finite to draw."""
    curve = costs.curve
    finite = {method: values for method, values in curve.epsilons.items() if all(map(math.isfinite, values))}
    if len(curve.steps) < 2 or not finite:
        return None
    with _drawing():
        figure, axes = _axes("Steps reserved", f"ε at δ = {delta_text(costs.delta)}")
        for method, values in finite.items():
            axes.plot(curve.steps, values, **_LINES[method])
        claim = costs.headline
        if claim.scope is Scope.REGISTERED and claim.interval and record.steps_reserved < claim.steps:
            axes.axhline(claim.interval.upper, color=_INK, linewidth=1, linestyle=":",
                         label=f"claimed: all {claim.steps} registered steps")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend(loc="best")
        return _svg(figure, "epsilon", "ε over the number of reserved steps, by accounting method")


def metric_plot(facts: RunFacts, costs: Costs) -> str | None:
    """Draw the declared metric over the ε that had been spent when it was measured; None without measurements or ε."""
    method = costs.headline.method
    epsilons = costs.curve.epsilons.get(method, ())
    if not facts.history or not epsilons or not all(map(math.isfinite, epsilons)):
        return None
    steps, values = zip(*sorted(facts.history), strict=True)
    spent = np.interp(steps, costs.curve.steps, epsilons)  # between computed points, for the eye only
    with _drawing():
        figure, axes = _axes(f"ε at δ = {delta_text(costs.delta)} ({_LINES[method]['label']})", _one_line(facts.metric))
        axes.plot(spent, values, marker="o" if len(steps) <= 60 else None, markersize=4, color=_PLD)
        return _svg(figure, "metric", "metric on public data over the ε spent")


def _drawing() -> Any:
    from matplotlib import rc_context  # half a second that only reports need

    return rc_context(_SETTINGS)


def _axes(x: str, y: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel(y, parse_math=False)
    return figure, axes


def _one_line(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= 60 else short[:59] + "…"


def _svg(figure: "Figure", key: str, label: str) -> str:
    """Return the bare element: no prologue, no addresses, ids that no other figure on the page has."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1:]
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{key}-", body)
    for drawn, shown in _SHOWN.items():
        body = body.replace(drawn, shown)
    return f'<svg viewBox="{box.group(1)}" role="img" aria-label="{label}">{body}'
