"""Find the module that mixes records, and say what to use instead.

Tests: tests/checks/test_probe.py.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpfy.errors import IsolationError

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
Equal = Callable[[torch.Tensor, torch.Tensor], bool]


def outputs_of(model: nn.Module, run: Callable[[], object]) -> dict[str, torch.Tensor]:
    """Return the first output of every module that ``run`` calls, in the order of execution."""
    found: dict[str, torch.Tensor] = {}

    def remember(name: str, first: torch.Tensor) -> None:
        if name not in found:
            found[name] = first.detach().clone()

    with _first_outputs(model, remember):
        run()
    return found


@contextmanager
def dtypes_of(model: nn.Module, found: set[torch.dtype]) -> Iterator[None]:
    """Add to ``found`` the types of numbers in the outputs of modules inside the block."""

    def add(name: str, first: torch.Tensor) -> None:
        if first.is_floating_point():
            found.add(first.dtype)

    with _first_outputs(model, add):
        yield


@contextmanager
def _first_outputs(model: nn.Module, see: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Show each module's name and first output whenever one is called inside the block."""

    def seeing(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, torch.Tensor) and first.ndim:
                see(name, first)

        return hook

    handles = [module.register_forward_hook(seeing(name)) for name, module in model.named_modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_moved(
    before: Mapping[str, torch.Tensor],
    after: Mapping[str, torch.Tensor],
    rest: list[int],
    equal: Equal,
) -> str | None:
    """Return the first module whose output changes for the untouched examples ``rest``, or None."""
    for name, output in before.items():
        if name in after and len(output) > max(rest) and not equal(output[rest], after[name][rest]):
            return name
    return None


def first_unlike_alone(
    together: Mapping[str, torch.Tensor],
    alone: Mapping[str, torch.Tensor],
    size: int,
    equal: Equal,
) -> str | None:
    """Return the first module that treats an example alone unlike in a batch, or None."""
    for name, output in together.items():
        batched = name in alone and len(output) == size and len(alone[name]) == 1
        if batched and not equal(output[:1], alone[name]):
            return name
    return None


def refusal(model: nn.Module, name: str | None, what: str) -> IsolationError:
    """Return the error that names a module, what it does and what to use instead."""
    modules = dict(model.named_modules())
    if name not in modules:
        return IsolationError(
            f"The model or loss_fn {what}. Every example must be treated alone: let loss_fn "
            "return per-example losses and keep nothing between calls."
        )
    module = modules[name]
    remedy = (
        "Replace it by a layer that treats every example alone, or put it in eval mode before "
        "training."
    )
    if isinstance(module, _BATCH_NORMS):
        remedy = (
            "Call dpfy.fix(model) before you make the optimizer: it puts GroupNorm in its "
            "place, or with batchnorm='private' a BatchNorm that follows released statistics."
        )
    elif getattr(module, "track_running_stats", False):
        remedy = "Give it track_running_stats=False (dpfy.fix(model) does)."
    return IsolationError(
        f"The module {name or 'model'!r} ({type(module).__name__}) {what}. {remedy}"
    )
