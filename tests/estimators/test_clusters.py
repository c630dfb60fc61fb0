import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from dpfy.estimators.clusters import (
    COUNT,
    LENGTH,
    Clusters,
    cluster_bound,
    cluster_sums,
    grid_counts,
    grid_width,
    nearest,
)

CENTRES = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0]])
HALF = np.array([4.0, 4.0])
CELLS = st.sampled_from([0.0, 0.5, 1.0, -4.0, 4.0, 1e-300, 3.999, 1.5])


def test_sums_are_those_of_shifts_counts_and_distances():
    x = np.array([[0.25, 0.0], [1.0, 0.5], [0.0, 4.0], [4.0, 0.0]])
    found = cluster_sums(x, np.array([1.0, 1, 0, 1]), CENTRES, 0.5)
    assert np.allclose(found[0], [0.5, 0, COUNT, LENGTH * 0.5])
    assert np.allclose(found[1], [1, 1, 2 * COUNT, 2 * LENGTH])  # both are cut off at the radius
    assert np.allclose(found[2], 0)


@settings(max_examples=100)
@given(
    arrays(float, (6, 2), elements=CELLS),
    arrays(float, (3, 2), elements=CELLS),
    st.sampled_from([1e-6, 0.5, 10.0]),
)
def test_a_row_adds_no_more_than_the_bound(x, centres, radius):
    ones = np.ones(6)
    alone = cluster_sums(x[:1], ones[:1], centres, radius)
    assert np.linalg.norm(alone) <= cluster_bound() * (1 + 1e-12)
    apart = cluster_sums(x, ones, centres, radius) - cluster_sums(x[1:], ones[1:], centres, radius)
    assert np.allclose(apart, alone, atol=1e-12)


def test_ties_do_not_depend_on_other_rows():
    """Rows half-way between centres: the last bit of a distance decides."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(2, 7))
    half_way = centres.mean(axis=0) + np.outer(random.normal(size=2000), [0] * 7)
    side = random.normal(size=(2000, 7))
    across = centres[1] - centres[0]
    x = half_way + side - np.outer(side @ across / (across @ across), across)
    whole = nearest(x, centres)
    assert 0 < whole.sum() < 2000
    alone = [nearest(x[place : place + 1], centres)[0] for place in range(2000)]
    assert np.array_equal(whole, alone)


def test_noisy_means_move_centres_and_set_the_radius():
    start = Clusters(CENTRES[:2], 1.0, HALF)
    x = np.concatenate([np.full((100, 2), 0.2), np.full((300, 2), [1.4, 0.0])])
    noisy = cluster_sums(x, np.ones(400), start.centres, 1.0)
    found = start.moved(noisy, 1e-9, False, np.random.RandomState(0))
    assert np.allclose(found.centres, [[0.2, 0.2], [1.4, 0]], atol=1e-6)
    assert np.isclose(found.radius, 1.5 * (0.25 * np.hypot(0.2, 0.2) + 0.75 * 0.4))


def test_two_centres_of_one_cluster_are_merged_to_split_another():
    """Centres 0 and 1 share a cluster, and centre 2 has two of them."""
    random = np.random.default_rng(0)
    x = random.normal(size=(900, 2)) * 0.1
    x[300:600] += [3.0, 0.0]
    x[600:] += [3.0, 3.0]
    found = Clusters(np.array([[-0.1, 0.0], [0.1, 0.0], [3.0, 1.5]]), 2.0, HALF)
    for _ in range(12):
        noisy = cluster_sums(x, np.ones(900), found.centres, found.radius)
        found = found.moved(noisy, 1e-6, True, np.random.RandomState(1))
    order = found.centres[np.argsort(found.centres.sum(axis=1))]
    assert np.allclose(order, [[0, 0], [3, 0], [3, 3]], atol=0.1)


def test_grids_count_each_row_in_one_cell():
    x = np.array([[-4.0, -4.0], [4.0, 4.0], [0.0, 0.0]])
    found = grid_counts(x, np.array([1.0, 1, 1]), HALF, 2)
    assert np.array_equal(found, [1, 0, 0, 2])


def test_grids_grow_with_rows_and_stay_small():
    assert grid_width(0, 1.0, 2, 3) == 3
    assert grid_width(20_000, 1.0, 2, 3) == 32
    assert grid_width(10**12, 1.0, 3, 3) ** 3 <= 2**17
