"""A cover of the bell curve by 65 536 equal rectangles, most of which lie entirely below it.

A point drawn uniformly from the area below ``exp(-x²/2)`` has a Gaussian abscissa. So: take a
rectangle, a point in it, and keep the point if it is below the curve. For 97 rectangles of 100 this
is known without looking.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RECTANGLES = 1 << 16  # as many as two bytes can name
CELL_BITS = 32  # a place in a column has as many: there are 2^32 cells in a column
_REACH = 6  # standard deviations up to which there are columns
_MARGIN = 2.0**-32  # of the curve, far more than the error of its float64 evaluation


@dataclass(frozen=True, eq=False)
class Cover:
    """Rectangles of one column by ``height``; those before number ``certain`` lie below
    ``exp(-(x/spread)²/2)``.

    The last rectangle is above the curve and stands for the tail, beyond ``reach`` columns to
    either side.
    """

    spread: float  # the standard deviation, in columns
    reach: int
    height: float
    certain: int
    column: npt.NDArray[
        np.int16
    ]  # of each rectangle; a quarter of the next table, which leaves room in a cache
    middle: Floats  # of each rectangle's column, and half a cell more, in cells
    level: Floats  # where the middle of each uncertain rectangle is, in rectangles


@lru_cache(maxsize=4)
def cover(spread: float) -> Cover:
    """Return the cover for a standard deviation of 32 to 64 columns; lemma 3 of
    docs/proofs/lattice-noise.md.

    >>> 0.95 < cover(32.0).certain / RECTANGLES < 1
    True
    """
    reach = math.ceil(_REACH * spread)
    curve = np.exp(-0.5 * np.square(np.arange(reach + 1) / spread))
    highest, lowest = curve[:-1] * (1 + _MARGIN), curve[1:] * (1 - _MARGIN)
    height = (
        2 * float(highest.sum()) / (RECTANGLES - reach)
    )  # half a rectangle too many in each column, on average
    while 2 * (stacked := np.ceil(highest / height).astype(np.int64)).sum() >= RECTANGLES:
        height *= 1 + 2.0**-12
    below = np.floor(lowest / height).astype(np.int64)
    stacked, below = np.concatenate([stacked[::-1], stacked]), np.concatenate([below[::-1], below])
    stacked[-1] += RECTANGLES - stacked.sum()  # at least one: the tail
    above = stacked - below
    columns = np.arange(-reach, reach, dtype=np.int16)
    column = np.concatenate([np.repeat(columns, below), np.repeat(columns, above)])
    level = np.arange(above.sum()) - np.repeat(above.cumsum() - stacked, above) + 0.5
    return Cover(
        spread,
        reach,
        height,
        int(below.sum()),
        column,
        (column + 0.5) * 2.0**CELL_BITS + 0.5,
        level,
    )
