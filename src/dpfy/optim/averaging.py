"""Averages of the weights of a run."""

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from dpfy import _validate


class TailAverage(AveragedModel):
    """The mean of the weights over the last part of the steps.

    Before that part begins it equals the current weights. Call ``update_parameters(model)`` after
    every step; ``.module`` is the averaged model. For an exponential average, use
    ``AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))`` of torch.

    Args:
        model: the model whose weights are averaged.
        steps: the number of steps of the run.
        share: the fraction of the steps that is averaged, in (0, 1].
        **options: further arguments of torch's ``AveragedModel``.

    *Formal guarantee*: post-processing, because the weights of every step are released.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = TailAverage(model, steps=4, share=0.5)
    >>> for weight in (1.0, 2.0, 3.0, 5.0):
    ...     _ = nn.init.constant_(model.weight, weight)
    ...     average.update_parameters(model)
    >>> average.module.weight.item()
    4.0
    """

    seen: torch.Tensor

    def __init__(self, model: nn.Module, steps: int, share: float = 0.25, **options: Any) -> None:
        super().__init__(model, **options)
        _validate.real("share", share, 0, 1, open_low=True)
        self._before = _validate.count("steps", steps) - max(1, round(share * steps))
        self.register_buffer("seen", torch.tensor(0, dtype=torch.long))

    def update_parameters(self, model: nn.Module) -> None:
        """Take in the weights after another step."""
        if self.seen <= self._before:
            self.n_averaged.zero_()  # the next weights replace what is there
        super().update_parameters(model)
        self.seen += 1
