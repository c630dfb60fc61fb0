"""Workloads: errors against an optimizer that is run, and matrices that are written out."""

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.ledger.streams import Buffered, Columns, Toeplitz, Tree
from dpfy.mechanisms.workloads import Workload, inverse, rmse

RATES = tuple(np.linspace(1.0, 0.2, 13))


def run_optimizer(workload, gradients):
    """SGD with momentum and decoupled weight decay, step by step; the weights after each."""
    weights, buffer, seen = np.zeros(gradients.shape[1]), np.zeros(gradients.shape[1]), []
    for step, gradient in enumerate(gradients):
        buffer = workload.momentum * buffer + gradient
        rate = workload.learning_rates[step] if workload.learning_rates else 1.0
        weights = (1 - workload.decay) * weights + rate * buffer
        seen.append(weights)
    return np.array(seen)


def tree_noise(restart):
    """The noise of each step if the prefix sum is made of complete nodes, from its definition."""
    nodes = {}

    def prefix(step):
        row, first = np.zeros(60), 0
        while first < step:
            block = first // restart * restart if restart else 0
            room = (block + restart if restart else step) - first
            width = 1
            while (first - block) % (2 * width) == 0 and 2 * width <= min(room, step - first):
                width *= 2
            row[nodes.setdefault((first, width), len(nodes))] = 1.0
            first += width
        return row

    return np.diff([prefix(step) for step in range(14)], axis=0)


STRATEGIES = {
    "toeplitz": (
        Toeplitz((1.0, 0.5, 0.2)),
        np.linalg.inv(sum(v * np.eye(13, k=-i) for i, v in enumerate((1.0, 0.5, 0.2)))),
    ),
    "buffered": (
        Buffered((0.9, 0.3), (0.2, 0.5)),
        np.linalg.inv(
            np.eye(13)
            + sum(
                np.eye(13, k=-t) * (0.2 * 0.9 ** (t - 1) + 0.5 * 0.3 ** (t - 1))
                for t in range(1, 13)
            )
        ),
    ),
    "columns": (
        Columns(tuple((1.0 + i, 0.5)[: 13 - i] for i in range(13))),
        np.linalg.inv(np.diag(1.0 + np.arange(13)) + 0.5 * np.eye(13, k=-1)),
    ),
    "tree": (Tree(), tree_noise(0)),
    "restarted": (Tree(restart=5), tree_noise(5)),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    "workload",
    [Workload(13), Workload(13, 0.9, 0.05), Workload(13, 0.5, 0.1, RATES)],
    ids=["prefix", "momentum", "learning rates"],
)
def test_errors_are_those_of_an_optimizer_that_is_run(name, workload):
    strategy, noise = STRATEGIES[name]
    rows = np.square(run_optimizer(workload, noise)).sum(axis=1)
    for objective, expected in (("mean", rows.mean()), ("last", rows[-1]), ("max", rows.max())):
        assert rmse(strategy, workload, objective) == pytest.approx(np.sqrt(expected), rel=1e-9)


def test_bad_workloads_and_strategies_are_refused():
    for arguments in (
        {"steps": 0},
        {"steps": 3, "momentum": 1.0},
        {"steps": 3, "decay": -0.1},
        {"steps": 3, "learning_rates": (1.0,)},
        {"steps": 2, "learning_rates": (1.0, 0.0)},
        {"steps": 5000, "learning_rates": (1.0,) * 5000},
    ):
        with pytest.raises(InvalidArgument):
            Workload(**arguments)
    for strategy in (Toeplitz((0.0, 1.0)), Toeplitz((-1.0,)), Columns(((1.0,), (-1.0,)))):
        with pytest.raises(InvalidArgument, match="diagonal"):
            rmse(strategy, Workload(2))
    with pytest.raises(InvalidArgument, match="2 steps"):
        rmse(Columns(((1.0,),)), Workload(2))
    with pytest.raises(InvalidArgument, match="4096"):
        rmse(Tree(), Workload(5000))
    with pytest.raises(InvalidArgument, match="objective"):
        rmse(Tree(), Workload(5), "median")


def test_the_filter_of_buffers_is_the_inverse_of_their_coefficients():
    strategy = Buffered((0.9, 0.3, 0.0), (0.2, 0.5, 0.1))
    below, above = inverse(strategy, 30)
    assert np.convolve(strategy.column(30), below)[:30] == pytest.approx(
        np.pad(above, (0, 26)), abs=1e-12
    )
