"""Contexts in which a model is probed and left as it was found."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from dpfy.gradients.sharded.rows import local
from dpfy.sandbox.rng_isolation import bookmark

_PROBABILITY = 4  # its place among the arguments of attention


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Callable[[], str | None]]:
    """Restore model and generators afterwards; yield a function that names changed state."""

    def state() -> dict[str, torch.Tensor]:
        return dict(model.named_buffers()) | {
            name: local(p.detach()) for name, p in model.named_parameters()
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
        (home, name): (getattr(home, name), without)
        for home, name, without in _functions_with_masks()
    }
    try:
        for module in active:
            module.training = False
        for (home, name), (function, without) in functions.items():
            setattr(home, name, partial(without, function))
        with _NoMasks():
            yield
    finally:
        for module in active:
            module.training = True
        for (home, name), (function, _) in functions.items():
            setattr(home, name, function)


class _NoMasks(TorchFunctionMode):
    """Switches dropout off in functions that code has imported by name, and in ``torch.ops``.

    What they call inside of torch is not seen here: the functions in torch's own modules are
    replaced besides.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        without = _without_masks(getattr(func, "__name__", "").partition(".")[0])
        if without is None:
            return func(*args, **(kwargs or {}))
        return without(func, *args, **(kwargs or {}))


@lru_cache(maxsize=1)
def _functions_with_masks() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return modules of torch, names of their functions that draw masks, and what replaces them."""
    return [
        (home, name, without)
        for home in (F, torch)
        for name in vars(home)
        if "drop" in name or "attention" in name  # of two thousand
        if (without := _without_masks(name)) is not None
    ]


@lru_cache(maxsize=4096)
def _without_masks(name: str) -> Callable[..., Any] | None:
    """Return what takes the place of a function that draws masks; None for other functions."""
    if name == "scaled_dot_product_attention":
        return _attention
    if name == "native_dropout":
        return lambda func, input, *_, **__: (input, torch.ones_like(input, dtype=torch.bool))
    if name.removesuffix("_").endswith(("dropout", "dropout1d", "dropout2d", "dropout3d")):
        return lambda func, input, *_, **__: input
    return None


def _attention(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute attention without its masks, whether their probability is given by place or name."""
    if len(args) > _PROBABILITY:
        args = (*args[:_PROBABILITY], 0.0, *args[_PROBABILITY + 1 :])
        return func(*args, **kwargs)
    return func(*args, **{**kwargs, "dropout_p": 0.0})
