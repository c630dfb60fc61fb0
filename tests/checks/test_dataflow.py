"""Memory of intermediate results is told apart without being kept."""

import weakref

import torch

from dpfy.checks.dataflow import _observed, _Storages
from dpfy.gradients.chunk import Chunk


def test_memory_has_one_number_as_long_as_anything_uses_it():
    """Fails if a view or a graph keeps memory alive that is numbered anew."""
    storages = _Storages()
    tensor = torch.rand(64, requires_grad=True)
    exponential = tensor.exp()
    number, view = storages.number(exponential), exponential[3:].detach()
    del exponential
    assert storages.number(view) == number


def test_memory_at_an_address_that_is_used_again_has_another_number():
    """Fails if a result is taken for one that depends on records since it lies where that lay."""
    storages, found = _Storages(), []
    for _ in range(20):
        found.append(storages.number(torch.rand(512)))
    assert len(set(found)) == len(found)


def test_a_pass_without_values_keeps_no_result():
    """Fails if everything that a pass computes is alive at once."""
    alive = []

    def losses(chunk):
        (x,) = chunk.arguments
        wide = x.repeat(1, 64)
        alive.append(weakref.ref(wide.untyped_storage()))
        total = wide.sum(1)
        del wide
        assert alive[0]() is None
        return total

    _observed(losses, Chunk((torch.rand(3, 4),), 3), values=False)
    assert alive
