"""Estimates of prefix sums from the noisy nodes of a binary tree.

They read released values only, so they cost nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpfy.errors import InvalidArgument

Array = NDArray[np.float64]


def estimate_prefix_sums(levels: Sequence[Array]) -> Array:
    """Estimate the prefix sums of a stream from the nodes of a tree, with the least variance.

    A node is known twice: by its own release, and by what its children are estimated at. Both are
    averaged by their precision, from the leaves upwards. The estimate after a step uses nodes that
    are complete by then, and no later ones.

    *Formal guarantee*: of all unbiased linear estimates from these nodes each has the least
    variance; it is post-processing.

    Args:
        levels: for each level, from the leaves upwards, the released sums of its complete nodes in
            order, along the first axis; all have independent noise of the same size.

    Returns:
        The estimated sum of the first 1, 2, … steps, along the first axis.

    Raises:
        InvalidArgument: if a level does not have half as many nodes as the one below it.

    Reference: Honaker 2015, "Efficient use of differentially private binary trees" (estimates from
    below).

    >>> leaves = np.array([1.0, 2.0, 4.0])
    >>> estimate_prefix_sums([leaves, np.array([3.0])]).tolist()
    [1.0, 3.0, 7.0]
    """
    steps = len(levels[0]) if len(levels) else 0
    sizes = [steps >> level for level in range(steps.bit_length())]
    if not sizes or [len(level) for level in levels] != sizes:
        raise InvalidArgument(
            "Expected all complete nodes of a binary tree by level, each level half of the one "
            f"below it, got levels of {[len(level) for level in levels]}."
        )
    estimates, variance = [np.asarray(levels[0], dtype=np.float64)], 1.0
    for level in levels[1:]:
        below = estimates[-1]
        variance = 2 * variance / (1 + 2 * variance)  # also the weight of the node's own release
        both = below[0 : 2 * len(level) : 2] + below[1 : 2 * len(level) : 2]
        estimates.append(variance * np.asarray(level) + (1 - variance) * both)
    sums = np.zeros((steps + 1, *estimates[0].shape[1:]))
    for step in range(1, steps + 1):
        last = (step & -step).bit_length() - 1  # the level of the last node of the prefix
        sums[step] = sums[step - (1 << last)] + estimates[last][(step >> last) - 1]
    return sums[1:]
