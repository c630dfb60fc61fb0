"""Scores of personalised choices: what they are, by trying all data sets, and how far they move."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpfy.mechanisms.one_shot.scores import (
    UNIT_STEPS,
    count_scores,
    mean_scores,
    median_scores,
)

PRICES = np.array([2, 7, 5])
LIST = (0, 0, 1, 2)  # the groups of four people
ABSENT = None


def distance(one, other, groups=LIST):
    """The price of all records that are in one data set and not in the other."""
    return sum(
        int(PRICES[group]) * ((a is not ABSENT) + (b is not ABSENT))
        for a, b, group in zip(one, other, groups, strict=True)
        if a != b
    )


def medians_of(people, candidate):
    """Whether a candidate is a median of the records that are there."""
    there = [value for value in people if value is not ABSENT]
    below = sum(value < candidate for value in there)
    above = sum(value > candidate for value in there)
    return 2 * below <= len(there) and 2 * above <= len(there)


def scored(people, candidates, groups=LIST, prices=PRICES):
    there = [
        (value, group) for value, group in zip(people, groups, strict=True) if value is not ABSENT
    ]
    values = np.array([value for value, _ in there], dtype=float)
    numbers = np.array([group for _, group in there], dtype=np.int64)
    on_list = np.bincount(groups, minlength=len(prices))
    return median_scores(values, numbers, on_list, prices, np.array(candidates, dtype=float))


def test_a_median_scores_the_least_price_of_making_it_true():
    candidates = (1, 2, 3)
    everything = list(product((ABSENT, 1, 2, 3), repeat=4))
    right = {at: [data for data in everything if medians_of(data, at)] for at in candidates}
    for people in everything[::3]:
        least = [-min(distance(people, data) for data in right[at]) for at in candidates]
        assert scored(people, candidates).tolist() == least


def test_a_count_scores_the_least_price_of_making_it_true():
    everything = list(product((0, 1), repeat=5))
    groups = np.array([0, 0, 1, 2, 2])
    for people in map(np.array, everything):
        counted = np.bincount(groups[people == 1], minlength=3)
        others = np.bincount(groups[people == 0], minlength=3)
        found = count_scores(counted, others, PRICES, np.arange(6))
        for number, score in enumerate(found.tolist()):
            prices = [
                int(PRICES[groups[people != np.array(data)]].sum())
                for data in everything
                if sum(data) == number
            ]
            assert score == -min(prices)


def test_a_mean_scores_how_far_priced_records_are_from_balance():
    values, numbers = np.array([0.0, 0.25, 1.0, 0.5]), np.array([0, 1, 2, 1])
    steps = (values * UNIT_STEPS).astype(np.int64)
    candidates = np.array([0.0, 0.25, 0.5, 1.0])
    found = mean_scores(steps, numbers, PRICES, (candidates * UNIT_STEPS).astype(int).tolist())
    exact = [abs(float((PRICES[numbers] * (values - at)).sum())) for at in candidates]
    assert found.tolist() == [-math.floor(each) for each in exact]


people = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.integers(-3, 3)), min_size=1, max_size=12
)
many = st.lists(st.integers(1, 2**31), min_size=3, max_size=3)


@given(people, many, st.data())
@settings(max_examples=150, deadline=None)
def test_a_record_moves_every_score_by_at_most_its_price(listed, prices, data):
    """Adversarial lists, prices and places: remove any record, and compare all candidates."""
    prices = np.array(prices, dtype=np.int64)
    groups = [group for group, _ in listed]
    values = [value for _, value in listed]
    place = data.draw(st.integers(0, len(listed) - 1))
    fewer = [ABSENT if at == place else value for at, value in enumerate(values)]
    candidates = list(range(-4, 5))
    medians = [scored(each, candidates, groups, prices) for each in (values, fewer)]
    means, counts = [], []
    for each in (values, fewer):
        there = np.array([value is not ABSENT for value in each])
        numbers = np.array(groups)[there]
        filled = np.array([0 if value is ABSENT else value for value in each])
        steps = np.clip((filled[there] + 3) * (UNIT_STEPS // 6), 0, UNIT_STEPS).astype(np.int64)
        tried = [UNIT_STEPS * part // 10 for part in range(11)]
        means.append(mean_scores(steps, numbers, prices, tried))
        counted = np.bincount(np.array(groups)[there & (filled > 0)], minlength=3)
        others = np.bincount(groups, minlength=3) - counted
        counts.append(count_scores(counted, others, prices, np.arange(len(listed) + 1)))
    for one, other in (medians, means, counts):
        assert np.abs(one - other).max() <= prices[groups[place]]


def test_scores_are_exact_floats_however_large():
    """A million records of the largest price are cut where whole numbers end to be floats."""
    prices = np.array([2**31], dtype=np.int64)
    count = np.array([10**7])
    found = count_scores(count, count, prices, np.array([0, 10**7, 2 * 10**7]))
    assert found.tolist() == [-(2**53), 0, -(2**53)]
    steps = np.full(10**5, UNIT_STEPS)
    far = mean_scores(steps, np.zeros(10**5, np.int64), prices, [0, UNIT_STEPS])
    assert far.tolist() == [-(10**5) * 2**31, 0]


@pytest.mark.parametrize("prices", [PRICES, np.array([1, 1, 1])])
def test_nobody_scores_nothing(prices):
    nobody = np.zeros(3, np.int64)
    none, numbers = np.empty(0), np.empty(0, np.int64)
    assert count_scores(nobody, nobody, prices, np.array([0])).tolist() == [0]
    assert median_scores(none, numbers, nobody, prices, np.arange(3.0)).tolist() == [0, 0, 0]
    assert mean_scores(numbers, numbers, prices, [0, 5]).tolist() == [0, 0]
