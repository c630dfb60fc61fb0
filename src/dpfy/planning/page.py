"""One self-contained page with sliders for a budget, a data set and a training schedule.

The page reads noise multipliers from the accountant's table (:mod:`dpfy.planning.table`).
"""

import html
import json
import math
from importlib.resources import files

from dpfy import _validate
from dpfy.planning import table
from dpfy.planning.defaults import default_delta
from dpfy.reporting.page import STYLE

_STYLE = """
form { display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr));
  gap: .75rem 1.5rem; margin: 1rem 0; }
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
_ACCURACY = (
    "Noise is not computed in this page: the accountant of dpfy computed it at every stop of the "
    "sliders, and it is rounded up, by less than 2 %. Batches are rounded down to whole records, "
    "so the noise shown is always enough. For values between stops, take the next stop with a "
    "smaller ε or δ, or more epochs or records per batch; or ask the accountant with this command:"
)


def interactive(
    *,
    epsilon: float = 3.0,
    delta: float | None = None,
    epochs: float = 60.0,
    records: int = 60_000,
    batch_size: float | None = None,
) -> str:
    """Return an HTML page with sliders that shows σ over rates and noise over batch sizes.

    The sliders for ε, δ, epochs and batch size have stops, at which the accountant has computed the
    noise. They begin at the first stop on the safe side of the given values: a smaller or equal ε
    and δ, and as many or more epochs and records per batch.

    Args:
        epsilon: the ε to begin at, at least 0.1.
        delta: the δ to begin at, at least 1e-10; None takes
            :func:`~dpfy.planning.default_delta` of the records.
        epochs: the number of epochs to begin at, at most 512.
        records: the number of records to begin at.
        batch_size: the expected batch size to begin at, at most ``records``; None takes a tenth of
            them.

    Returns:
        The page, which needs no other file and no network.

    Raises:
        InvalidArgument: if a value is outside its range, or if no stop is on its safe side.

    *Formal guarantee*: what the page calls enough is enough for Poisson samples, for adding or
    removing one record.

    >>> interactive(epsilon=1.0).count("<svg")
    2
    """
    records = _validate.count("records", records)
    batch = _validate.real("batch_size", batch_size or max(1.0, records / 10), 1, records)
    epsilon = _validate.epsilon(epsilon)
    delta = default_delta(records) if delta is None else _validate.delta(delta)
    sliders = "".join(
        (
            _stops(
                "epsilon", "ε", table.EPSILONS, table.stop_below("epsilon", table.EPSILONS, epsilon)
            ),
            _stops("delta", "δ", table.DELTAS, table.stop_below("delta", table.DELTAS, delta)),
            _stops(
                "epochs",
                "epochs",
                table.EPOCHS,
                table.stop_above("epochs", table.EPOCHS, _validate.positive("epochs", epochs)),
            ),
            _slider("records", "records", records, 100, 1e8),
            _stops(
                "batch",
                "expected batch size",
                table.RATES,
                table.stop_above("rate", table.RATES, batch / records),
            ),
        )
    )
    figures = "".join(
        f'<figure><svg id="{name}" viewBox="0 0 520 320" role="img" '
        f'aria-labelledby="{name}-text"></svg>'
        f'<figcaption id="{name}-text"></figcaption></figure>'
        for name in ("contour", "batches")
    )
    stops = {
        "epsilons": table.EPSILONS,
        "deltas": table.DELTAS,
        "rates": table.RATES,
        "epochs": table.EPOCHS,
        "noise": table.load().noise,
    }
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
            f"<script>const TABLE = {json.dumps(stops, separators=(',', ':'))};\n{script}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def _stops(name: str, label: str, stops: tuple[float, ...], at: int) -> str:
    """Return a slider over the positions of some stops."""
    return _input(name, label, f'min="0" max="{len(stops) - 1}" step="1" value="{at}"')


def _slider(name: str, label: str, value: float, low: float, high: float) -> str:
    """Return a slider over logarithms, wide enough for its first value."""
    low, high, at = (math.log10(number) for number in (min(low, value), max(high, value), value))
    return _input(name, label, f'min="{low:.6f}" max="{high:.6f}" step="any" value="{at:.6f}"')


def _input(name: str, label: str, attributes: str) -> str:
    """Return a slider with its label and the place of its value."""
    return (
        f'<label>{html.escape(label)} <output id="{name}-value"></output>'
        f'<input type="range" id="{name}" {attributes}></label>'
    )
