"""Find the parameters that optimizers train, and refuse those that cannot be trained privately.

Tests: tests/run/test_run.py.
"""

import torch
from torch import nn

from dpfy.errors import InvalidArgument, UnreleasedGradient
from dpfy.gradients.sharded.rows import local


def trainable(
    model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]
) -> dict[str, nn.Parameter]:
    """Return the parameters that the optimizers train, by their names in the model."""
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"Expected a torch optimizer, got {type(optimizer).__name__}.")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise InvalidArgument(
                "LBFGS evaluates its closure several times per step, each time on a gradient that "
                "would have to be released anew. Use SGD, Adam or another first-order optimizer."
            )
    held = {
        id(p)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    named = dict(model.named_parameters())
    if held - {id(parameter) for parameter in named.values()}:
        raise InvalidArgument(
            "The optimizer holds parameters that are not the model's. Make the optimizer from "
            "model.parameters(), after dpfy.fix(model) and after moving the model to its device."
        )
    chosen = {name: p for name, p in named.items() if id(p) in held and p.requires_grad}
    if not chosen:
        raise InvalidArgument("The optimizer holds no trainable parameter of the model.")
    for name, parameter in chosen.items():
        if torch.nn.parameter.is_lazy(parameter) or parameter.is_complex():
            kind = "complex" if not torch.nn.parameter.is_lazy(parameter) else "not initialised yet"
            raise InvalidArgument(
                f"The parameter {name!r} is {kind}. Use real parameters, and run a synthetic batch "
                "through a lazy model first."
            )
    if any(p.grad is not None and local(p.grad).any() for p in chosen.values()):
        raise UnreleasedGradient(
            "The model has gradients from before privatize. Call opt.zero_grad() first."
        )
    return chosen
