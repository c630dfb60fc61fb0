"""Clipped sums of a sharded model by its own autograd, which knows nothing of book-keeping.

Every process puts the same synthetic record through the model, so that the mean over processes,
which ``fully_shard`` forms, is that record's gradient.

Tests: tests/run/test_sharding.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from dpfy.errors import LossError
from dpfy.gradients.base import LossCall, LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import per_example
from dpfy.gradients.sharded.rows import Shards, local, totals
from dpfy.mechanisms.clipping import Clipping


def sharded_sums(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    loss_fn: LossFn,
    chunk: Chunk,
    clipping: Clipping,
) -> list[torch.Tensor]:
    """Return this process's rows of the clipped sum of synthetic records, one at a time.

    Args:
        model: The sharded model.
        parameters: The trained parameters by name.
        loss_fn: The loss.
        chunk: Synthetic records, the same on every process.
        clipping: How they are clipped.
    """
    sums = [torch.zeros_like(local(p.detach())).double() for p in parameters.values()]
    shards = Shards.of(model)
    assert shards is not None
    with _gradients_kept(model):
        for position in range(chunk.size):
            found = _gradients(model, parameters, loss_fn, chunk.record(position))
            squares = totals([float(each.square().sum()) for each in found], shards.group)
            squared = [torch.tensor([each], dtype=torch.float64) for each in squares]
            for total, weight, gradient in zip(
                sums, clipping.weights(clipping.norms(squared)), found, strict=True
            ):
                if float(weight):  # 0·inf would be NaN
                    total += gradient * float(weight)
    return sums


def _gradients(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], loss_fn: LossFn, record: Chunk
) -> list[torch.Tensor]:
    """Return the rows of this process of one record's gradient, in float64."""
    with torch.enable_grad():
        returned = LossCall(model, loss_fn)(*record.arguments)
        per_example(returned, record.size).sum().backward()
    found = [p.grad for p in parameters.values()]
    for parameter in model.parameters():
        parameter.grad = None
    if all(gradient is None for gradient in found):
        raise LossError(
            "No trainable parameter takes part in the loss. loss_fn must call the very model that "
            "was given to privatize, not a copy, a compiled or a wrapped one."
        )
    return [
        torch.zeros_like(local(p.detach())).double() if g is None else local(g.detach()).double()
        for g, p in zip(found, parameters.values(), strict=True)
    ]


@contextmanager
def _gradients_kept(model: nn.Module) -> Iterator[None]:
    """Take the gradients away that there are, and put them back."""
    before = [(p, p.grad) for p in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient
