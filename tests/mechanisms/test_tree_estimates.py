"""Honaker's estimator: exact without noise, and the best of all unbiased estimates with it."""

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.mechanisms.tree_estimates import estimate_prefix_sums


def nodes(steps):
    """Which leaves each complete node adds up, level by level."""
    return [
        np.repeat(np.eye(steps >> level), 1 << level, axis=1)
        if steps >> level << level == steps
        else np.pad(
            np.repeat(np.eye(steps >> level), 1 << level, axis=1),
            ((0, 0), (0, steps - (steps >> level << level))),
        )
        for level in range(steps.bit_length())
    ]


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 13])
def test_every_estimate_is_the_best_of_what_was_released_by_then(steps):
    levels = nodes(steps)
    count = sum(map(len, levels))
    ends = np.concatenate([(np.arange(len(level)) + 1) << n for n, level in enumerate(levels)])
    places = np.split(np.eye(count), np.cumsum([len(level) for level in levels])[:-1])
    weights = estimate_prefix_sums(places)  # it is linear: what each node counts for
    tree = np.concatenate(levels)
    assert weights @ tree == pytest.approx(np.tril(np.ones((steps, steps))))
    for step in range(1, steps + 1):
        known = tree[ends <= step][:, :step]
        best = np.ones(step) @ np.linalg.pinv(known)
        assert weights[step - 1][ends <= step] == pytest.approx(best)
        assert not weights[step - 1][ends > step].any()


def test_levels_that_are_no_tree_are_refused():
    for levels in ([], [np.zeros(3)], [np.zeros(4), np.zeros(2)], [np.zeros(2), np.zeros(2)]):
        with pytest.raises(InvalidArgument, match="level"):
            estimate_prefix_sums(levels)
