"""The walk through a model finds what torch's own walk finds, as the model is at that moment."""

import pytest
import torch
from torch import nn

from dpfy.gradients.modules import modules_of


def test_modules_are_those_of_torch_in_its_order():
    shared = nn.Linear(2, 2)
    inner = nn.Sequential(shared, nn.ReLU(), nn.ModuleDict({"a": shared, "b": nn.Linear(2, 2)}))
    model = nn.Sequential(
        inner, nn.ModuleList([shared, nn.Tanh()]), nn.TransformerEncoderLayer(4, 2)
    )
    model.register_module("nothing", None)
    assert [*map(id, modules_of(model))] == [*map(id, model.modules())]
    model[0][1] = nn.Sequential(nn.GELU())
    assert [*map(id, modules_of(model))] == [*map(id, model.modules())]


def test_a_module_inside_of_itself_is_found_once():
    model = nn.Sequential(nn.Linear(1, 1))
    model.append(model)
    assert len(modules_of(model)) == len([*model.modules()]) == 2


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_model_has_its_modules():
    scripted = torch.jit.trace(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), torch.zeros(1, 1))
    assert len(modules_of(scripted)) == len([*scripted.modules()]) == 3
