"""Real Gaussians, each known to within a cell: the abscissas of random points below the bell curve.

A cell is so small that all its reals round to the same lattice point; proof in
docs/proofs/lattice-noise.md.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from dpfy.noise.exact_comparison import Expansion, is_below
from dpfy.noise.random_stream import KeyStream, Parts
from dpfy.noise.rejection_table import CELL_BITS, RECTANGLES, Cover, Floats, cover

PART = 1 << 14  # values of a vector with a stream of their own; kernels.c has the same
MARGIN = 2.0**-32  # of the curve: points closer to it than this are judged in more digits
TAIL = -(1 << 63) + (
    1 << 56
)  # heights below this one in the last rectangle stand for the tail: one in 256
_STRIP_BITS = 5  # log2 of the columns in a strip of the tail: half a standard deviation or more

_Flags = npt.NDArray[np.bool_]
_Heights = npt.NDArray[np.int64]
_Positions = npt.NDArray[np.intp]
_Rectangles = npt.NDArray[np.uint16]


def numbers_of(count: int) -> range:
    """Return the numbers of the parts of a vector."""
    return range(-(-count // PART))


def draw_parts(room: Floats, spread: float, parts: Parts, numbers: Iterable[int]) -> None:
    """Draw some parts of a vector to their places in ``room``."""
    for number in numbers:
        some = part_of(room, number)
        some[:] = draw_cells(len(some), spread, parts.stream(number))


def part_of(room: Floats, number: int) -> Floats:
    """Return where a part is."""
    return room[number * PART : (number + 1) * PART]


def draw_cells(count: int, spread: float, stream: KeyStream) -> Floats:
    """Return the middles of the cells of ``count`` independent reals from N(0, spread²).

    ``spread`` is in columns of 2^32 cells, and the result is in cells. One point of sixty is above
    the curve, and a second round for them would take as many calls as the first. Hence the spare
    ones; should they not suffice, which happens to one vector in 10^15 at most, there is a second
    round.
    """
    room = np.empty(count + _spare(count))
    rejected = _draw(room, cover(spread), stream)
    inside = int(np.searchsorted(rejected, count))
    missing, useful = rejected[:inside], np.ones(len(room) - count, dtype=np.bool_)
    useful[rejected[inside:] - count] = False
    spare = room[count:][useful]
    if len(spare) < len(missing):
        spare = np.concatenate([spare, draw_cells(len(missing) - len(spare), spread, stream)])
    room[missing] = spare[: len(missing)]
    return room[:count]


def _spare(count: int) -> int:
    """Return how many points more are drawn, to replace those above the curve."""
    return count // 48 + 64


def _draw(out: Floats, bell: Cover, stream: KeyStream) -> _Positions:
    """Fill ``out`` from random rectangles and return where the point is above the curve."""
    words = stream.words((6 * len(out) + 7) // 8)
    place, rectangle = (
        words.view(np.int32)[: len(out)],
        words.view(np.uint16)[2 * len(out) : 3 * len(out)],
    )
    torch.index_select(
        torch.from_numpy(bell.middle),
        0,
        torch.from_numpy(rectangle.astype(np.int32)),
        out=torch.from_numpy(out),
    )  # numpy would make indices of 64 bits first
    out += place
    position = np.flatnonzero(rectangle >= bell.certain)
    height = stream.words(len(position)).view(
        np.int64
    )  # from the middle of the rectangle, as all places here
    rejected = _above(out[position], rectangle[position], height, bell, stream)
    for index in np.flatnonzero(rectangle[position] == RECTANGLES - 1):
        if height[index] < TAIL and (middle := _draw_tail(bell, stream)) is not None:
            out[position[index]] = middle
            rejected[index] = False
    return position[rejected]


def _above(
    point: Floats, rectangle: _Rectangles, height: _Heights, bell: Cover, stream: KeyStream
) -> _Flags:
    """Return which points of uncertain rectangles lie above the curve."""
    level = bell.level[rectangle - np.uint16(bell.certain)]
    y = (level + height * 2.0**-64) * bell.height
    curve = curve_at(point, bell)
    above: _Flags = y > curve
    for index in np.flatnonzero(np.abs(y - curve) <= MARGIN * curve):
        above[index] = not is_below(
            Expansion(int(point[index] - 0.5), CELL_BITS),
            Expansion(int(level[index] * 2**64) + int(height[index]), 64),
            bell.spread,
            bell.height,
            stream,
        )
    return above


def curve_at(point: Floats, bell: Cover) -> Floats:
    """Return how high the curve is there, to float64's precision."""
    return np.exp(-0.5 * np.square(point / (bell.spread * 2.0**CELL_BITS)))


def _draw_tail(bell: Cover, stream: KeyStream) -> float | None:
    """Draw a point beyond the columns and return the middle of its cell, or None if it is above the
    curve.

    Strip i of either side is taken with probability 2^-(i+2) and has the area of so many tails: it
    is 2^5 columns wide, and 2^-(i+15) rectangles high.
    """
    strip = 0
    while (coin := int(stream.words(1)[0])) & 1:
        strip += 1
    x, y = map(int, stream.words(2))
    cell = (bell.reach + (strip << _STRIP_BITS) << CELL_BITS) + (x >> 64 - CELL_BITS - _STRIP_BITS)
    cell = ~cell if coin & 2 else cell
    below = is_below(
        Expansion(cell, CELL_BITS),
        Expansion(y, 64 + 10 + _STRIP_BITS + strip),
        bell.spread,
        bell.height,
        stream,
    )
    return cell + 0.5 if below else None
