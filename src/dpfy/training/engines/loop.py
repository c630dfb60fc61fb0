"""The oracle: one record at a time, plain autograd."""

import torch

from dpfy.mechanisms.clipping import Weigh, lattice_sum, squared_norms
from dpfy.training.chunk import Chunk
from dpfy.training.engines.base import BoundedSums, Engine, LossCall, LossFn, loss_of_one


class LoopEngine(Engine):
    """Differentiates each record's loss alone; slow, and right for every model."""

    name = "loop"
    isolation = "by construction: every record is differentiated alone"

    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, weigh: Weigh, grid: float) -> BoundedSums:
        """Return the clipped sum of the chunk."""
        call = LossCall(self.model, loss_fn)
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters.values()]
        for position in range(chunk.size):
            gradients = [gradient.unsqueeze(0) for gradient in self.gradients(call, chunk.record(position))]
            weights = weigh(torch.stack([squared_norms(g) for g in gradients]).sum(0).unsqueeze(1)).squeeze(1)
            for total, gradient in zip(totals, gradients, strict=True):
                total += lattice_sum(gradient, weights, grid)
        return BoundedSums(totals)

    def gradients(self, call: LossCall, record: Chunk) -> list[torch.Tensor]:
        """Return the gradient of one record's loss; zero where a parameter plays no part."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.parameters.items()}
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with torch.enable_grad():
            loss = loss_of_one(call, leaves, buffers, record)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(found, leaves.values(), strict=True)]
