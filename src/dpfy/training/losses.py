"""What a loss function may return."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dpfy.errors import LossError


@dataclass(frozen=True)
class Losses:
    """Per-example losses, and per-example statistics for the plan's side sums.

    Statistics leave only as released sums: what no leaf of the plan's query asks for is dropped.
    """

    loss: torch.Tensor
    stats: Mapping[str, torch.Tensor] = field(default_factory=dict)


def per_example(returned: object, size: int) -> torch.Tensor:
    """Return the loss vector of ``size`` examples, or explain what ``loss_fn`` should have returned."""
    losses = returned.loss if isinstance(returned, Losses) else returned
    if not isinstance(losses, torch.Tensor):
        raise LossError(f"loss_fn returned a {type(losses).__name__}; return the tensor of per-example losses, or "
                        "dpfy.Losses(loss, stats={...}).")
    if losses.shape != (size,):
        scalar = " A scalar mixes the examples: use reduction='none'." if losses.ndim == 0 else ""
        raise LossError(f"loss_fn returned shape {tuple(losses.shape)} for {size} examples; expected one loss per "
                        f"example, shape ({size},).{scalar}")
    if isinstance(returned, Losses):
        for name, values in returned.stats.items():
            if not isinstance(values, torch.Tensor) or values.shape[:1] != (size,):
                raise LossError(f"The statistic {name!r} must be a tensor with one row per example ({size} here).")
    return losses
