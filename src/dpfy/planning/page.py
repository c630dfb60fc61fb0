"""One self-contained page with sliders: what a budget, a data set and a batch size ask for."""

import html
import math
from importlib.resources import files

from dpfy import _validate
from dpfy.planning.defaults import default_delta
from dpfy.reporting.page import STYLE

_STYLE = """
form { display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); gap: .75rem 1.5rem; margin: 1rem 0; }
label { display: block; font-size: .9rem; color: var(--soft); }
label output { float: right; font-weight: 600; color: var(--ink); }
input { width: 100%; accent-color: var(--accent); }
svg text { font-size: 12px; fill: currentColor; }
svg .grid { stroke: var(--line); }
svg .exact { fill: none; stroke: var(--pld); stroke-width: 2; }
svg .law { fill: none; stroke: var(--rdp); stroke-width: 1.5; stroke-dasharray: 6 4; }
svg .mark { stroke: currentColor; stroke-dasharray: 2 4; }
svg .here { fill: var(--pld); stroke: var(--paper); stroke-width: 2; }
"""
# Measured on random settings of the sliders: tests/planning/test_page.py repeats it.
_ACCURACY = (
    "Noise is computed in this page by Rényi divergences of whole orders: it is always enough. The "
    "accountant of dpfy needs less: 3 to 15 % for rates from 0.001 and five epochs or more, and "
    "less than half in the corner of tiny rates and few epochs. This command knows exactly:"
)


def interactive(
    *,
    epsilon: float = 3.0,
    delta: float | None = None,
    epochs: float = 60.0,
    records: int = 60_000,
    batch_size: float | None = None,
) -> str:
    """Return an HTML page with sliders that begin at these values: σ over rates, and noise over
    batch sizes.

    Without a δ it begins at :func:`~dpfy.planning.default_delta` of the records.

    *Formal guarantee*: what the page calls enough is enough for Poisson samples, for adding or
    removing one record, up to the rounding of the browser's arithmetic.

    >>> interactive(epsilon=1.0).count("<svg")
    2
    """
    records = _validate.count("records", records)
    batch = _validate.real("batch_size", batch_size or max(1.0, records / 10), 1, records)
    sliders = "".join(
        (
            _slider("epsilon", "ε", _validate.epsilon(epsilon), 0.1, 16),
            _slider(
                "delta",
                "δ",
                default_delta(records) if delta is None else _validate.delta(delta),
                1e-12,
                1e-3,
            ),
            _slider("epochs", "epochs", _validate.positive("epochs", epochs), 1, 500),
            _slider("records", "records", records, 100, 1e8),
            _slider("batch", "expected batch size", batch, 1, records),
        )
    )
    figures = "".join(
        f'<figure><svg id="{name}" viewBox="0 0 520 320" role="img" '
        f'aria-labelledby="{name}-text"></svg>'
        f'<figcaption id="{name}-text"></figcaption></figure>'
        for name in ("contour", "batches")
    )
    script = files("dpfy.planning").joinpath("page.js").read_text(encoding="utf-8")
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            "<title>What should I run?</title>",
            f"<style>{STYLE}{_STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            '<header><h1>What should I run?</h1><p class="name">DP-SGD, Poisson samples: before '
            "any privacy is spent</p>"
            f'<form>{sliders}</form><p id="sentence" aria-live="polite"></p></header>',
            f'<section class="figures">{figures}</section>',
            f'<p class="formal">{html.escape(_ACCURACY)}</p><p><code id="command"></code></p>',
            "<footer>First figure: Dörmann et al. 2021, Figure 2. Second: Ponomareva et al. 2023, "
            "Figure 1.</footer>",
            "</main>",
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def _slider(name: str, label: str, value: float, low: float, high: float) -> str:
    """A slider over logarithms, wide enough for its own first value."""
    low, high, at = (math.log10(number) for number in (min(low, value), max(high, value), value))
    return (
        f'<label>{html.escape(label)} <output id="{name}-value"></output><input type="range" '
        f'id="{name}" '
        f'min="{low:.6f}" max="{high:.6f}" step="any" value="{at:.6f}"></label>'
    )
