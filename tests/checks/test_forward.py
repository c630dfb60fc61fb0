"""Losses whose activations are not kept."""

import pytest
import torch
from torch import nn

from dpfy.checks.forward import Forward


def test_values_are_the_same_and_activations_are_dropped():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout()), torch.ones(2, 4)
    torch.manual_seed(3)
    expected = model(x).sum()
    found = Forward().call(lambda: model(x).sum(), seed=3)
    assert torch.equal(found, expected) and found.requires_grad
    with pytest.raises(RuntimeError, match="no activations were kept"):
        found.backward()


def test_a_loss_that_takes_gradients_is_called_with_its_activations():
    """Fails if a gradient penalty is refused, or if the second call draws other numbers."""
    model, calls, forward = nn.Linear(3, 1), [], Forward()

    def penalty():
        calls.append(1)
        x = torch.rand(5, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).tanh().sum(), x, create_graph=True)
        return slope.square().sum()

    torch.manual_seed(1)
    expected = penalty()
    assert torch.equal(forward.call(penalty, seed=1), expected) and len(calls) == 3
    assert torch.equal(forward.call(penalty, seed=1), expected) and len(calls) == 4


def test_transforms_of_functions_work():
    grad = torch.func.grad(lambda x: x.square().sum())
    assert torch.equal(Forward().call(lambda: grad(torch.ones(2)), seed=1), torch.full((2,), 2.0))


def test_what_fails_either_way_raises_its_own_error():
    def fail():
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        Forward().call(fail, seed=1)
