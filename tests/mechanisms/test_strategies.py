"""Strategies: optima that were computed elsewhere, gradients, and that no neighbour is better."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from dpfy.accounting.rules_for.streams import sensitivity
from dpfy.errors import InvalidArgument
from dpfy.ledger.streams import Buffered, Toeplitz
from dpfy.mechanisms.strategies import _loss, banded, blt, independent, square_root, tree
from dpfy.mechanisms.workloads import Workload, rmse

PREFIX = Workload(1000)


def product(strategy, workload, participations=1, separation=1):
    """The error at equal privacy, with the accountant's own sensitivity."""
    moved = sensitivity(strategy, workload.steps, participations, separation).upper
    return rmse(strategy, workload) * moved


@pytest.mark.parametrize(
    ("strategy", "participations", "separation", "expected"),
    [
        (lambda: banded(PREFIX, 16, 10, 100), 10, 100, 19.8533),  # jax_privacy 2.0: 19.85329
        (lambda: banded(PREFIX, 100, 10, 100), 10, 100, 11.5727),  # jax_privacy 2.0: 11.57267
        (lambda: blt(PREFIX, 2, 10, 100), 10, 100, 12.1939),
        (lambda: blt(PREFIX, 2), 1, 1, 3.07584),
        (lambda: banded(PREFIX, 1000), 1, 1, 3.04905),
        (lambda: tree(), 1, 1, 7.02709),
    ],
    ids=["banded 16", "banded 100", "blt 2", "blt 2 once", "banded 1000 once", "tree once"],
)
def test_stored_optima(strategy, participations, separation, expected):
    found = product(strategy(), PREFIX, participations, separation)
    assert found == pytest.approx(expected, abs=5e-5 if expected > 10 else 5e-6)


def test_more_buffers_are_never_worse_and_come_near_all_bands():
    errors = [product(blt(PREFIX, buffers), PREFIX) for buffers in (1, 2, 3, 4)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(product(banded(PREFIX, 1000), PREFIX), rel=1e-3)


@pytest.mark.parametrize("objective", ["mean", "last", "max"])
@pytest.mark.parametrize("rates", [False, True])
def test_gradients(objective, rates):
    learning_rates = tuple(np.linspace(1.0, 0.1, 30)) if rates else ()
    loss = _loss(Workload(30, 0.5, 0.01, learning_rates), 3, 7, objective)
    column = np.array([1.0, 0.5, 0.3, 0.25, 0.2, 0.1, 0.1, 0.05, 0.02])
    numeric = approx_fprime(column, lambda c: loss(np.ones(1), c, c)[0], 1e-7)
    assert loss(np.ones(1), column, column)[1] == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize(
    "workload",
    [
        Workload(60),
        Workload(60, momentum=0.9, decay=0.01),
        Workload(60, momentum=0.9, learning_rates=tuple(np.linspace(1.0, 0.1, 60))),
    ],
    ids=["prefix", "momentum", "learning rates"],
)
def test_no_strategy_nearby_is_better(workload):
    rng = np.random.default_rng(1)
    best = banded(workload, 12, 5, 12)
    least = product(best, workload, 5, 12)
    for _ in range(20):
        moved = np.maximum(np.array(best.coefficients) + 0.03 * rng.standard_normal(12), 0.0)
        moved[0] = 1.0
        assert product(Toeplitz(tuple(moved)), workload, 5, 12) >= least * (1 - 1e-9)
    for other in (independent(), square_root(workload, 12), banded(Workload(60), 12, 5, 12)):
        assert product(other, workload, 5, 12) >= least * (1 - 1e-9)


@pytest.mark.parametrize(("bands", "separation"), [(20, 10), (60, 10), (8, 1)])
def test_bands_that_overlap_fall_so_that_their_sensitivity_is_exact(bands, separation):
    strategy = banded(Workload(60), bands, 6, separation)
    assert list(strategy.coefficients) == sorted(strategy.coefficients, reverse=True)
    found = sensitivity(strategy, 60, 6, separation)
    assert found.lower == pytest.approx(found.upper, rel=1e-8)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_workloads(steps):
    workload = Workload(steps)
    for strategy in (banded(workload, 5), blt(workload, 3), square_root(workload), independent()):
        assert strategy.column(steps)[0] == 1.0
        assert np.isfinite(rmse(strategy, workload))
        assert len(strategy.column(steps)) <= steps
    assert isinstance(blt(workload), Buffered)


def test_the_square_root_is_one():
    root = np.array(square_root(Workload(50, momentum=0.9, decay=0.02)).coefficients)
    assert np.convolve(root, root)[:50] == pytest.approx(Workload(50, 0.9, 0.02).impulse)


def test_bad_arguments_are_refused():
    for call in (
        lambda: banded(PREFIX, 0),
        lambda: banded(PREFIX, 4, objective="median"),
        lambda: banded(PREFIX, 4, participations=0),
        lambda: blt(PREFIX, 9),
        lambda: blt(PREFIX, 2, separation=0),
        lambda: square_root(PREFIX, 0),
        lambda: tree(-1),
    ):
        with pytest.raises(InvalidArgument):
            call()
