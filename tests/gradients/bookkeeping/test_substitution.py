"""Other tensors are in a model's places inside the block, and its own ones afterwards."""

import pytest
import torch
from torch import nn

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.substitution import substituted


class Tied(nn.Module):
    """Two layers that share a weight and a buffer."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        self.other.weight = self.one.weight
        shared = torch.zeros(3)
        self.one.register_buffer("seen", shared)
        self.other.register_buffer("seen", shared)
        self.other.register_buffer("nothing", None)


def state_of(model):
    """Every tensor of every place of a model, as an object."""
    return [
        tensor
        for module in model.modules()
        for tensor in (*module._parameters.values(), *module._buffers.values())
    ]


def test_a_shared_tensor_has_one_substitute_in_all_of_its_places():
    model = Tied()
    parameters = dict(model.named_parameters())
    others = {name: parameter.detach() for name, parameter in parameters.items()}
    with substituted(model, parameters, others):
        assert model.one.weight is model.other.weight is others["one.weight"]
        assert model.other.bias is others["other.bias"]
        assert model.one.seen is model.other.seen


def test_what_is_written_or_replaced_inside_is_lost_even_if_the_block_fails():
    model = Tied()
    before = state_of(model)
    parameters = {"one.weight": model.one.weight}
    with (
        pytest.raises(ZeroDivisionError),
        substituted(model, parameters, {"one.weight": torch.ones(2, 2)}),
    ):
        assert isinstance(model.other.bias, nn.Parameter)  # which nobody asked to replace
        model.one.seen += 1
        model.other.seen = torch.ones(5)
        raise ZeroDivisionError
    assert all(a is b for a, b in zip(before, state_of(model), strict=True))
    assert torch.equal(model.one.seen, torch.zeros(3))


def test_a_parameter_without_a_place_is_refused_and_nothing_is_replaced():
    model = Tied()
    gone, before = nn.Parameter(torch.ones(1)), state_of(model)
    parameters = {**dict(model.named_parameters()), "gone": gone}
    others = {name: parameter.detach() for name, parameter in parameters.items()}
    with pytest.raises(Unsupported), substituted(model, parameters, others):
        raise AssertionError("not reached")
    assert all(a is b for a, b in zip(before, state_of(model), strict=True))
