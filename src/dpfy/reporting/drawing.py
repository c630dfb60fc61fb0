"""Drawing of figures as SVG that takes its colours from the page around it.

Tests: tests/reporting/test_formats.py.
"""

import io
import re
from typing import TYPE_CHECKING, Any

from dpfy._extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Figures are drawn in these colours and shown in the page's own. The two lines differ in dashes
# too, for readers who cannot tell colours apart.
INK, PALE, FIRST, SECOND = "#010203", "#040506", "#0072b2", "#d55e00"
_SHOWN = {INK: "currentColor", PALE: "var(--line)", FIRST: "var(--pld)", SECOND: "var(--rdp)"}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dpfy",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}


def drawing() -> Any:
    """Return the settings of all figures, as a context."""
    require("matplotlib", "report")
    from matplotlib import rc_context  # half a second that only reports need

    return rc_context(_SETTINGS)


def axes_of(x: str, y: str) -> "tuple[Figure, Axes]":
    """Return an empty figure whose axes have these labels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.0), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel(y, parse_math=False)
    return figure, axes


def svg_of(figure: "Figure", key: str, label: str) -> str:
    """Return the SVG element alone: no prologue, no addresses, ids that are unique on the page."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(
        buffer, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{key}-", body)
    for drawn, shown in _SHOWN.items():
        body = body.replace(drawn, shown)
    return f'<svg viewBox="{box.group(1)}" role="img" aria-label="{label}">{body}'
