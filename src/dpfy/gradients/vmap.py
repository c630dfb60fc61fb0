"""Compute the gradients of all records of a chunk at once, by vectorising the gradient of one.

Tests: tests/gradients/test_engines.py.
"""

import warnings

import torch
from torch import nn
from torch.func import grad, vmap

from dpfy.gradients.base import (
    Engine,
    LossCall,
    LossFn,
    RecordStats,
    Substitutes,
    Summed,
    loss_of_one,
)
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, squared_norms, weighed_sum

_NUMBERS_AT_ONCE = 2**26  # of the gradients of a chunk: 256 MB in float32


class VmapEngine(Engine):
    """Apply ``torch.func.vmap`` to the gradient of one record.

    The gradients of all records of a chunk are in memory at once.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
    """

    name = "vmap"
    isolation = (
        "by construction: the loss function is only ever given one record, vectorised afterwards"
    )
    isolates = True
    provides_gradients = True
    # torch may choose another kernel for a chunk of another size; float64 sums
    rounding = 1.5 * 2.0**-23

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__(model, parameters)
        self.records_at_once = max(
            1, _NUMBERS_AT_ONCE // sum(p.numel() for p in parameters.values())
        )

    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> Summed:
        """Return the clipped sum of the chunk."""
        call, state = LossCall(self.model, loss_fn), Substitutes(self.model, self.parameters)
        rows, rebuild = chunk.flatten()
        tensors = [leaf.unflatten(0, (chunk.size, chunk.rows)) for leaf in rows]

        def loss(
            trained: dict[str, torch.Tensor], *one: torch.Tensor
        ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return loss_of_one(call, trained, state.others, rebuild([*one]))

        in_dims = (None, *(0 for _ in tensors))
        with warnings.catch_warnings():
            # Layers without a batching rule are looped over inside torch: slower, and just as
            # right.
            warnings.filterwarnings(
                "ignore", message="There is a performance drop", category=UserWarning
            )
            gradients, stats = vmap(
                grad(loss, has_aux=True), in_dims=in_dims, randomness="different"
            )(state.trained, *tensors)
        # Off the graph of whatever requires a gradient besides the parameters: a record, or a
        # module beside the model.
        found = clipping.transformed([gradient.detach() for gradient in gradients.values()])
        norms = clipping.norms([squared_norms(g) for g in found])
        sums = [weighed_sum(g, w) for g, w in zip(found, clipping.weights(norms), strict=True)]
        return Summed(
            sums,
            RecordStats(norms, {name: rows.detach().flatten(0, 1) for name, rows in stats.items()}),
        )
