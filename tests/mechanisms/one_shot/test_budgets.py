"""Budgets of groups: what is declared, and what is chosen from it before records are read."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.mechanisms.one_shot.budgets import Budgets, best_bins, best_threshold

GROUPS = {"strict": (0.3, 0.5), "usual": (1.0, 0.3), "open": (3.0, 0.2)}


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ({"strict": (0.0, 0.5), "open": (1.0, 0.5)}, "epsilon of group 'strict'"),
        ({"strict": (1.0, 0.5), "open": (math.inf, 0.5)}, "epsilon of group 'open'"),
        ({"strict": (1.0, 0.5), "open": ("2", 0.5)}, "epsilon of group 'open'"),
        ({"strict": (1.0, 1.5), "open": (2.0, -0.5)}, "share of group 'open'"),
        ({"strict": (1.0, 0.5), "open": (2.0, 0.6)}, "add up to 1, got 1.1"),
        ({"strict": 1.0}, "group 'strict' to have an epsilon and a share"),
        ({"strict": "ab"}, "group 'strict' to have an epsilon and a share"),
        ({}, "none of them twice"),
        ({3: (1.0, 1.0)}, "none of them twice"),
        ([("strict", 1.0)], "got list"),
    ],
)
def test_a_wrong_declaration_names_its_group(groups, match):
    with pytest.raises(InvalidArgument, match=match):
        Budgets.of(groups)


def test_budgets_have_one_number_of_each_kind_for_each_group():
    with pytest.raises(InvalidArgument, match="one share for each of the 2 groups, got 1"):
        Budgets(("a", "b"), (1.0, 2.0), (1.0,))
    budgets = Budgets.of(GROUPS)
    assert Budgets.of(budgets) is budgets


@pytest.mark.parametrize("threshold", [1e-3, 0.3, 0.7, 1.0, 3.0, 40.0, 600.0])
def test_rates_reach_the_budget_and_never_pass_it(threshold):
    """Exactly, by fractions of e to 60 digits: a rate that is rounded up would spend too much."""
    from decimal import Decimal, localcontext

    epsilons = (1e-6, 0.3, 1.0, 3.0, 39.99)
    budgets = Budgets(tuple("abcde"), epsilons, (0.2,) * 5)
    with localcontext() as context:
        context.prec = 60
        for epsilon, rate in zip(epsilons, budgets.rates(threshold), strict=True):
            exact = (Decimal(epsilon).exp() - 1) / (Decimal(threshold).exp() - 1)
            if epsilon >= threshold:
                assert rate == 1
            else:
                assert exact * (1 - Decimal("1e-11")) <= Decimal(rate) <= exact


def test_a_label_that_is_no_group_has_no_number():
    class Odd(str):
        __slots__ = ()

    labels = ["open", "strict", "other", None, math.nan, ["open"], 0, b"open", Odd("usual")]
    assert Budgets.of(GROUPS).numbers(labels).tolist() == [2, 0, -1, -1, -1, -1, -1, -1, 1]
    assert Budgets.of(GROUPS).numbers(np.array(["open", "strict"])).tolist() == [2, 0]
    assert Budgets.of(GROUPS).numbers([]).tolist() == []


def partitions(names):
    """All ways to put names into bins."""
    if not names:
        yield []
        return
    first, *rest = names
    for size in range(len(rest) + 1):
        for chosen in combinations(rest, size):
            for others in partitions([name for name in rest if name not in chosen]):
                yield [(first, *chosen), *others]


def test_bins_are_the_best_of_all():
    source = np.random.default_rng(3)
    for _ in range(30):
        shares = source.dirichlet(np.ones(5))
        epsilons = source.uniform(0.1, 3.0, 5)
        groups = {
            name: (float(epsilon), float(share))
            for name, epsilon, share in zip("abcde", epsilons, shares, strict=True)
        }
        budgets = Budgets.of(groups)

        for records in (0, 20, 1000):

            def error(bins, budgets=budgets, records=records):
                """The least squared error of a combination Σ c·A with Σ c·s = 1."""
                each = [budgets.of_bin(names) for names in bins]
                return 1 / sum(s**2 / (2 / e**2 + records * s / 4) for e, s in each)

            found = best_bins(groups, records)
            assert sorted(name for names in found for name in names) == list("abcde")
            assert math.isclose(error(found), min(map(error, partitions(list("abcde")))))


def test_equal_budgets_share_a_bin():
    assert best_bins({"a": (1.0, 0.5), "b": (1.0, 0.5)}) == (("a", "b"),)
    assert best_bins({"a": (1.0, 1.0)}) == (("a",),)


def combined(groups, factors, records, draws=40_000):
    """The squared error of a sum of noisy counts by numpy, where half of all records count."""
    source, budgets = np.random.default_rng(4), Budgets.of(groups)
    sizes = [round(records * share) for share in budgets.shares]
    counts = np.array([source.binomial(size, 0.5, draws) for size in sizes])
    noise = np.array([source.laplace(0, 1 / epsilon, draws) for epsilon in budgets.epsilons])
    told = np.array(factors) @ (counts + noise)
    return float(np.mean((told - counts.sum(axis=0)) ** 2))


@pytest.mark.parametrize("records", [10, 100, 1000])
def test_the_weights_of_precisions_have_the_least_error(records):
    """Against other factors that are right on average; the errors of 1 % are of the simulation."""
    budgets = Budgets.of(GROUPS)
    precisions = [budgets.precision((name,), records) for name in GROUPS]
    factors = [
        precision / sum(precisions) / share
        for precision, share in zip(precisions, budgets.shares, strict=True)
    ]
    least = combined(GROUPS, factors, records)
    for first, second in ((0, 1), (1, 2), (2, 0)):
        for step in (-0.3, 0.3):
            moved = list(factors)
            moved[first] += step / budgets.shares[first]
            moved[second] -= step / budgets.shares[second]
            assert least <= 1.01 * combined(GROUPS, moved, records)


def mean_square(groups, threshold, records, draws=20_000):
    """The error of a count of all records by a sample, with numpy's noise."""
    source, budgets = np.random.default_rng(1), Budgets.of(groups)
    rates = budgets.rates(threshold)
    sizes = [round(records * share) for share in budgets.shares]
    kept = sum(source.binomial(size, rate, draws) for size, rate in zip(sizes, rates, strict=True))
    noisy = kept + source.laplace(0, 1 / threshold, draws)
    rate = sum(share * rate for share, rate in zip(budgets.shares, rates, strict=True))
    return float(np.mean((noisy / rate - records) ** 2))


@pytest.mark.parametrize("records", [10, 100, 10_000])
def test_the_threshold_has_the_least_error(records):
    """By simulation, whose error of a few per cent is allowed for."""
    best = best_threshold(GROUPS, records)
    least = mean_square(GROUPS, best, records)
    for threshold in (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0):
        assert least <= 1.1 * mean_square(GROUPS, threshold, records)


def test_few_records_need_little_noise_and_many_need_no_coins():
    assert best_threshold(GROUPS, 2) > best_threshold(GROUPS, 10**9) == 0.3


def test_no_threshold_is_chosen_from_records():
    for records in ([1.0, 2.0], np.ones(3), "auto", 2.5, lambda: 3):
        with pytest.raises(InvalidArgument, match="no event pays for"):
            best_threshold(GROUPS, records)
    with pytest.raises(InvalidArgument, match="at least 1"):
        best_threshold(GROUPS, 0)


def test_shares_of_a_bin_add_up():
    epsilon, share = Budgets.of(GROUPS).of_bin(("open", "strict"))
    assert epsilon == 0.3 and Fraction(share) == Fraction(0.7)
