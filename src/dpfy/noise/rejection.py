"""The rejection sampler: real Gaussians, each known to within one cell.

A Gaussian is the abscissa of a uniform point below the bell curve. The sampler returns the middle
of the cell that holds the abscissa. A cell is so small that all its reals round to the same lattice
point, so the rest of the abscissa is never needed. Proof: docs/proofs/lattice-noise.md.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from dpfy.noise.exact_comparison import Expansion, is_below
from dpfy.noise.random_stream import KeyStream, Parts
from dpfy.noise.rejection_table import (
    CELL_BITS,
    RECTANGLES,
    Floats,
    RejectionTable,
    rejection_table,
)

PART = 1 << 14  # coordinates that share one key stream; kernels.c has the same number
MARGIN = 2.0**-32  # relative to the curve: nearer points are compared in more digits
# Heights below this one in the last rectangle, one in 256, stand for the tail.
TAIL = -(1 << 63) + (1 << 56)
_STRIP_BITS = 5  # log2 of the columns in a strip of the tail: half a standard deviation or more

_Flags = npt.NDArray[np.bool_]
_Heights = npt.NDArray[np.int64]
_Positions = npt.NDArray[np.intp]
_Rectangles = npt.NDArray[np.uint16]


def part_numbers(count: int) -> range:
    """Return the numbers of the parts of a vector with ``count`` coordinates."""
    return range(-(-count // PART))


def draw_parts(buffer: Floats, spread: float, parts: Parts, numbers: Iterable[int]) -> None:
    """Draw the numbered parts of a vector, each to its place in ``buffer``."""
    for number in numbers:
        part_of(buffer, number)[:] = draw_part(len(buffer), number, spread, parts)


def draw_part(count: int, number: int, spread: float, parts: Parts) -> Floats:
    """Return the numbered part of a vector with ``count`` coordinates."""
    return draw_gaussians(min(PART, count - number * PART), spread, parts.stream(number))


def part_of(buffer: Floats, number: int) -> Floats:
    """Return the numbered part of a vector as a view."""
    return buffer[number * PART : (number + 1) * PART]


def draw_gaussians(count: int, spread: float, stream: KeyStream) -> Floats:
    """Return the middles of the cells of ``count`` independent reals from N(0, spread²).

    ``spread`` is in columns of 2^32 cells, and the result is in cells. One point in sixty lies
    above the curve and is replaced by a spare point, because a second round would take as many
    calls as the first. Should the spare points not suffice, which happens to one vector in 10^15 at
    most, there is a second round.
    """
    points = np.empty(count + _spare(count))
    rejected = _draw(points, rejection_table(spread), stream)
    inside = int(np.searchsorted(rejected, count))
    missing, useful = rejected[:inside], np.ones(len(points) - count, dtype=np.bool_)
    useful[rejected[inside:] - count] = False
    spare = points[count:][useful]
    if len(spare) < len(missing):
        spare = np.concatenate([spare, draw_gaussians(len(missing) - len(spare), spread, stream)])
    points[missing] = spare[: len(missing)]
    return points[:count]


def _spare(count: int) -> int:
    """Return the number of spare points, which replace those above the curve."""
    return count // 48 + 64


def _draw(out: Floats, table: RejectionTable, stream: KeyStream) -> _Positions:
    """Fill ``out`` from random rectangles and return the positions of points above the curve."""
    words = stream.words((6 * len(out) + 7) // 8)
    place, rectangle = (
        words.view(np.int32)[: len(out)],
        words.view(np.uint16)[2 * len(out) : 3 * len(out)],
    )
    torch.index_select(
        torch.from_numpy(table.middle),
        0,
        torch.from_numpy(rectangle.astype(np.int32)),
        out=torch.from_numpy(out),
    )  # numpy would convert the indices to 64 bits first
    out += place
    position = np.flatnonzero(rectangle >= table.certain)
    # Heights are measured from the middle of the rectangle, as places are.
    height = stream.words(len(position)).view(np.int64)
    rejected = _above(out[position], rectangle[position], height, table, stream)
    for index in np.flatnonzero(rectangle[position] == RECTANGLES - 1):
        if height[index] < TAIL and (middle := _draw_tail(table, stream)) is not None:
            out[position[index]] = middle
            rejected[index] = False
    return position[rejected]


def _above(
    point: Floats,
    rectangle: _Rectangles,
    height: _Heights,
    table: RejectionTable,
    stream: KeyStream,
) -> _Flags:
    """Return which points of uncertain rectangles lie above the curve."""
    level = table.level[rectangle - np.uint16(table.certain)]
    y = (level + height * 2.0**-64) * table.height
    curve = curve_at(point, table)
    above: _Flags = y > curve
    for index in np.flatnonzero(np.abs(y - curve) <= MARGIN * curve):
        above[index] = not is_below(
            Expansion(int(point[index] - 0.5), CELL_BITS),
            Expansion(int(level[index] * 2**64) + int(height[index]), 64),
            table.spread,
            table.height,
            stream,
        )
    return above


def curve_at(point: Floats, table: RejectionTable) -> Floats:
    """Return the height of the curve at each point, to float64's precision."""
    return np.exp(-0.5 * np.square(point / (table.spread * 2.0**CELL_BITS)))


def _draw_tail(table: RejectionTable, stream: KeyStream) -> float | None:
    """Draw a point beyond the columns; return the middle of its cell, or None if it is above.

    Strip i of either side is taken with probability 2^-(i+2), and has that share of the area which
    stands for the tail: it is 2^5 columns wide, and 2^-(i+15) rectangles high.
    """
    strip = 0
    while (coin := int(stream.words(1)[0])) & 1:
        strip += 1
    x, y = map(int, stream.words(2))
    cell = (table.reach + (strip << _STRIP_BITS) << CELL_BITS) + (x >> 64 - CELL_BITS - _STRIP_BITS)
    cell = ~cell if coin & 2 else cell
    below = is_below(
        Expansion(cell, CELL_BITS),
        Expansion(y, 64 + 10 + _STRIP_BITS + strip),
        table.spread,
        table.height,
        stream,
    )
    return cell + 0.5 if below else None
