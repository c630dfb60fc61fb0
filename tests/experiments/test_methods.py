"""Methods of experiments: each changes what it says and nothing else, and survives an
interruption.
"""

from dataclasses import replace

import pytest
import torch

import dpfy
from dpfy.errors import InvalidArgument
from dpfy.optim import ADADP
from experiments.cell import Cell
from experiments.configs import adaptive_review, idpsgd
from experiments.individual import groups
from experiments.methods import accounting, make_optimizer, make_plan
from experiments.parts import load_task, make_network
from experiments.training import Deadline, Training

CELL = Cell(
    "tiny",
    "digits",
    epsilon=3.0,
    network="digits-mlp",
    rate=0.3,
    steps=6,
    clip=1.0,
    learning_rate=0.5,
    momentum=0.0,
    found="by hand",
)


@pytest.mark.parametrize(
    "method",
    [
        "dp-sgd:1",
        "time",
        "exponential:fast",
        "quantile:2",
        "adam:1",
        "adadp:x",
        "dpis",
        "dpis:0.5:2:1",
        "dpis-released:0.5",
        "decay",
        "tempered-sigmoid:1",
        "tempered-sigmoid:1.5:3:0.75",
    ],
)
def test_methods_that_are_none_are_refused(method):
    """The last one is a method, and the network has no activation that it could change."""
    with pytest.raises(dpfy.InvalidArgument):
        replace(CELL, method=method)


def test_a_method_is_in_the_plan_or_the_optimizer():
    for method in ("exponential:0.5", "decay:0.5"):
        plan = replace(
            make_plan(replace(CELL, rate=0.5, steps=8, method=method), 100), noise_multiplier=1.0
        )
        assert plan.noise_at(1) > plan.noise_at(3) == pytest.approx(2.718281828**-0.5)
    (quantile,) = make_plan(replace(CELL, method="quantile:0.7"), 100).controllers
    assert quantile.quantile == 0.7
    weight = [torch.nn.Parameter(torch.zeros(1))]
    assert isinstance(make_optimizer(replace(CELL, method="adadp"), weight), ADADP)
    assert type(make_optimizer(CELL, weight)) is torch.optim.SGD
    with pytest.raises(dpfy.InvalidArgument, match="momentum"):
        replace(CELL, method="adadp", momentum=0.9)


def test_importance_sampling_has_the_expected_batch_of_the_cell():
    plan = replace(make_plan(replace(CELL, method="dpis:0.6:2"), 1000), noise_multiplier=1.0)
    assert plan.divisor == pytest.approx(300) and plan.steps == 6
    assert plan.event_at(1).policy.rate == pytest.approx(0.3 / 0.6) and plan.noise_at(
        1
    ) == pytest.approx(1 / 0.6)
    assert plan.sampling.slack == 2


def test_what_follows_released_norms_is_planned_so():
    (controller,) = make_plan(replace(CELL, method="dpis-released:0.6:2:0.5:1.5"), 1000).controllers
    assert (controller.cautious, controller.clip_factor) == (0.5, 1.5)
    assert accounting("dpis-released:0.6:2:0.5") != accounting("dpis:0.6")


def test_tempered_sigmoids_take_the_place_of_tanh():
    cell = replace(CELL, network="mnist-cnn")
    plain, tempered = (
        make_network(replace(cell, method=method), (1, 28, 28), seed=0)
        for method in ("dp-sgd", "tempered-sigmoid:1.5:3:0.75")
    )
    assert [str(each) for each in tempered if "Tempered" in str(each)] == [
        "TemperedSigmoid(1.5, 3.0, 0.75)"
    ] * 3
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), tempered.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("data", "targets"),
    [
        ("mnist", [86.0, 85.4, 91.9, 91.5, 89.0, 90.7]),
        ("cifar-10", [None, None, None, None, 62.5, 65.0, None, None]),
    ],
)
def test_cells_of_the_review_share_all_but_their_method(data, targets):
    """Another rate, network or number of steps would be compared in the place of the method."""
    cells = [cell for cell in adaptive_review.CELLS if cell.data == data]
    shared = {(cell.network, cell.rate, cell.steps, cell.clip, cell.seeds) for cell in cells}
    assert len(shared) == 1
    assert [cell.target for cell in cells] == targets
    assert all(len(cell.seeds) == 3 for cell in cells)


def test_the_cases_of_groups_are_those_of_the_review():
    epsilons = [[epsilon for epsilon, _ in groups(case).values()] for case in "123"]
    assert epsilons == [[1, 2, 3], [1, 10, 20], [1, 2, 20]]
    reached = [cell.target for cell in idpsgd.CELLS if cell.target is not None]
    assert reached == [96.79, 97.63, 59.03, 58.26, 59.49, 67.64, 59.70, 63.07]
    with pytest.raises(InvalidArgument, match="case"):
        replace(CELL, method="idp-scale:4")


@pytest.mark.parametrize(
    "method", ["adadp", "time:0.3", "quantile:0.5", "dpis:0.7:1", "idp-sample:1", "idp-scale:1"]
)
def test_a_run_that_is_interrupted_halfway_ends_at_its_budget(method, tmp_path):
    cell = replace(CELL, method=method)
    task = load_task(cell, None, validate=False)
    clock = iter(
        [0.0, *[0.0] * 2, *[1e9] * 9]
    )  # after the third step, which is the first half of an iteration
    assert (
        Training(cell, 0, tmp_path / "a", task).go_on(
            Deadline(minutes=1, clock=lambda: next(clock))
        )
        is None
    )
    outcome = Training(cell, 0, tmp_path / "a", task).go_on(Deadline(minutes=1e6))
    assert outcome is not None and outcome.steps == 6 and outcome.lost_steps == 0
    assert 2.9 < outcome.epsilon <= 3.0 and outcome.noise_multiplier > 0
