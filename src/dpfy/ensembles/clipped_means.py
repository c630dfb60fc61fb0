"""Sums of clipped predictions, exact on a lattice that declared bounds fix."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_FINEST = 30  # binary digits of the distance between the bounds


def clipped_sums(answers: Any, bounds: tuple[float, float]) -> npt.NDArray[np.float64]:
    """Return the sum of the teachers' clipped predictions, less the middle of the bounds each.

    *Formal guarantee*: if all answers of one teacher are replaced, each sum moves by at most the
    distance of the bounds, rounding included: predictions are rounded to multiples of a power of
    two, whose sums are exact for up to 2²² teachers.

    The sums are as sensitive as the records: they may leave only with noise.

    Args:
        answers: The prediction of each teacher for each input, of the shape (teachers, inputs). One
            that is not finite counts as the middle of the bounds.
        bounds: The least and the largest prediction that count.

    Returns:
        One sum for each input.

    Reference: docs/proofs/prediction.md, Lemma 2.

    >>> clipped_sums([[0.5, 9.0], [0.25, float("nan")]], bounds=(0.0, 1.0))
    array([-0.25,  0.5 ])
    """
    low, high = bounds
    middle = low / 2 + high / 2
    step = math.ldexp(1.0, math.frexp(high - low)[1] - _FINEST)
    most = math.floor((high - low) / 2 / step)
    values = np.asarray(answers, dtype=np.float64)
    finite = np.where(np.isfinite(values), np.clip(values, low, high), middle)
    steps = np.clip(np.rint((finite - middle) / step), -most, most)
    return steps.sum(axis=0) * step
