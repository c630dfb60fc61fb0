"""What several fits cost together is what their ledger says, and what the formula says."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpfy import account
from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.estimators import (
    LogisticRegression,
    cost_of_fits,
    describe,
    shared_ledger,
    split_budget,
)
from dpfy.tabular import Column, Schema


def ratio_of(epsilon, delta):
    """The sensitivity over noise of the Gaussian mechanism (Balle & Wang 2018, Theorem 8)."""

    def excess(mu):
        first = norm.cdf(mu / 2 - epsilon / mu)
        return first - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 1e-4, 20)


@pytest.mark.parametrize("fits", [1, 2, 6, 50])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_costs_add_up_as_squares_of_gaussian_ratios(fits, epsilon):
    together = cost_of_fits(fits, epsilon, 1e-5)
    assert ratio_of(together, 1e-5) == pytest.approx(
        math.sqrt(fits) * ratio_of(epsilon, 1e-5), rel=1e-3
    )
    assert split_budget(fits, together, 1e-5) == pytest.approx(epsilon, rel=1e-3)


def test_a_shared_ledger_admits_as_many_fits_as_were_planned_and_no_more(tmp_path):
    x = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    y, schema = x[:, 0] > 0, Schema((Column("x", bounds=(-1, 1)),))
    each = split_budget(4, 2.0, 1e-5)
    given = {"bounds": (-1, 1), "classes": [False, True]}
    with shared_ledger(tmp_path / "all.dpl", epsilon=2.0, delta=1e-5) as ledger:
        describe({"x": x[:, 0]}, schema, each, 1e-5, ledger=ledger)
        for _ in range(3):
            LogisticRegression(each, 1e-5, ledger=ledger, **given).fit(x, y)
        with pytest.raises(BudgetExhausted):
            LogisticRegression(each, 1e-5, ledger=ledger, **given).fit(x, y)
    assert account(tmp_path / "all.dpl").claim(1e-5) <= 2.0


@pytest.mark.parametrize("arguments", [(0, 1.0, 1e-5), (2, 0.0, 1e-5), (2, 1.0, 0.0)])
def test_arguments_out_of_range_are_refused(arguments):
    for function in (cost_of_fits, split_budget):
        with pytest.raises(InvalidArgument):
            function(*arguments)
