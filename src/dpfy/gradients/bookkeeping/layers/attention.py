"""Multi-head attention, as the linear layers that it is made of.

Tests: tests/gradients/bookkeeping/test_composites.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.layers.linear import recorded_linear
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import Recorder


def attention(
    module: nn.MultiheadAttention,
    recorder: Recorder,
    layout: Layout,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute and record :class:`torch.nn.MultiheadAttention`."""
    batch_axis = 0 if module.batch_first else 1
    if (
        query.ndim != 3
        or layout != Layout(batch_axis)
        or module.bias_k is not None
        or module.add_zero_attn
    ):
        raise Unsupported
    q, k, v = (
        _heads(projected, module)
        for projected in _projections(module, recorder, layout, query, key, value)
    )
    mask = _additive(attn_mask, key_padding_mask, q)
    dropout = module.dropout if module.training else 0.0
    if need_weights:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, -1), dropout)
        mixed, shown = weights @ v, weights.mean(1) if average_attn_weights else weights
    else:
        mixed, shown = F.scaled_dot_product_attention(q, k, v, mask, dropout), None
    joined = mixed.transpose(1, 2).flatten(2)
    outputs = joined if module.batch_first else joined.transpose(0, 1)
    return recorded_linear(
        recorder, layout, outputs, module.out_proj.weight, module.out_proj.bias
    ), shown


def _projections(
    module: nn.MultiheadAttention, recorder: Recorder, layout: Layout, *inputs: torch.Tensor
) -> list[torch.Tensor]:
    """Return query, key and value after their linear layers."""
    query, key, value = inputs
    # None where query, key and value have weights of their own
    weight: torch.Tensor | None = module.in_proj_weight
    bias = module.in_proj_bias
    if weight is not None and query is key and key is value:
        return list(recorded_linear(recorder, layout, query, weight, bias).chunk(3, -1))
    spans = [(n * module.embed_dim, (n + 1) * module.embed_dim) for n in range(3)]
    if weight is not None:
        return [
            recorded_linear(recorder, layout, x, weight, bias, span, span)
            for x, span in zip(inputs, spans, strict=True)
        ]
    weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    return [
        recorded_linear(recorder, layout, x, own, bias, None, span)
        for x, own, span in zip(inputs, weights, spans, strict=True)
    ]


def _heads(projected: torch.Tensor, module: nn.MultiheadAttention) -> torch.Tensor:
    """Return [records, heads, time, features of a head]."""
    ordered = projected if module.batch_first else projected.transpose(0, 1)
    return ordered.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)


def _additive(
    attention_mask: torch.Tensor | None, padding_mask: torch.Tensor | None, query: torch.Tensor
) -> torch.Tensor | None:
    """Return both masks as numbers to add to the scores, [records or 1, heads or 1, time, time]."""
    masks = []
    if attention_mask is not None:
        by_head = attention_mask.ndim == 3
        masks.append(
            attention_mask.view(len(query), -1, *attention_mask.shape[1:])
            if by_head
            else attention_mask
        )
    if padding_mask is not None:
        masks.append(padding_mask[:, None, None, :])
    numbers = [
        torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, -math.inf)
        if mask.dtype == torch.bool
        else mask.to(query.dtype)
        for mask in masks
    ]
    return sum(numbers[1:], numbers[0]) if numbers else None
