"""A page on the quality of a synthetic table, from noisy marginals that were released alone."""

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfy.reporting.page import STYLE
from dpfy.synthesis.cells import Codes, Floats, Pair, counts
from dpfy.synthesis.synthetic_table import SyntheticTable
from dpfy.synthesis.tree_model import all_pairs

if TYPE_CHECKING:
    from dpfy.synthesis.synthesizer import Fitted, Synthesizer

_BIAS = math.sqrt(2 / math.pi)  # of |noise|, in standard deviations
_WIDTH, _HEIGHT = 420.0, 120.0
_OWN_STYLE = """
.bars rect { fill: var(--line); }
.bars circle { fill: var(--accent); }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: 1rem 1.5rem; }
td.count, th.count { text-align: right; font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True)
class Comparison:
    """A synthetic table beside one noisy marginal.

    Args:
        columns: The names of the columns.
        cells: The number of cells.
        stddev: The standard deviation of the noise of each count.
        distance: The total variation between the synthetic and the noisy marginal.
        noise: What the noise alone adds to that distance, about.
    """

    columns: tuple[str, ...]
    cells: int
    stddev: float
    distance: float
    noise: float


def compare(fitted: "Fitted", table: SyntheticTable) -> list[Comparison]:
    """Return a synthetic table beside every noisy marginal that was released.

    Args:
        fitted: What was released.
        table: The synthetic table.

    Returns:
        A comparison for each marginal, in the order of their release.
    """
    names = fitted.domain.names
    codes = fitted.domain.codes(dict(table))
    groups = tuple(m.groups[each] for m, each in zip(fitted.merged, codes, strict=True))
    found = []
    for number, each in enumerate(fitted.measured):
        known = codes if number < len(names) else groups  # columns were released cell by cell
        sizes = _sizes(each.noisy, each.columns, len(names))
        shares = counts(known, sizes, each.columns) / max(len(codes[0]), 1)
        distance = 0.5 * float(np.abs(shares - each.noisy / fitted.total).sum())
        noise = 0.5 * _BIAS * each.stddev * each.noisy.size / fitted.total
        columns = tuple(names[k] for k in each.columns)
        found.append(Comparison(columns, each.noisy.size, each.stddev, distance, noise))
    return found


def unmeasured(fitted: "Fitted") -> list[tuple[str, str]]:
    """Return the pairs of columns of which no marginal was released.

    Args:
        fitted: What was released.

    Returns:
        The names of both columns of each pair.
    """
    names, known = fitted.domain.names, {each.columns for each in fitted.measured}
    return [(names[a], names[b]) for a, b in all_pairs(len(names)) if (a, b) not in known]


def quality_page(synthesizer: "Synthesizer", table: SyntheticTable) -> str:
    """Return the page as one file of HTML, without scripts and other files.

    Args:
        synthesizer: The synthesizer, fitted.
        table: The synthetic table.

    Returns:
        The page.
    """
    fitted = synthesizer.fitted
    found = compare(fitted, table)
    columns, pairs = found[: len(fitted.domain.names)], found[len(fitted.domain.names) :]
    codes = fitted.domain.codes(dict(table))
    charts = "".join(_chart(fitted, number, codes, each) for number, each in enumerate(columns))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>Quality of a synthetic table</title><style>{STYLE}{_OWN_STYLE}</style></head>",
            f"<body><main>{_header(synthesizer, table)}",
            "<section><h2>Columns</h2><p>Bars are the noisy counts that were released, points the "
            f'synthetic rows, both as shares.</p><div class="columns">{charts}</div></section>',
            "<section><h2>Marginals that were measured</h2><p>Total variation between the "
            "synthetic table and the noisy marginal, and what the noise alone adds to it. A "
            "distance well above its noise is a pattern that the table has missed.</p>"
            f"{_table([*columns, *pairs])}</section>",
            f"<section><h2>What was not measured</h2>{_missing(fitted)}</section>",
            "</main></body></html>",
            "",
        ]
    )


def _header(synthesizer: "Synthesizer", table: SyntheticTable) -> str:
    fitted, budget = synthesizer.fitted, synthesizer.budget
    private = fitted.guarantee.private
    claim = math.ceil(fitted.guarantee.claim(budget.delta) * 10_000) / 10_000
    flag = "" if private else '<p class="void">NOT PRIVATE</p>'
    number = f'<p class="number">({claim:.4f}, {budget.delta:g})-DP</p>' if private else ""
    return (
        f'<header class="{"good" if private else "bad"}">{flag}'
        f"<h1>Quality of a synthetic table</h1>{number}"
        f"<p>{escape(synthesizer.method.upper())}, {len(fitted.domain.names)} columns, "
        f"{table.rows:,} rows drawn; noisy counts tell about {fitted.total:,.0f} rows. Everything "
        "here is compared with noisy marginals that were paid for, and nothing with the private "
        'table. What the guarantee rests on is in <a href="report.html">the privacy report</a>.'
        "</p></header>"
    )


def _chart(fitted: "Fitted", number: int, codes: tuple[Codes, ...], found: Comparison) -> str:
    cells, measured = fitted.domain.cells[number], fitted.measured[number]
    noisy = np.maximum(measured.noisy, 0.0) / fitted.total
    drawn = np.bincount(codes[number], minlength=cells.size) / max(len(codes[number]), 1)
    label = f"{found.columns[0]}: total variation {found.distance:.3f}"
    return (
        f'<figure class="bars">{_bars(noisy, drawn, cells.names(), label)}'
        f"<figcaption>{escape(label)}</figcaption></figure>"
    )


def _bars(noisy: Floats, drawn: Floats, names: list[str], label: str) -> str:
    top = max(float(noisy.max()), float(drawn.max()), 1e-9)
    step = _WIDTH / len(names)

    def height(share: float) -> float:
        return _HEIGHT * share / top

    shapes = "".join(
        f'<rect x="{k * step + step * 0.1:.1f}" y="{_HEIGHT - height(bar):.1f}" '
        f'width="{step * 0.8:.1f}" height="{height(bar):.1f}"><title>{escape(name)}: noisy '
        f"{bar:.3f}, synthetic {point:.3f}</title></rect>"
        f'<circle cx="{(k + 0.5) * step:.1f}" cy="{_HEIGHT - height(point):.1f}" r="3"/>'
        for k, (bar, point, name) in enumerate(zip(noisy, drawn, names, strict=True))
    )
    return (
        f'<svg viewBox="-4 -4 {_WIDTH + 8:g} {_HEIGHT + 8:g}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{shapes}</svg>'
    )


def _table(found: list[Comparison]) -> str:
    heads = ("cells", "noise of a count", "total variation", "of noise alone")
    head = "".join(f'<th scope="col" class="count">{each}</th>' for each in heads)
    body = "".join(_line(each) for each in found)
    return (
        f'<div class="scroll"><table><thead><tr><th scope="col">marginal</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _line(each: Comparison) -> str:
    cells = (
        f"{each.cells:,}",
        f"± {each.stddev:,.1f}",
        f"{each.distance:.3f}",
        f"{each.noise:.3f}",
    )
    figures = "".join(f'<td class="count">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row">{escape(" × ".join(each.columns))}</th>{figures}</tr>'


def _missing(fitted: "Fitted") -> str:
    pairs = unmeasured(fitted)
    if not pairs:
        return "<p>Every pair of columns was measured; three columns together were not.</p>"
    listed = ", ".join(f"{a} × {b}" for a, b in pairs)
    return (
        f"<p>{len(pairs)} pairs of columns were not measured. In the table their columns depend on "
        "each other only as far as it follows from the marginals above; the same holds for three "
        f"or more columns together.</p><p>{escape(listed)}</p>"
    )


def _sizes(noisy: Any, columns: Pair, number: int) -> tuple[int, ...]:
    """Return the number of cells of each column, as far as a marginal shows it."""
    found = [1] * number
    for column, size in zip(columns, noisy.shape, strict=True):
        found[column] = size
    return tuple(found)
