"""A student learns from labels that spread along neighbours, and from nothing else."""

import numpy as np
import pytest

from dpfy import semi_supervised
from dpfy.ensembles import spread_labels
from dpfy.errors import InvalidArgument

RNG = np.random.default_rng(0)
TRUTH = RNG.integers(0, 3, 300)
X = np.array([[0, 0], [9, 0], [0, 9]])[TRUTH] + RNG.normal(size=(300, 2))


def few_labels(wrong: int = 0) -> np.ndarray:
    labels = np.full(300, -1)
    for label in range(3):
        labels[np.flatnonzero(label == TRUTH)[:5]] = label
    labels[np.flatnonzero(TRUTH == 0)[:wrong]] = 1
    return labels


def test_few_labels_reach_all_inputs_and_outvote_a_wrong_one():
    for wrong in (0, 1):
        spread = spread_labels(X, few_labels(wrong), 3)
        assert (spread.argmax(axis=1) == TRUTH).mean() > 0.98
        assert spread.sum(axis=1) == pytest.approx(1)
    student = semi_supervised(X, few_labels(), 3)
    assert (student.predict(X).numpy() == TRUTH).mean() > 0.98


def test_edges():
    assert not spread_labels(X, np.full(300, -1), 3).any()
    assert spread_labels([[1.0]], [1], 2).tolist() == [[0, 1]]
    same = spread_labels(np.ones((4, 2)), [0, -1, -1, -1], 2)
    assert np.isfinite(same).all()
    nothing = semi_supervised(X, np.full(300, -1), 3)
    assert nothing.predict(X).shape == (300,)
    with pytest.raises(InvalidArgument, match="one label"):
        spread_labels(X, [0], 3)
    with pytest.raises(InvalidArgument, match="alpha"):
        spread_labels(X, few_labels(), 3, alpha=1.0)
