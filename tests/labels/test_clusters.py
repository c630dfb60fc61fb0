"""Clusters follow features alone, and a label moves two counts by one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2

from dpfy import Ledger
from dpfy.errors import InvalidArgument
from dpfy.labels import by_clusters, nearest_centres

X = torch.tensor([[0.0], [0.1], [5.0], [5.1], [0.2]])
LABELS = st.one_of(st.integers(-2, 4), st.floats(), st.none(), st.text(max_size=1))


def counts(y, x=X, clusters=2, epsilon=1.0, key=9):

    with Ledger.in_memory() as ledger:
        return by_clusters(x, y, 3, epsilon, ledger, clusters=clusters, insecure_test_key=key)


@given(st.lists(LABELS, min_size=5, max_size=5), LABELS, st.integers(0, 4))
@settings(deadline=None, max_examples=30)
def test_another_label_moves_two_counts_of_its_cluster_by_one(y, other, place):
    before, after = counts(y), counts([*y[:place], other, *y[place + 1 :]])
    moved = (before.counts - after.counts).abs()  # the same key: the same noise
    assert float(moved.sum()) in (0.0, 2.0) and float(moved.max()) <= 1
    assert torch.equal(before.cluster_of, after.cluster_of)
    assert moved[[c for c in range(2) if c != before.cluster_of[place]]].sum() == 0


@pytest.mark.parametrize("factor", [1.0, 2 / 3, 1.5])
def test_noise_has_its_scale_and_no_other(factor):
    """A χ² test at 1e-7 of 8 equally likely cells, on counts of 400 clusters without a record."""
    found = counts([], torch.zeros(0, 1), clusters=400, epsilon=0.5)
    noise, scale = found.counts.numpy().ravel(), factor * 2 / 0.5
    tail = np.exp(-np.abs(noise) / scale) / 2
    seen = np.histogram(np.where(noise < 0, tail, 1 - tail), 8, (0, 1))[0]
    statistic = ((seen - noise.size / 8) ** 2 / (noise.size / 8)).sum()
    assert (chi2.sf(statistic, 7) > 1e-7) == (factor == 1.0)


def test_labels_are_drawn_from_the_released_shares():
    found = counts([0] * 4000 + [1] * 12000, torch.zeros(16000, 1), clusters=1, epsilon=8.0)
    assert found.shares.shape == (1, 3) and float(found.shares.sum()) == pytest.approx(1)
    share = float((found.labels == 1).double().mean())
    assert abs(share - 0.75) < 5.4 * math.sqrt(0.75 * 0.25 / 16000) + 0.01
    assert torch.equal(found.posterior(), found.shares[found.cluster_of].float())


def test_a_cluster_without_a_positive_count_knows_nothing():
    found = counts([], torch.zeros(0, 1), clusters=60, epsilon=1.0)
    lost = (found.counts <= 0).all(1)
    assert lost.any() and torch.allclose(found.shares[lost], torch.tensor(1 / 3).double())


def test_clusters_are_a_function_of_features():
    assert nearest_centres(X, 2).tolist() in ([0, 0, 1, 1, 0], [1, 1, 0, 0, 1])
    assert torch.equal(nearest_centres(X, 2), nearest_centres(X, 2))
    assert nearest_centres(torch.zeros(4, 2, 3), 9).tolist() == [0] * 4  # equal rows
    assert nearest_centres(torch.zeros(0, 2), 3).shape == (0,)
    assert set(nearest_centres(torch.arange(3.0), 100).tolist()) == {0, 1, 2}


def test_one_record_and_arguments_out_of_range(tmp_path):
    assert counts([2], torch.zeros(1, 1), clusters=1, epsilon=90.0).labels.tolist() == [2]
    for arguments, message in (
        ({"clusters": 0}, "clusters=0"),
        ({"epsilon": -1.0}, "epsilon=-1"),
        ({"x": torch.zeros(2, 1)}, "got 2 and 5"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            counts([0] * 5, **arguments)
