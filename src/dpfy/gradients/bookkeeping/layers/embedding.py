"""Embedding tables: before the noise, only rows that occur are touched.

Tests: tests/gradients/bookkeeping/layers/test_layers.py.
"""

import torch
import torch.nn.functional as F
from torch import nn

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import CaptureGrad, Recorder


def embedding(
    module: nn.Embedding, recorder: Recorder, layout: Layout, tokens: torch.Tensor
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.Embedding`."""
    if module.scale_grad_by_freq:  # divides by counts over the whole batch, which mixes records
        raise Unsupported
    weight = module.weight
    own, vocabulary = recorder.slot(weight), len(weight)
    tokens = tokens.long()
    outputs = F.embedding(tokens, weight)

    def record(gradient: torch.Tensor, tokens: torch.Tensor) -> None:
        places = layout.records(tokens, recorder.records).reshape(recorder.records, -1)
        found = layout.records(gradient, recorder.records).reshape(
            *places.shape, gradient.shape[-1]
        )
        if module.padding_idx is not None:
            found = found.masked_fill((places == module.padding_idx).unsqueeze(2), 0)
        if own is not None:
            recorder.add(own, EmbeddingRows(places, found, vocabulary))

    return CaptureGrad.apply(recorder.anchor, outputs, record, tokens)


def embedding_bag(
    module: nn.EmbeddingBag,
    recorder: Recorder,
    layout: Layout,
    tokens: torch.Tensor,
    offsets: torch.Tensor | None = None,
    per_sample_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute and record :class:`torch.nn.EmbeddingBag` on bags of one length.

    Bags are sums or means of an Embedding.
    """
    if tokens.ndim != 2 or offsets is not None or module.mode == "max" or module.scale_grad_by_freq:
        raise Unsupported
    weight, padding = module.weight, module.padding_idx
    own, vocabulary = recorder.slot(weight), len(weight)
    factors = (
        torch.ones_like(tokens, dtype=weight.dtype)
        if per_sample_weights is None
        else per_sample_weights
    )
    if padding is not None:
        factors = factors.masked_fill(tokens == padding, 0)
    if module.mode == "mean":
        counted = (
            factors.sum(1, keepdim=True)
            if padding is not None
            else factors.new_tensor(tokens.shape[1])
        )
        factors = factors / counted.clamp(min=1)

    def record(gradient: torch.Tensor, tokens: torch.Tensor) -> None:
        places = layout.records(tokens, recorder.records).reshape(recorder.records, -1)
        found = layout.records(gradient, recorder.records).reshape(
            *places.shape, gradient.shape[-1]
        )
        if own is not None:
            recorder.add(own, EmbeddingRows(places, found, vocabulary))

    looked_up = CaptureGrad.apply(recorder.anchor, F.embedding(tokens, weight), record, tokens)
    return torch.bmm(factors.unsqueeze(1), looked_up).squeeze(1)
