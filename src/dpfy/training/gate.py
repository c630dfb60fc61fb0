"""The gate: an optimizer applies released gradients or nothing."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpfy.errors import InvalidArgument, UnreleasedGradient


class Gate:
    """Knows which gradient tensors a release produced, and stops every optimizer step on any other.

    A gradient counts as released while it is the very tensor that a release left there, unedited: torch counts edits
    in ``_version``. The same tensor full of zeros, as ``zero_grad(set_to_none=False)`` leaves it, passes too.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], parameters: dict[str, nn.Parameter]) -> None:
        self._optimizers = tuple(optimizers)
        self._parameters = parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._released: dict[str, tuple[Callable[[], torch.Tensor | None], int]] = {}
        self.mark_released()  # there are none, or zeros
        self._handles = [optimizer.register_step_pre_hook(self._before_step) for optimizer in self._optimizers]

    def mark_released(self) -> None:
        """Take the present gradients as released."""
        self._released = {name: (weakref.ref(p.grad), p.grad._version)
                          for name, p in self._parameters.items() if p.grad is not None}

    def check(self, action: str) -> None:
        """Raise unless every gradient is released, and the trainable parameters are those of the start."""
        for optimizer in self._optimizers:
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if id(parameter) not in self._names and (parameter.requires_grad or parameter.grad is not None):
                    raise UnreleasedGradient(
                        f"Refused {action}: a parameter was unfrozen or added to the optimizer after privatize, so no "
                        "release covers it. Close this run and start another with the parameters you want to train.")
        for name, parameter in self._parameters.items():
            if parameter.grad is not None and not self._is_released(name, parameter.grad):
                raise UnreleasedGradient(
                    f"Refused {action}: the gradient of {name!r} was not released. Use run.backward(loss_fn, batch) "
                    "instead of loss.backward(); wrap deliberate edits in run.postprocessing() and gradients of public "
                    "data in run.public().")

    @contextmanager
    def vouched(self, action: str) -> Iterator[None]:
        """Take what the block leaves in the gradients as released; what it finds there must be."""
        self.check(action)
        yield
        self.mark_released()

    def close(self) -> None:
        """Remove the gate from the optimizers."""
        for handle in self._handles:
            handle.remove()

    def _is_released(self, name: str, gradient: torch.Tensor) -> bool:
        reference, version = self._released.get(name, (lambda: None, 0))
        return reference() is gradient and (gradient._version == version or not gradient.any())

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.check("opt.step()")
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself
        if closure is None:
            return None
        return (args[0], self._checked(closure), *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"}

    def _checked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The hook ran before the closure: look again after it, and refuse a second evaluation."""
        calls = 0

        def checked() -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise UnreleasedGradient("The optimizer evaluates its closure more than once per step, but one batch "
                                         "licenses one release. Use an optimizer that evaluates it once.")
            result = closure()
            self.check("opt.step(closure)")
            return result

        return checked


def trainable(model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]) -> dict[str, nn.Parameter]:
    """Return the parameters that the optimizers train, by their names in the model."""
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"Expected a torch optimizer, got {type(optimizer).__name__}.")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidArgument("LBFGS evaluates its closure several times per step, each time on a gradient that "
                                  "would have to be released anew. Use SGD, Adam or another first-order optimizer.")
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    named = dict(model.named_parameters())
    if held - {id(parameter) for parameter in named.values()}:
        raise InvalidArgument("The optimizer holds parameters that are not the model's. Make the optimizer from "
                              "model.parameters(), after dpfy.fix(model) and after moving the model to its device.")
    chosen = {name: p for name, p in named.items() if id(p) in held and p.requires_grad}
    if not chosen:
        raise InvalidArgument("The optimizer holds no trainable parameter of the model.")
    if any(p.grad is not None and p.grad.any() for p in chosen.values()):
        raise UnreleasedGradient("The model has gradients from before privatize. Call opt.zero_grad() first.")
    return chosen
