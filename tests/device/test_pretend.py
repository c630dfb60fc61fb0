"""The pretend device itself: it raises and counts where a GPU would raise or wait."""

import pretend
import pytest
import torch
from torch import nn

from dpfy.run.gate import are_finite

HERE = torch.ones(3, device=pretend.NAME)


def test_devices_do_not_mix():
    with pytest.raises(RuntimeError, match="same device"):
        HERE + torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3).add_(HERE)
    assert (HERE + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number is no tensor of the CPU
    with pytest.raises(RuntimeError, match="numpy"):
        HERE.numpy()


def test_synchronisations_and_copies_of_dpfy_are_counted_with_their_line():
    with pretend.counted() as traffic:
        are_finite([HERE, HERE])
        HERE.sum().item()  # not dpfy's
    assert traffic.waits == 1
    (line,) = traffic.syncs
    assert line.startswith("run/gate.py:")


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: x.cpu(),
        lambda x: torch.equal(x, x),
        lambda x: x.tolist(),
    ],
)
def test_what_waits_for_the_device_is_noted(wait, monkeypatch):
    noted = []
    monkeypatch.setattr(pretend, "_note", lambda kind, amount=1: noted.append((kind, amount)))
    wait(HERE)
    assert ("syncs", 1) in noted
    noted.clear()
    (HERE * 2).sum().sqrt()
    assert not noted


def test_copies_are_noted_with_their_size(monkeypatch):
    noted = []
    monkeypatch.setattr(pretend, "_note", lambda kind, amount=1: noted.append((kind, amount)))
    torch.ones(3, dtype=torch.float64).to(pretend.NAME).cpu()
    assert noted == [("to_device", 24), ("to_host", 24), ("syncs", 1)]


def test_gradients_are_those_of_the_cpu():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.LSTM(3, 2)), torch.randn(5, 4)
    model(x)[0].square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.to(pretend.NAME)
    model(x.to(pretend.NAME))[0].square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.device.type == parameter.grad.device.type == pretend.NAME
        torch.testing.assert_close(parameter.grad.cpu(), gradient)


def test_atomic_additions_have_an_order_only_if_asked_for():
    places = torch.zeros(1000, dtype=torch.long, device=pretend.NAME)
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(pretend.NAME)

    def added():
        return HERE.new_zeros(1).index_add_(0, places, numbers).item()

    assert len({added() for _ in range(10)}) > 1
    torch.set_deterministic_debug_mode(1)
    try:
        assert len({added() for _ in range(10)}) == 1
    finally:
        torch.set_deterministic_debug_mode(0)
