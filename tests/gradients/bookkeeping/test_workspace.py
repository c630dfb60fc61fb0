"""Memory that is used again, and never while a tensor looks at it."""

import torch

from dpfy.gradients.bookkeeping.workspace import Workspace


def test_memory_is_used_again_once_no_tensor_and_no_view_looks_at_it():
    """Fails if a view of the numbers of one pass is overwritten by those of the next."""
    memory = Workspace()
    first = memory.floats(400, 500).fill_(1.0)
    address, view = first.data_ptr(), first[3:7].mT
    del first
    second = memory.floats(400, 500).fill_(2.0)
    assert second.data_ptr() != address and bool((view == 1).all())
    del view
    assert memory.floats(300, 500).data_ptr() == address


def test_what_autograd_and_python_keep_is_in_use():
    memory = Workspace()
    kept = [memory.floats(2**17) for _ in range(3)]
    factor = torch.ones(2**17, requires_grad=True)
    graph = (memory.floats(2**17).fill_(3.0) * factor).sum()
    addresses = {each.data_ptr() for each in kept}
    assert memory.floats(2**17).fill_(0.0).data_ptr() not in addresses and len(addresses) == 3
    (found,) = torch.autograd.grad(
        graph, graph.grad_fn.next_functions[0][0].next_functions[1][0].variable
    )
    assert bool((found == 3).all())


def test_memory_grows_with_what_is_in_use_and_no_further():
    memory = Workspace()
    for size in (2**17, 2**18, 2**19, 2**18):
        memory.floats(size)
        assert len(memory._arrays) == 1
    assert len(memory._arrays[0]) == 2**19


def test_small_tensors_are_left_to_torch():
    memory = Workspace()
    assert memory.floats(3, 0).shape == (3, 0) and memory.floats(10).dtype == torch.float32
    assert memory._arrays == []
