"""Real Gaussians, each known to within a cell: the abscissas of random points below the bell curve.

A cell is so small that all its reals round to the same lattice point; proof in docs/proofs/lattice-noise.md. All
operations here but the cipher let other threads run meanwhile.
"""

import numpy as np

from dpfy.mechanisms.noise.cover import CELL_BITS, RECTANGLES, Cover, Floats, cover
from dpfy.mechanisms.noise.exact import Expansion, is_below
from dpfy.mechanisms.noise.kernels import IN_NUMPY, Flags, Heights, Kernels, Positions, Rectangles
from dpfy.mechanisms.noise.randomness import SecureStream

_MARGIN = 2.0**-32  # of the curve: points closer to it than this are judged in more digits
_TAIL = -(1 << 63) + (1 << 56)  # heights below this one in the last rectangle stand for the tail: one in 256
_STRIP_BITS = 5  # log2 of the columns in a strip of the tail: half a standard deviation or more


def room_for(count: int) -> int:
    """Return how long a vector must be for ``count`` values and the spare ones, which replace those above the curve."""
    return count + count // 48 + 64


def draw_cells(room: Floats, count: int, spread: float, stream: SecureStream, kernels: Kernels = IN_NUMPY) -> Floats:
    """Return the middles of the cells of ``count`` independent reals from N(0, spread²), at the start of ``room``.

    ``spread`` is in columns of 2^32 cells, and the result is in cells. One point of sixty is above the curve, and a
    second round for them would take as many calls as the first. Hence the spare ones; should they not suffice, which
    happens to one vector in 10^15 at most, there is a second round.
    """
    room = room[:room_for(count)]
    rejected = _draw(room, cover(spread), stream, kernels)
    inside = int(np.searchsorted(rejected, count))
    missing, useful = rejected[:inside], np.ones(len(room) - count, dtype=np.bool_)
    useful[rejected[inside:] - count] = False
    spare = room[count:][useful]
    if len(spare) < len(missing):
        more = len(missing) - len(spare)
        spare = np.concatenate([spare, draw_cells(np.empty(room_for(more)), more, spread, stream, kernels)])
    room[missing] = spare[:len(missing)]
    return room[:count]


def _draw(out: Floats, bell: Cover, stream: SecureStream, kernels: Kernels) -> Positions:
    """Fill ``out`` from random rectangles and return where the point is above the curve."""
    words = np.empty((6 * len(out) + 7) // 8, dtype=np.uint64)
    stream.fill(words)
    place, rectangle = words.view(np.int32)[:len(out)], words.view(np.uint16)[2 * len(out):3 * len(out)]
    position = kernels.propose(place, rectangle, bell, out)
    height = stream.words(len(position)).view(np.int64)  # from the middle of the rectangle, as all places here
    rejected = _above(position, out, rectangle, height, bell, stream, kernels)
    for index in np.flatnonzero(rectangle[position] == RECTANGLES - 1):
        if height[index] < _TAIL and (middle := _draw_tail(bell, stream)) is not None:
            out[position[index]] = middle
            rejected[index] = False
    return position[rejected]


def _above(position: Positions, out: Floats, rectangle: Rectangles, height: Heights, bell: Cover, stream: SecureStream,
           kernels: Kernels) -> Flags:
    """Return which of the points at ``position`` lie above the curve."""
    above, close = kernels.judge(position, out, rectangle, height, bell, _MARGIN)
    for index in close:
        place = position[index]
        level = bell.level[rectangle[place] - bell.certain]
        above[index] = not is_below(Expansion(int(out[place] - 0.5), CELL_BITS),
                                    Expansion(int(level * 2**64) + int(height[index]), 64),
                                    bell.spread, bell.height, stream)
    return above


def _draw_tail(bell: Cover, stream: SecureStream) -> float | None:
    """Draw a point beyond the columns and return the middle of its cell, or None if it is above the curve.

    Strip i of either side is taken with probability 2^-(i+2) and has the area of so many tails: it is 2^5 columns wide,
    and 2^-(i+15) rectangles high.
    """
    strip = 0
    while (coin := int(stream.words(1)[0])) & 1:
        strip += 1
    x, y = map(int, stream.words(2))
    cell = (bell.reach + (strip << _STRIP_BITS) << CELL_BITS) + (x >> 64 - CELL_BITS - _STRIP_BITS)
    cell = ~cell if coin & 2 else cell
    below = is_below(Expansion(cell, CELL_BITS), Expansion(y, 64 + 10 + _STRIP_BITS + strip), bell.spread, bell.height,
                     stream)
    return cell + 0.5 if below else None
