"""What is read off a guarantee is a bound, and a tight one where the truth is known."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpfy.accounting import GaussianFilter, account
from dpfy.accounting.conversions import (
    dominating_mu,
    group_claim,
    membership_advantage,
    tpr_at_fpr,
    tradeoff_curve,
)
from dpfy.accounting.pld import closed_forms
from dpfy.errors import InvalidArgument
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery

FPR = [0.0, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0]


def run(rate: float, noise: float, steps: int = 1) -> Repeated:
    return Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)


def gaussian_tradeoff(mu: float, fpr: np.ndarray) -> np.ndarray:
    return norm.cdf(norm.isf(fpr) - mu)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_tradeoff_of_a_gaussian_is_the_known_curve(mu):
    curve = tradeoff_curve(account(run(1.0, 1 / mu)), FPR)
    truth = gaussian_tradeoff(mu, np.array(FPR))
    assert np.all(np.array(curve.fnr) <= truth + 1e-12)  # a bound
    np.testing.assert_allclose(curve.fnr, truth, atol=4e-3)  # and close to it
    for fpr in FPR[1:-1]:
        most = tpr_at_fpr(account(run(1.0, 1 / mu)), fpr)
        assert most >= 1 - gaussian_tradeoff(mu, np.array(fpr)) - 1e-12
        assert most == pytest.approx(1 - gaussian_tradeoff(mu, np.array(fpr)), rel=1e-3)


def test_tradeoff_is_a_bound_for_a_sampled_step():
    # The best test of (1 − q)·N(0, 1) + q·N(1, 1) against N(0, 1), in both directions, is a
    # threshold.
    rate = 0.3
    thresholds = np.linspace(-4, 5, 50)
    absent, present = (
        norm.sf(thresholds),
        (1 - rate) * norm.sf(thresholds) + rate * norm.sf(thresholds, 1),
    )
    guarantee = account(run(rate, 1.0))
    remove = tradeoff_curve(guarantee, absent.tolist())
    add = tradeoff_curve(guarantee, (1 - present).tolist())
    assert np.all(np.array(remove.fnr) <= 1 - present + 1e-12)
    assert np.all(np.array(add.fnr) <= absent + 1e-12)
    likely = (
        thresholds > 0.5
    )  # where the output speaks for the record, removing it is the worse direction
    assert np.max(1 - present - np.array(remove.fnr), where=likely, initial=0) < 3e-3


def test_tradeoff_curve_has_the_shape_of_one():
    curve = tradeoff_curve(account(run(0.02, 1.0, 200)), 41)
    fnr = np.array(curve.fnr)
    assert len(fnr) == 41 and curve.fpr[0] == 0 and curve.fpr[-1] == 1
    assert np.all(np.diff(fnr) <= 1e-12) and np.all(np.diff(fnr, 2) >= -1e-12)  # falling and convex
    assert np.all(fnr <= 1 - np.array(curve.fpr) + 1e-12) and fnr[-1] == 0


def test_advantage_is_the_total_variation():
    assert membership_advantage(account(run(1.0, 2.0))) == pytest.approx(
        2 * norm.cdf(0.25) - 1, rel=1e-9
    )
    assert membership_advantage(account(run(0.1, 2.0))) == pytest.approx(
        0.1 * (2 * norm.cdf(0.25) - 1), rel=1e-6
    )
    guarantee = account(run(0.02, 1.0, 200))
    best = max(tpr_at_fpr(guarantee, fpr) - fpr for fpr in (0.2, 0.4, 0.5))
    assert best <= membership_advantage(guarantee) + 1e-12


@pytest.mark.parametrize(
    ("steps", "mu"), [(run(1.0, 2.0), 0.5), (run(1.0, 30.0, 1000), math.sqrt(1000) / 30)]
)
def test_mu_of_gaussians_is_exact_up_to_the_grid(steps, mu):
    found = dominating_mu(account(steps)).mu
    assert mu <= found < 1.01 * mu


@pytest.mark.parametrize("floor", [1e-4, 1e-6])
def test_mu_dominates_everywhere_and_is_the_least(floor):
    guarantee = account(run(0.05, 1.0, 100))
    found = dominating_mu(guarantee, floor)
    grid = (
        np.linspace(0, guarantee.claim(floor), 50) * 0.9999 + 1e-5
    )  # not the points that were used
    deltas = np.array([guarantee.delta(float(value)).upper for value in grid])
    assert all(
        delta <= closed_forms.delta(found.mu, float(value))
        for value, delta in zip(grid, deltas, strict=True)
    )
    smaller = 0.98 * found.mu
    assert any(
        delta > closed_forms.delta(smaller, float(value))
        for value, delta in zip(grid, deltas, strict=True)
    )


def test_nothing_and_everything():
    nothing, everything = account([]), account(NonPrivate("looked"))
    assert membership_advantage(nothing) == 0 and membership_advantage(everything) == 1
    assert tpr_at_fpr(nothing, 0.1) == pytest.approx(0.1) and tpr_at_fpr(everything, 0.1) == 1
    assert dominating_mu(nothing).mu == 0 and dominating_mu(everything).mu == math.inf
    assert tradeoff_curve(nothing, [0.25]).fnr == (0.75,) and tradeoff_curve(
        everything, [0.25]
    ).fnr == (0.0,)
    assert group_claim(nothing, 3, 1e-5) < 1e-5 and group_claim(everything, 3, 1e-5) == math.inf


def test_a_filter_converts_like_any_guarantee():
    rule = GaussianFilter(0.5)
    with Ledger.in_memory(rule.guard(), Header(filter=rule.to_json())) as ledger:
        assert dominating_mu(account(ledger)).mu == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("size", [2, 5])
def test_group_claim_holds_for_gaussians(size):
    # k records move a full-batch sum k times as far, and nothing sharper is true.
    truth = closed_forms.epsilon(size * 0.2, 1e-6).upper
    claimed = group_claim(account(run(1.0, 5.0)), size, 1e-6)
    assert truth <= claimed < 2 * truth


@pytest.mark.parametrize(
    "call",
    [
        lambda guarantee: tpr_at_fpr(guarantee, 1.1),
        lambda guarantee: tradeoff_curve(guarantee, 1),
        lambda guarantee: tradeoff_curve(guarantee, [-0.1]),
        lambda guarantee: dominating_mu(guarantee, 0.0),
        lambda guarantee: group_claim(guarantee, 0, 1e-5),
    ],
)
def test_bad_questions_are_refused(call):
    with pytest.raises(InvalidArgument):
        call(account([]))
