"""The table of the rejection sampler: the bell curve covered by 65 536 equal rectangles.

A point drawn uniformly from the area below ``exp(-x²/2)`` has a Gaussian abscissa. The sampler
picks a rectangle, then a point in it, and keeps the point if it lies below the curve. The table
says which rectangles lie entirely below the curve. They are 97 of 100, and need no comparison.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RECTANGLES = 1 << 16  # two bytes name one
CELL_BITS = 32  # a column is divided into 2^32 cells
_REACH = 6  # the columns cover this many standard deviations to either side
_MARGIN = 2.0**-32  # relative to the curve: far more than the error of its float64 evaluation


@dataclass(frozen=True, eq=False)
class RejectionTable:
    """Rectangles that cover ``exp(-(x/spread)²/2)``, each one column wide.

    Rectangles with a number below ``certain`` lie below the curve. The last rectangle lies above
    it and stands for the tail, beyond ``reach`` columns to either side.

    Args:
        spread: The standard deviation of the Gaussian, in columns.
        reach: The number of columns on either side of zero.
        height: The height of a rectangle, where the curve has height 1 at zero.
        certain: The number of rectangles that lie entirely below the curve.
        column: The column of each rectangle. It takes a quarter of the memory of ``middle``, so
            that C reads it from the cache.
        middle: The middle of each rectangle's column plus half a cell, in cells.
        level: The middle of each uncertain rectangle above the axis, in heights.
    """

    spread: float
    reach: int
    height: float
    certain: int
    column: npt.NDArray[np.int16]
    middle: Floats
    level: Floats


@lru_cache(maxsize=4)
def rejection_table(spread: float) -> RejectionTable:
    """Return the table for a standard deviation of 32 to 64 columns.

    Proof: lemma 3 of docs/proofs/lattice-noise.md.

    >>> 0.95 < rejection_table(32.0).certain / RECTANGLES < 1
    True
    """
    reach = math.ceil(_REACH * spread)
    curve = np.exp(-0.5 * np.square(np.arange(reach + 1) / spread))
    highest, lowest = curve[:-1] * (1 + _MARGIN), curve[1:] * (1 - _MARGIN)
    # A column has half a rectangle too many on average.
    height = 2 * float(highest.sum()) / (RECTANGLES - reach)
    while 2 * (stacked := np.ceil(highest / height).astype(np.int64)).sum() >= RECTANGLES:
        height *= 1 + 2.0**-12
    below = np.floor(lowest / height).astype(np.int64)
    stacked, below = np.concatenate([stacked[::-1], stacked]), np.concatenate([below[::-1], below])
    stacked[-1] += RECTANGLES - stacked.sum()  # at least one: the tail
    above = stacked - below
    columns = np.arange(-reach, reach, dtype=np.int16)
    column = np.concatenate([np.repeat(columns, below), np.repeat(columns, above)])
    level = np.arange(above.sum()) - np.repeat(above.cumsum() - stacked, above) + 0.5
    return RejectionTable(
        spread,
        reach,
        height,
        int(below.sum()),
        column,
        (column + 0.5) * 2.0**CELL_BITS + 0.5,
        level,
    )
