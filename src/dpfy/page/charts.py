"""Draw lines as SVG in the colours of the page, in a millisecond and without matplotlib."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from dpfy.page.words import text
from dpfy.reporting.numbers import plain

_WIDTH, _HEIGHT = 520.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 14.0, 12.0, 44.0
_TICKS = 5
_MOST = 600  # points of a line; more cannot be seen


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Args:
        label: Its name in the legend; none for a single line.
        points: Pairs (x, y) of finite numbers.
        style: How it looks: "line", or "law" for what only describes.
    """

    label: str
    points: Sequence[tuple[float, float]]
    style: str = "line"


@dataclass(frozen=True)
class Axis:
    """A scale: a label, and whether it is one of logarithms."""

    label: str
    log: bool = False


@dataclass(frozen=True)
class Mark:
    """A point on a chart."""

    x: float
    y: float


def chart(title: str, x: Axis, y: Axis, lines: Sequence[Line], mark: Mark | None = None) -> str:
    """Return a figure, or a sentence if there is nothing to draw yet.

    Args:
        title: What the chart shows, for its caption.
        x: The horizontal scale.
        y: The vertical scale.
        lines: The lines; those of fewer than two points are left out.
        mark: A point to mark.

    Returns:
        A ``figure`` element.
    """
    drawn = [Line(line.label, _thinned(line.points), line.style) for line in lines]
    drawn = [line for line in drawn if len(line.points) > 1]
    caption = f"<figcaption>{text(title)}</figcaption>"
    if not drawn:
        return f'<figure class="empty"><p>Nothing to draw yet.</p>{caption}</figure>'
    across = _Scale.of(x, [point[0] for line in drawn for point in line.points])
    up = _Scale.of(y, [point[1] for line in drawn for point in line.points])
    to_x = across.onto(_LEFT, _WIDTH - _RIGHT)
    to_y = up.onto(_HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(across, up, to_x, to_y)]
    for place, line in enumerate(drawn):
        points = " ".join(f"{to_x(a):.1f},{to_y(b):.1f}" for a, b in line.points)
        parts.append(f'<polyline class="{line.style} c{place % 6}" points="{points}"/>')
    if mark is not None:
        here = f'cx="{to_x(mark.x):.1f}" cy="{to_y(mark.y):.1f}"'
        parts.append(f'<circle class="here" {here} r="5"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{text(x.label)}</text>'
        f'<text transform="translate(13 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{text(y.label)}</text>'
    )
    svg = (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" '
        f'aria-label="{text(title)}">{"".join(parts)}</svg>'
    )
    return f"<figure>{svg}{_legend(drawn)}{caption}</figure>"


def _legend(lines: Sequence[Line]) -> str:
    if len(lines) < 2:
        return ""
    entries = "".join(
        f'<li><svg class="chart key" viewBox="0 0 24 8" aria-hidden="true"><polyline '
        f'class="{line.style} c{place % 6}" points="1,4 23,4"/></svg> {text(line.label)}</li>'
        for place, line in enumerate(lines)
    )
    return f'<ul class="legend">{entries}</ul>'


def _grid(
    across: "_Scale",
    up: "_Scale",
    to_x: Callable[[float], float],
    to_y: Callable[[float], float],
) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    return [
        *(
            f'<line class="grid" x1="{to_x(v):.1f}" x2="{to_x(v):.1f}" y1="{_TOP}" y2="{bottom}"/>'
            f'<text x="{to_x(v):.1f}" y="{bottom + 16}" text-anchor="middle">{plain(v)}</text>'
            for v in across.ticks()
        ),
        *(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{to_y(v):.1f}" y2="{to_y(v):.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{to_y(v) + 4:.1f}" text-anchor="end">{plain(v)}</text>'
            for v in up.ticks()
        ),
    ]


@dataclass(frozen=True)
class _Scale:
    """An axis over a range of values."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, axis: Axis, values: Sequence[float]) -> "_Scale":
        low, high = min(values), max(values)
        log = axis.log and low > 0
        if log:
            return cls(low / 1.1, high * 1.1, True)
        room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
        # A range that begins near zero begins at zero.
        return cls(0.0 if 0 <= low < 0.4 * high else low - room, high + room, False)

    def onto(self, start: float, end: float) -> Callable[[float], float]:
        """Return where a value is between two places."""
        of = math.log10 if self.log else float
        low, wide = of(self.low), of(self.high) - of(self.low)
        return lambda value: start + (of(value) - low) / wide * (end - start)

    def ticks(self) -> list[float]:
        """Return round numbers within the range."""
        if self.log:
            return self._powers()
        rough = (self.high - self.low) / _TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        found: list[float] = []
        for place in count(first):
            if place * step > self.high + 1e-9 * step:
                return found
            found.append(round(place * step, 12))
        return found

    def _powers(self) -> list[float]:
        wide = self.high / self.low > 10**2.5
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        marks = [digit * 10.0**power for power in powers for digit in ((1,) if wide else (1, 2, 5))]
        return [mark for mark in marks if self.low <= mark <= self.high]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep at most a few hundred points, evenly spaced, and the last one."""
    every = max(1, math.ceil(len(points) / _MOST))
    kept = list(points[::every])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]
