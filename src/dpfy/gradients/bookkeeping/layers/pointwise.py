"""Layers with a parameter that acts on each number.

Tests: tests/gradients/bookkeeping/layers/test_layers.py.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.contributions import Materialized
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import Recorder


def prelu(
    module: nn.PReLU, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.PReLU`, with one slope or one for each channel."""
    if layout.axis:
        raise Unsupported
    layout.items(inputs, recorder.records)
    weight = module.weight
    own, slopes = recorder.slot(weight), weight.numel()

    def record(gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        found = gradient * inputs.clamp(max=0)
        if slopes > 1:
            found = found.flatten(2).sum(2) if found.ndim > 2 else found
        if own is not None:
            recorder.add(own, Materialized.of(found.reshape(recorder.records, -1, slopes).sum(1)))

    return _PReLU.apply(recorder.anchor, inputs, weight, record)


class _PReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, inputs, weight, record):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs, weight)
        ctx.record = record
        return F.prelu(inputs, weight)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        inputs, weight = ctx.saved_tensors
        ctx.record(gradient, inputs.detach())
        if not ctx.needs_input_grad[1]:
            return None, None, None, None
        slopes = weight.view(-1, *(1,) * (inputs.ndim - 2)) if inputs.ndim > 1 else weight
        return None, torch.where(inputs > 0, gradient, gradient * slopes), None, None
