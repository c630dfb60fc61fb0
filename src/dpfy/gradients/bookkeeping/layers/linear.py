"""Linear layers, for inputs of any rank.

Tests: tests/gradients/bookkeeping/layers/test_layers.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.gradients.bookkeeping.contributions import BiasOf, Materialized, OuterProduct
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import Recorder, Span, region


def linear(
    module: nn.Linear, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.Linear`."""
    return recorded_linear(recorder, layout, inputs, module.weight, module.bias)


def recorded_linear(
    recorder: Recorder,
    layout: Layout,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    weight_rows: Span = None,
    bias_rows: Span = None,
) -> torch.Tensor:
    """Return inputs @ weightᵀ + bias, and record contributions to (rows of) the parameters."""
    own, own_bias = recorder.slot(weight), recorder.slot(bias)

    def record(gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        outputs = layout.sequences(gradient, recorder.records)
        shift = Materialized.of(outputs[:, 0] if outputs.shape[1] == 1 else outputs.sum(1))
        if own is not None:
            outer = OuterProduct(layout.sequences(inputs, recorder.records), outputs)
            recorder.outer(own, outer, weight_rows)
            shift = BiasOf(shift.gradients, shift.shaped, outer) if outputs.shape[1] == 1 else shift
        if own_bias is not None:
            recorder.add(own_bias, shift, bias_rows)

    layout.items(inputs, recorder.records)
    shift = None if bias is None else region(bias, bias_rows)
    return _Linear.apply(recorder.anchor, inputs, region(weight, weight_rows), shift, record)


def transposed_linear(
    module: Any, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record a linear layer whose weight is [inputs, outputs], as GPT-2 has them."""
    return recorded_product(recorder, layout, inputs, module.weight, module.bias)


def recorded_product(
    recorder: Recorder,
    layout: Layout,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return inputs @ weight + bias, and record contributions to the parameters."""
    own, own_bias = recorder.slot(weight), recorder.slot(bias)

    def record(gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        outputs = layout.sequences(gradient, recorder.records)
        if own is not None:
            rows = layout.sequences(inputs, recorder.records)
            recorder.outer(own, OuterProduct(outputs, rows))
        if own_bias is not None:
            recorder.add(own_bias, Materialized.of(outputs.sum(1)))

    layout.items(inputs, recorder.records)
    return _Linear.apply(recorder.anchor, inputs, weight.t(), bias, record)


class _Linear(torch.autograd.Function):
    """A linear function whose weight gradient is left to ``record``.

    ``record`` is given the inputs as they were saved: what it closed over would be out of reach
    for activation checkpointing.
    """

    @staticmethod
    def forward(ctx, anchor, inputs, weight, bias, record):  # type: ignore[no-untyped-def]
        """Compute as ever."""
        outputs = F.linear(inputs, weight, bias)
        ctx.save_for_backward(inputs, weight)
        ctx.record = record
        return outputs

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        """Return the input's gradient alone."""
        inputs, weight = ctx.saved_tensors
        ctx.record(gradient, inputs.detach())
        if not ctx.needs_input_grad[1]:
            return None, None, None, None, None
        return None, (gradient @ weight.to(gradient.dtype)).to(inputs.dtype), None, None, None
