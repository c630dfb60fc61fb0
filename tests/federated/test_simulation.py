"""Clients that are simulated train by themselves, fail in silence, and are tried beforehand."""

import random

import pytest
import torch
from federations import planned, update
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpfy
from dpfy.errors import DataError, InvalidArgument
from dpfy.federated import Simulation, federate

X = torch.arange(12.0).view(6, 2) / 10
OWNERS = ["a", "a", "b", "b", "b", "c"]


def sgd(model, rows):
    """Two local epochs, row by row."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for (x,) in DataLoader(rows):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()


def linear():
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def answered(train, data=X, owners=OWNERS, plan=None, local="fedavg", **options):
    """The change of the model by the one round in which all clients take part."""
    simulation = Simulation(
        TensorDataset(data), train, unit_of=owners, insecure_test_key=3, **options
    )
    model = linear()
    server = federate(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        plan or planned(steps=1, divisor=1, clip=100.0),
        dpfy.Ledger.in_memory(),
        clients=simulation.clients,
        local=local,
        largest_weight=options.pop("largest_weight", None),
        insecure_test_key=1,
    )
    cohort = next(iter(server))
    simulation.answer(cohort)
    released = server.step(cohort)
    return model.weight.detach().flatten(), released


def test_every_client_trains_on_its_own_rows_from_the_released_model():
    weight, _ = answered(sgd)
    assert torch.allclose(weight, -0.1 * 2 * X.sum(0), atol=1e-5)


def test_gradients_are_taken_where_the_server_wants_them():
    def gradients(model, rows):
        model(torch.stack([x for (x,) in rows])).mean().backward()

    weight, _ = answered(gradients, local="fedsgd")
    means = X[:2].mean(0) + X[2:5].mean(0) + X[5]
    assert torch.allclose(weight, -means, atol=1e-5)


def test_a_client_that_fails_contributes_zero_and_nothing_is_heard(capsys, caplog):
    def failing(model, rows):
        print(len(rows))
        if len(rows) == 3:
            raise ValueError("secret")
        sgd(model, rows)

    weight, _ = answered(failing)
    assert torch.allclose(weight, -0.2 * (X[:2].sum(0) + X[5]), atol=1e-5)
    assert not "".join(capsys.readouterr()) and not caplog.text


def test_a_training_that_would_fail_for_all_is_refused_before_a_client_is_asked():
    asked = []

    def typo(model, rows):
        asked.append(len(rows))
        model.weights.sum()

    with pytest.raises(InvalidArgument, match="weights"):
        answered(typo)
    with pytest.raises(InvalidArgument, match="no finite update"):
        answered(lambda model, rows: [model.weight.data.fill_(float("nan")), None][1])
    with pytest.raises(InvalidArgument, match="no finite update"):
        answered(lambda model, rows: None, local="fedsgd")
    with pytest.raises(InvalidArgument, match="Tensor"):
        answered(lambda model, rows: torch.zeros(()))
    assert asked == [1]  # the synthetic row


def test_clients_know_neither_each_others_generators_nor_those_outside():
    drawn = []

    def draws(model, rows):
        torch.manual_seed(5)
        random.seed(5)
        drawn.append((float(torch.rand(())), random.random()))

    torch.manual_seed(1)
    linear()
    expected = float(torch.rand(()))
    torch.manual_seed(1)
    answered(draws)
    assert len({each for pair in drawn for each in pair}) == 8  # the example and three clients
    assert float(torch.rand(())) == expected


def test_no_more_rows_take_part_than_are_allowed():
    seen = []
    answered(lambda model, rows: seen.append(len(rows)), rows_per_client=2)
    assert seen == [1, 2, 2, 1]


def test_statistics_of_clients_are_released():
    plan = planned(steps=1, divisor=3, statistics=[dpfy.Statistic("rows", bound=10.0)])
    _, released = answered(lambda model, rows: {"rows": len(rows)}, plan=plan)
    assert float(released.statistics["rows"]) == pytest.approx(2.0)


def test_a_data_set_without_a_declared_shape_needs_an_example():
    rows = [(x, "text") for x in X]
    with pytest.raises(DataError):
        Simulation(rows, sgd, unit_of=OWNERS)
    assert len(Simulation(rows, sgd, unit_of=OWNERS, example=[(X[0], "made up")]).clients) == 3


def test_a_client_has_the_same_update_with_and_without_another_one():
    """All but the randomness that clients draw, which is fresh and independent for each."""
    fewer, _ = answered(sgd, data=X[:5], owners=OWNERS[:5])
    more, _ = answered(sgd)
    alone, _ = answered(sgd, data=X[5:], owners=OWNERS[5:])
    assert torch.allclose(more - fewer, alone, atol=1e-6)


def test_virtual_clients_are_groups_of_rows():
    simulation = Simulation(TensorDataset(X), sgd, unit_of=lambda row: row // 4)
    assert simulation.clients == range(2)
    assert update(1.0)["weight"].tolist() == [1.0]
