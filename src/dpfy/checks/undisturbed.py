"""Contexts in which a model is probed and left as it was found.

Tests: tests/checks/test_probe.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.sandbox.rng_isolation import bookmark


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Restore model and generators afterwards; yield a function that names changed state."""

    def state() -> dict[str, torch.Tensor]:
        return dict(model.named_buffers()) | {
            name: p.detach() for name, p in model.named_parameters()
        }

    before = {name: tensor.clone() for name, tensor in state().items()}

    def changed() -> str | None:
        now = state()
        for name, tensor in before.items():
            if name not in now or not _same(now[name], tensor):
                return name
        return next((name for name in now if name not in before), None)

    back = bookmark()
    try:
        yield changed
    finally:
        back()
        for name, tensor in state().items():
            if (
                name in before
                and tensor.shape == before[name].shape
                and not torch.equal(tensor, before[name])
            ):
                tensor.copy_(before[name])


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether tensors are equal, where two NaNs are; large ones are copied for that if need be."""
    return torch.equal(one, other) or torch.equal(one.nan_to_num(), other.nan_to_num())


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Switch dropout off, layers and functions, so that engines can be compared exactly."""
    kinds = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
    active = [m for m in model.modules() if isinstance(m, kinds) and m.training]
    functions = {
        name: getattr(F, name)
        for name in vars(F)
        if name.endswith(("dropout", "dropout1d", "dropout2d", "dropout3d"))
    }
    try:
        for module in active:
            module.training = False
        for name in functions:
            setattr(F, name, lambda input, *_, **__: input)
        yield
    finally:
        for module in active:
            module.training = True
        for name, function in functions.items():
            setattr(F, name, function)
