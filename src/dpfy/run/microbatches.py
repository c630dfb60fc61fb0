"""Microbatches: the mean gradient of a slot is clipped, instead of every record's.

*Formal guarantee*: given the slots of the others, one record changes the mean of one slot; as every
clipped mean has a norm of at most C, the sum over the slots moves by at most 2C under adding or
removing a record. A record's slot is drawn independently of the other records, so these have the
same slots with it and without it (in law). Blocks of consecutive records would not do: one record
more moves the borders of all blocks after it.

Reference: How to DP-fy ML, section 5.6, option 2; proof in docs/proofs/microbatches.md.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.func import functional_call

from dpfy.gradients.base import Engine, LossCall, LossFn, RecordStats, Substitutes, Summed, per_unit
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, lattice_sum, squared_norms

Visit = Callable[[Callable[[Chunk], Any], Callable[[Any], None]], None]
"""Computes chunks of the records of one slot and hands the results over; records that raise are
left out.
"""


def clipped_mean(engine: Engine, loss_fn: LossFn, visit: Visit, clipping: Clipping) -> Summed:
    """Return the clipped mean gradient of one slot; of the engine only its model is used."""
    sums = [
        torch.zeros_like(p, dtype=torch.float64).unsqueeze(0) for p in engine.parameters.values()
    ]
    seen: list[RecordStats] = []

    def take(found: tuple[RecordStats, list[torch.Tensor | None]]) -> None:
        seen.append(found[0])
        for total, gradient in zip(sums, found[1], strict=True):
            if gradient is not None:
                total += gradient.to_dense()

    visit(lambda chunk: _gradients(engine, loss_fn, chunk), take)
    means = clipping.transformed(
        [total / max(1, sum(len(some.norms) for some in seen)) for total in sums]
    )
    weights = clipping.weights(clipping.norms([squared_norms(mean) for mean in means]))
    sums = [
        lattice_sum(mean, weight, clipping.grid)
        for mean, weight in zip(means, weights, strict=True)
    ]
    return Summed(sums, *seen)


def _gradients(
    engine: Engine, loss_fn: LossFn, chunk: Chunk
) -> tuple[RecordStats, list[torch.Tensor | None]]:
    """Return the statistics of a chunk and the gradient of its summed losses, by autograd."""
    state = Substitutes(engine.model, engine.parameters)
    leaves = {name: tensor.requires_grad_() for name, tensor in state.trained.items()}
    named = {f"model.{name}": tensor for name, tensor in (leaves | state.others).items()}
    with torch.enable_grad():
        returned = functional_call(LossCall(engine.model, loss_fn), named, chunk.arguments)
        losses, stats = per_unit(returned, chunk)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    norms = torch.full((chunk.size, 1), torch.nan, dtype=torch.float64)  # of records there are none
    return RecordStats(norms, stats), list(gradients)
