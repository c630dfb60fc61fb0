"""Layers that normalise each record alone, with a scale and a shift.

Tests: tests/gradients/bookkeeping/layers/test_layers.py.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.contributions import Materialized
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import Recorder


def layer_norm(
    module: nn.LayerNorm, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.LayerNorm`."""
    normal = F.layer_norm(inputs, module.normalized_shape, None, None, module.eps)
    return _scaled_and_shifted(recorder, layout, normal, module.weight, module.bias)


def rms_norm(
    module: nn.RMSNorm, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.RMSNorm`."""
    normal = F.rms_norm(inputs, module.normalized_shape, None, module.eps)
    return _scaled_and_shifted(recorder, layout, normal, module.weight, None)


def rms_norm_of_transformers(
    module: Any, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record the RMSNorm of Llama and its relatives, rounded as they round it."""
    normal = _root_mean_square(inputs.float(), inputs, module.variance_epsilon)
    return _scaled_and_shifted(recorder, layout, normal.to(inputs.dtype), module.weight, None)


def layer_norm_of_t5(
    module: Any, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record the LayerNorm of T5, which neither centres nor shifts."""
    normal = _root_mean_square(inputs, inputs, module.variance_epsilon)
    if module.weight.dtype in (torch.float16, torch.bfloat16):
        normal = normal.to(module.weight.dtype)
    return _scaled_and_shifted(recorder, layout, normal, module.weight, None)


def _root_mean_square(numbers: torch.Tensor, inputs: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return numbers divided by the root of the inputs' mean square, which is taken in float32."""
    squared = inputs.float().square().mean(-1, keepdim=True)
    return numbers * torch.rsqrt(squared + epsilon)


def group_norm(
    module: nn.GroupNorm, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.GroupNorm`."""
    return _group_norm(recorder, layout, inputs, module.num_groups, module)


def instance_norm(
    module: Any, recorder: Recorder, layout: Layout, inputs: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.InstanceNorm2d` and its relatives.

    Instance norm is group norm with as many groups as channels.
    """
    if module.track_running_stats or inputs.ndim != module._get_no_batch_dim() + 1:
        raise Unsupported
    return _group_norm(recorder, layout, inputs, module.num_features, module)


def _group_norm(
    recorder: Recorder, layout: Layout, inputs: torch.Tensor, groups: int, module: Any
) -> torch.Tensor:
    """Compute and record a group norm, by torch's kernel where it has scale and shift."""
    weight, bias = module.weight, module.bias
    if weight is None or bias is None or inputs.ndim < 3:
        normal = F.group_norm(inputs, groups, None, None, module.eps)
        return _scaled_and_shifted(recorder, layout, normal.movedim(1, -1), weight, bias).movedim(
            -1, 1
        )
    layout.items(inputs, recorder.records)

    own, own_bias = recorder.slot(weight), recorder.slot(bias)

    def record(scale: torch.Tensor, shift: torch.Tensor) -> None:
        for slot, found in ((own, scale), (own_bias, shift)):
            if slot is not None:
                recorder.add(
                    slot, Materialized.of(found.unflatten(0, (recorder.records, -1)).sum(1))
                )

    return _GroupNorm.apply(recorder.anchor, inputs, weight, bias, groups, module.eps, record)


def _scaled_and_shifted(
    recorder: Recorder,
    layout: Layout,
    normal: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return normal·weight + bias; gradients are summed over axes that the parameters lack."""
    if weight is None and bias is None:
        return normal
    layout.items(normal, recorder.records)

    own, own_bias = recorder.slot(weight), recorder.slot(bias)
    shape = (weight if bias is None else bias).shape  # type: ignore[union-attr]

    def record(gradient: torch.Tensor, normal: Any) -> None:
        for slot, found in (
            (own, lambda: gradient * normal),
            (own_bias, lambda: gradient),
        ):
            if slot is not None:
                rows = layout.records(found(), recorder.records)
                recorder.add(
                    slot, Materialized.of(rows.reshape(recorder.records, -1, *shape).sum(1))
                )

    keeps = own is not None
    return _ScaleAndShift.apply(recorder.anchor, normal, weight, bias, keeps, record)


class _ScaleAndShift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor, normal, weight, bias, keeps, record):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(weight, normal if keeps else None)
        ctx.record, ctx.dtype = record, normal.dtype
        scaled = normal * weight if weight is not None else normal.clone()
        return scaled.add_(bias) if bias is not None else scaled

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        weight, normal = ctx.saved_tensors
        ctx.record(gradient, None if normal is None else normal.detach())
        found = None
        if ctx.needs_input_grad[1]:
            found = (gradient if weight is None else gradient * weight).to(ctx.dtype)
        return None, found, None, None, None, None


class _GroupNorm(torch.autograd.Function):
    """GroupNorm whose backward pass treats channels of all records as those of one.

    torch then sums the gradients of scale and shift over one record each.
    """

    @staticmethod
    def forward(ctx, anchor, inputs, weight, bias, groups, eps, record):  # type: ignore[no-untyped-def]
        items, channels, positions = inputs.shape[0], inputs.shape[1], math.prod(inputs.shape[2:])
        inputs = inputs.contiguous()
        outputs, mean, rstd = torch.native_group_norm(
            inputs, weight, bias, items, channels, positions, groups, eps
        )
        ctx.save_for_backward(inputs, weight, mean, rstd)
        ctx.sizes, ctx.record = (items, channels, positions, groups), record
        return outputs

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        inputs, weight, mean, rstd = ctx.saved_tensors
        items, channels, positions, groups = ctx.sizes
        as_one = (1, items * channels, positions)
        # torch reads one that is repeated without memory beyond its end
        gradient = gradient.contiguous()
        found, scale, shift = torch.ops.aten.native_group_norm_backward(
            gradient.view(as_one),
            inputs.view(as_one),
            mean.view(1, -1),
            rstd.view(1, -1),
            weight.repeat(items),
            1,
            items * channels,
            positions,
            items * groups,
            [ctx.needs_input_grad[1], True, True],
        )
        ctx.record(scale.view(items, channels), shift.view(items, channels))
        found = found.view(inputs.shape) if ctx.needs_input_grad[1] else None
        return None, found, None, None, None, None, None
