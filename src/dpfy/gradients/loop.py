"""The oracle: differentiate one record at a time with plain autograd.

Tests: tests/gradients/test_engines.py.
"""

from typing import Any

import torch

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
from dpfy.sandbox.rng_isolation import reseed_from_stream


class LoopEngine(Engine):
    """Differentiate each record's loss alone: slow, and right for every model.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
    """

    name = "loop"
    isolation = "by construction: every record is differentiated alone"
    isolates = True
    one_by_one = True
    provides_gradients = True
    # a third of it float64 sums; the rest is needed only if equal input has other bits
    rounding = 1.5 * 2.0**-23

    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> Summed:
        """Return the clipped sum of the chunk."""
        call, state = LossCall(self.model, loss_fn), Substitutes(self.model, self.parameters)
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters.values()]
        seen = []
        for position in range(chunk.size):
            # a loss that seeds them for one record would make the masks of the next ones known
            reseed_from_stream()
            found, stats = self.gradients_at(call, state, chunk, position)
            gradients = clipping.transformed(
                [
                    torch.zeros_like(p).unsqueeze(0) if g is None else g.to_dense().unsqueeze(0)
                    for g, p in zip(found, state.trained.values(), strict=True)
                ]
            )
            norms = clipping.norms([squared_norms(g) for g in gradients])
            weights = clipping.of_record(position).weights(norms)
            for total, gradient, weight in zip(totals, gradients, weights, strict=True):
                total += weighed_sum(gradient, weight)
            seen.append(RecordStats(norms, stats))
            if not state.untouched:  # the next record must not see what this one left
                state = Substitutes(self.model, self.parameters)
        return Summed(totals, *seen)

    def gradients_at(
        self,
        call: LossCall,
        state: Substitutes,
        chunk: Chunk,
        position: int,
    ) -> tuple[tuple[torch.Tensor | None, ...], dict[str, torch.Tensor]]:
        """Return gradient and statistics of one record of a chunk, from that record alone."""
        return self.gradients(call, state, chunk.record(position).map(_fresh, 1))

    def gradients(
        self,
        call: LossCall,
        state: Substitutes,
        record: Chunk,
    ) -> tuple[tuple[torch.Tensor | None, ...], dict[str, torch.Tensor]]:
        """Return the gradient of one record's loss and its statistics.

        The gradient of a parameter that takes no part in the loss is None.
        """
        leaves = {name: tensor.requires_grad_() for name, tensor in state.trained.items()}
        with torch.enable_grad():
            loss, stats = loss_of_one(call, leaves, state.others, record)
            return torch.autograd.grad(loss, list(leaves.values()), allow_unused=True), stats


def _fresh(leaf: Any) -> Any:
    """Return a copy of a leaf in memory of its own.

    Kernels may round by the address at which a tensor begins, and rows of a chunk begin anywhere.
    torch allocates at multiples of 64 bytes, and the strides of the copy do not depend on the
    chunk either.
    """
    return (
        leaf.clone(memory_format=torch.contiguous_format)
        if isinstance(leaf, torch.Tensor)
        else leaf
    )
