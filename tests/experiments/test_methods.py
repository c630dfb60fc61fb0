"""Methods of experiments: each changes what it says and nothing else, and survives an interruption."""

from dataclasses import replace

import pytest
import torch

import dpfy
from dpfy.optim import ADADP
from experiments.cell import Cell
from experiments.configs import adaptive_review
from experiments.methods import make_optimizer, plan_options
from experiments.parts import load_task
from experiments.training import Deadline, Training

CELL = Cell("tiny", "digits", epsilon=3.0, network="digits-mlp", rate=0.3, steps=6, clip=1.0, learning_rate=0.5,
            momentum=0.0, found="by hand")


@pytest.mark.parametrize("method", ["dp-sgd:1", "time", "exponential:fast", "quantile:2", "adam", "adadp:x"])
def test_methods_that_are_none_are_refused(method):
    with pytest.raises(dpfy.InvalidArgument):
        plan_options(replace(CELL, method=method))


def test_a_method_is_in_the_plan_or_the_optimizer():
    plan = dpfy.dpsgd(records=100, rate=0.5, steps=8, noise_multiplier=1.0,
                      **plan_options(replace(CELL, method="exponential:0.5")))
    assert plan.noise_at(1) > plan.noise_at(3) == pytest.approx(2.718281828**-0.5)
    quantile, = plan_options(replace(CELL, method="quantile:0.7"))["controllers"]
    assert quantile.quantile == 0.7
    weight = [torch.nn.Parameter(torch.zeros(1))]
    assert isinstance(make_optimizer(replace(CELL, method="adadp"), weight), ADADP)
    assert type(make_optimizer(CELL, weight)) is torch.optim.SGD
    with pytest.raises(dpfy.InvalidArgument, match="momentum"):
        replace(CELL, method="adadp", momentum=0.9)


def test_cells_of_the_review_share_all_but_their_method():
    """Another rate, network or number of steps would be compared in the place of the method."""
    assert len({(cell.network, cell.rate, cell.steps, cell.clip, cell.seeds) for cell in adaptive_review.CELLS}) == 1
    assert [cell.target for cell in adaptive_review.CELLS] == [86.0, 85.4, 91.9, 91.5, 89.0, 90.7]
    assert all(cell.epsilon <= 1.0 and len(cell.seeds) == 3 for cell in adaptive_review.CELLS)


@pytest.mark.parametrize("method", ["adadp", "time:0.3", "quantile:0.5"])
def test_a_run_that_is_interrupted_halfway_ends_at_its_budget(method, tmp_path):
    cell = replace(CELL, method=method)
    task = load_task(cell, None, validate=False)
    clock = iter([0.0, *[0.0] * 2, *[1e9] * 9])  # after the third step, which is the first half of an iteration
    assert Training(cell, 0, tmp_path / "a", task).go_on(Deadline(minutes=1, clock=lambda: next(clock))) is None
    outcome = Training(cell, 0, tmp_path / "a", task).go_on(Deadline(minutes=1e6))
    assert outcome is not None and outcome.steps == 6 and outcome.lost_steps == 0
    assert 2.9 < outcome.epsilon <= 3.0 and outcome.noise_multiplier > 0
