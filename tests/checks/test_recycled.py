"""Gradients in recycled memory are those that autograd computes in fresh memory."""

import pytest
import torch
from torch import nn

from dpfy.checks import recycled
from dpfy.checks.recycled import RecycledProducts
from dpfy.gradients.bookkeeping.workspace import Workspace

WIDE = 300  # numbers, of whose square a workspace keeps the memory


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch):
    monkeypatch.setattr(recycled, "_WORTHWHILE", 4 * WIDE * WIDE)


def gradients(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(model(x).square().sum(), list(model.parameters()))


def test_gradients_have_the_same_bits_and_the_same_memory_for_every_record():
    torch.manual_seed(0)
    # two weights of one shape, which must not share memory
    model = nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh())
    memory, places = Workspace(), []
    for x in torch.randn(3, 2, WIDE):
        with RecycledProducts(model.parameters(), memory):
            found = gradients(model, x)
        assert all(map(torch.equal, found, gradients(model, x)))
        places.append({found[0].data_ptr(), found[2].data_ptr()})
        del found
    assert len(places[0]) == 2 and places[0] == places[1] == places[2]


def test_what_is_kept_is_not_overwritten():
    model, memory = nn.Linear(WIDE, WIDE), Workspace()
    one, other = torch.randn(2, 3, WIDE)
    with RecycledProducts(model.parameters(), memory):
        kept = gradients(model, one)[0][1:]  # a view
        gradients(model, other)
    assert torch.equal(kept, gradients(model, one)[0][1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_of_any_kind_are_right(dtype):
    with RecycledProducts([torch.empty(WIDE, WIDE)], Workspace()):
        for shape in ((WIDE, WIDE), (WIDE, 2 * WIDE), (2, 2)):
            ones = torch.ones(shape[0], 1, dtype=dtype)
            product = ones @ torch.ones(1, shape[1], dtype=dtype)
            assert product.dtype is dtype and torch.equal(product, torch.ones(shape, dtype=dtype))
        sparse = torch.ones(WIDE, 1).to_sparse() @ torch.ones(1, WIDE)
        assert torch.equal(sparse, torch.ones(WIDE, WIDE))
