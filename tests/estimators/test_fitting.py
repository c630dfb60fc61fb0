"""A fit is calibrated, registered, reserved before rows are read, and costs what it claims."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from dpfy.accounting import account
from dpfy.errors import BudgetExhausted, InvalidArgument, LedgerMismatch
from dpfy.estimators import LogisticRegression, shared_ledger
from dpfy.estimators.fitting import (
    BLOCK,
    Declared,
    Fit,
    computed_bound,
    default_delta,
    gaussian,
    resolve_relation,
    summed,
)
from dpfy.ledger import Ledger
from dpfy.types import Relation


def declared(epsilon=1.0, delta=1e-5, relation=Relation.ZERO_OUT):
    return Declared("Model", {}, 100, epsilon, delta, relation)


def gaussian_delta(epsilon, mu):
    """δ of one Gaussian sum with noise 1/μ (Balle & Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("relation", list(Relation)[::2])
def test_the_noise_is_that_of_the_exact_gaussian_mechanism(epsilon, relation):
    """Three vectors with shares: together one Gaussian of the μ that a formula gives."""

    def plan(noise):
        return [
            gaussian("a", 2.0, noise, times=7, share=0.5),
            gaussian("b", 0.1, noise, share=0.25),
            gaussian("c", 5.0, noise, times=100, share=0.25),
        ]

    fit = Fit(declared(epsilon, relation=relation), plan, None)
    mu = brentq(lambda mu: gaussian_delta(epsilon, mu) - 1e-5, 1e-4, 10)
    total = sum(
        each.times * (each.mechanism.l2_bound / each.mechanism.stddev) ** 2 for each in fit.planned
    )
    assert math.sqrt(total) == pytest.approx(mu, rel=2e-4) and math.sqrt(total) <= mu
    with fit:
        pass
    assert fit.guarantee.claim(1e-5) <= epsilon
    assert fit.guarantee.relation is relation


def test_an_event_is_reserved_before_rows_are_read():
    with Fit(declared(), lambda noise: [gaussian("a", 1.0, noise, times=3)], None) as fit:
        for step in range(3):
            seen = []
            fit.release(fit.planned[0], lambda seen=seen: [seen.append(fit.ledger.count), 0.0][1:])
            assert seen == [step + 1]
        with pytest.raises(BudgetExhausted):
            fit.release(fit.planned[0], lambda: pytest.fail("a row was read"))


@pytest.mark.parametrize(("wrong", "passes"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_noise_has_the_scale_on_record(wrong, passes):
    """False alarms: 5.2 standard deviations of a sample deviation, below 1e-6."""
    count, fit = 100_000, Fit(declared(), lambda noise: [gaussian("a", 3.0, noise)], None, 5)
    with fit:
        noisy = fit.release(fit.planned[0], lambda: np.zeros(count))
    found = noisy.std() / (fit.noise_multiplier * 3.0 * wrong)
    assert (abs(found - 1) < 5.2 / math.sqrt(2 * count)) == passes


def test_numpy_says_nothing_about_rows():
    with Fit(declared(), lambda noise: [gaussian("a", 1.0, noise)], None) as fit:
        noisy = fit.release(fit.planned[0], lambda: np.array([1e308]) * 10 / np.array([0.0]))
    assert np.isfinite(noisy).all()  # a sum that is not finite counts as 0


@given(
    rows=st.integers(0, 40),
    width=st.integers(1, 5),
    key=st.integers(0, 100),
    scale=st.sampled_from([1e-8, 1.0, 1e8]),
)
def test_sums_over_blocks_are_sums(rows, width, key, scale):
    x = np.random.default_rng(key).normal(size=(rows, width)) * scale
    assert summed(lambda each: each.sum(axis=0), x) == pytest.approx(x.sum(axis=0))


def test_long_tables_are_summed_block_by_block():
    x, sizes = np.ones((2 * BLOCK + 3, 1)), []

    def block(rows, same):
        sizes.append(len(rows))
        assert rows.shape == same.shape
        return rows.sum(axis=0)

    assert summed(block, x, x) == [len(x)] and sizes == [BLOCK, BLOCK, 3]


@pytest.mark.parametrize("records", [0, 1, 10**4, 10**8])
def test_rounding_is_inside_the_bound_and_small(records):
    bound = computed_bound(0.5, records, 100)
    exact = 2 * max(records, 1) * min(2 * max(records, 1), BLOCK) * 2.0**-53
    assert 1 + exact <= bound / 0.5 < 1.02


def test_rounding_of_an_adversarial_sum_is_inside_the_bound():
    """Large terms of both signs hide small ones: one row moves the rounding of all others."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.choice([-1.0, 1.0], 9999), [2.0**-30]])[:, None]
    rounding = [
        abs(float(np.ones(len(rows)) @ rows[:, 0]) - math.fsum(rows[:, 0])) for rows in (x, x[1:])
    ]
    assert sum(rounding) <= computed_bound(1.0, len(x), 1) - 1


def test_delta_follows_the_number_of_rows():
    assert default_delta(0) == default_delta(10) == 1e-5
    assert default_delta(10**8) == pytest.approx(10**-8.8)


@pytest.mark.parametrize(
    ("relation", "records", "says"),
    [
        ("zero_out", 10, "Expected no records="),
        ("add_or_remove_one", None, "records=10_000"),
        ("add_or_remove_one", 0, "at least 1"),
        ("replace_one", None, "one of 'zero_out'"),
    ],
)
def test_the_relation_says_what_is_public(relation, records, says):
    with pytest.raises(InvalidArgument, match=says):
        resolve_relation(relation, records, rows=7)


def test_the_number_of_rows_is_used_only_where_it_is_public():
    assert resolve_relation("zero_out", None, 7) == (Relation.ZERO_OUT, 7)
    assert resolve_relation("add_or_remove_one", 5, 7) == (Relation.ADD_OR_REMOVE_ONE, 5)


X, Y = np.random.default_rng(0).uniform(-1, 1, (200, 2)), np.arange(200) % 2


def model(epsilon, ledger):
    return LogisticRegression(epsilon, 1e-6, data_norm=1.5, classes=[0, 1], ledger=ledger, steps=5)


def test_fits_on_one_ledger_add_up_under_a_filter(tmp_path):
    path = tmp_path / "all.dpl"
    with shared_ledger(path, epsilon=1.0, delta=1e-5) as ledger:
        first = model(0.5, ledger).fit(X, Y)
        model(0.3, ledger).fit(X, Y)
        assert first.guarantee_.claim(1e-6) <= 0.5
        with pytest.raises(BudgetExhausted):
            model(1.2, ledger).fit(X, Y)
    assert len(Ledger.read(path).uses) == 2 and Ledger.read(path).count == 10
    assert account(path).claim(1e-5) <= 1.0
    with shared_ledger(path, epsilon=1.0, delta=1e-5) as ledger:  # and goes on another day
        model(0.1, ledger).fit(X, Y)
    model(0.1, path).fit(X, Y)  # a path is as good as an open ledger
    assert Ledger.read(path).count == 20
    with pytest.raises(LedgerMismatch):
        shared_ledger(path, epsilon=2.0, delta=1e-5)


def test_a_second_fit_without_a_filter_is_refused(tmp_path):
    model(0.5, tmp_path / "one.dpl").fit(X, Y)
    with pytest.raises(LedgerMismatch, match="filter"):
        model(0.3, tmp_path / "one.dpl").fit(X, Y)
    with pytest.raises(BudgetExhausted):
        model(0.5, tmp_path / "one.dpl").fit(X, Y)
    assert Ledger.read(tmp_path / "one.dpl").count == 5
