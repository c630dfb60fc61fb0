"""Book-keeping with exact norms: those of the very vectors that are added, in float64.

Upper bounds would do for clipping. Importance sampling tosses coins by norms, and rounding error
must follow from the bits of the gradients alone: docs/proofs/dpis.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch

from dpfy.gradients.base import BoundedSums, LossFn, RecordStats, Unsupported
from dpfy.gradients.bookkeeping.contributions import Contribution, Materialized, OuterProduct
from dpfy.gradients.bookkeeping.costs import BLOCK_NUMBERS, cheapest_kept
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows, TiedEmbedding
from dpfy.gradients.bookkeeping.engine import BookkeepingEngine
from dpfy.gradients.bookkeeping.recorder import Consumer, Parts, region
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.vmap import VmapEngine
from dpfy.mechanisms.clipping import Clipping, squared_norms
from dpfy.noise.native.kernels import Kernels, Singles, kernels_for

_CHUNKS = 8  # in a step, about: there are more numbers in it than those at hand


class ExactBookkeepingEngine(BookkeepingEngine):
    """Book-keeping whose norms are those of the added vectors, for importance sampling.

    Vectors, or two factors of each, are kept; sums over several time steps are written out twice.
    A record whose gradient is not finite has a norm that is not, and records of weight zero are in
    no sum. So no chunk is computed again, and every record is weighed once.

    Args:
        model: The user's module.
        parameters: The trained parameters by name.
    """

    # as there: norms and sums in float64, of gradients from kernels that look at sizes
    rounding = VmapEngine.rounding

    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> BoundedSums:
        """Return the weighted sum of the chunk; only records of nonzero weight are added up."""
        if not self.accepts(chunk):
            return self._exact(loss_fn, chunk, clipping)
        kept = Written(len(self.parameters), chunk.size, self.device)
        try:
            stats = self._pass(loss_fn, chunk, kept).stats
        except Unsupported:
            return self._exact(loss_fn, chunk, clipping)
        norms = clipping.norms(kept.squared)
        return Chosen(kept.parts, clipping.weights(norms), (RecordStats(norms, stats),))


class Written(Consumer):
    """Measures contributions by the vectors themselves, and keeps them."""

    def __init__(self, parameters: int, records: int, device: torch.device | None = None) -> None:
        self.squared = [
            torch.zeros(records, dtype=torch.float64, device=device) for _ in range(parameters)
        ]
        self.parts: list[Parts] = [[] for _ in range(parameters)]

    def take(self, position: int, parts: Parts) -> None:
        """Measure the contributions and keep them."""
        self.parts[position] = parts
        for _, part in parts:
            self.squared[position] += squared_lengths(part)

    def form(self, outer: OuterProduct) -> Contribution:
        """Return the form that trades memory for time best."""
        return cheapest_kept(outer)


@dataclass(frozen=True)
class Chosen(BoundedSums):
    """Contributions and weights; records of weight zero are left out, whatever they hold."""

    parts: list[Parts]
    weights: Sequence[torch.Tensor]
    seen: tuple[RecordStats, ...]

    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add one weighed sum per parameter, and let go of what it was made from."""
        for parts, weights, total in zip(self.parts, self.weights, totals, strict=True):
            while parts:
                rows, part = parts.pop()
                add_chosen(part, weights, region(total, rows))


def squared_lengths(part: Contribution) -> torch.Tensor:
    """Return the squared norms of the vectors of all records, in float64.

    The norm of a product of two vectors is the product of their norms. Sums of several products
    are written out: with Gram matrices, terms that cancel would carry rounding error into the
    leading digits of a norm.
    """
    if isinstance(part, Materialized):
        return _squares(part.gradients).sum(0)
    if isinstance(part, EmbeddingRows):
        rows, owners, _, _ = part.distinct
        squared = torch.zeros(len(part.tokens), dtype=torch.float64, device=rows.device)
        return squared.index_add_(0, owners, squared_norms(rows))
    if _is_one_product(part):
        return (_lengths(part.inputs) * _lengths(part.outputs)).square()
    return torch.cat([squared_lengths(block) for _, block in _written(part)])


def _squares(rows: torch.Tensor) -> torch.Tensor:
    """Return squared norms [blocks, rows]; float32 takes one walk, where torch converts first."""
    if (numbers := _singles(rows)) is None:
        return torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64).square()
    return torch.from_numpy(_kernels_for(rows).measure(numbers))


def _chosen_sums(rows: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return Σ weight·row [blocks, numbers] over the chosen rows, in float64."""
    if (numbers := _singles(rows)) is None:
        return weights[chosen] @ rows.index_select(1, chosen).double()
    return torch.from_numpy(
        _kernels_for(rows).weigh(numbers, chosen.numpy(), weights[chosen].double().numpy())
    )


def _kernels_for(rows: torch.Tensor) -> Kernels:
    """Return the kernels for rows of this size."""
    return kernels_for(_CHUNKS * rows.numel(), shared=True)


def _singles(rows: torch.Tensor) -> Singles | None:
    """Return float32 rows without gaps in memory as numpy has them, and None for others."""
    return (
        rows.numpy()
        if rows.is_cpu and rows.dtype == torch.float32 and rows.is_contiguous()
        else None
    )


def _lengths(vectors: torch.Tensor) -> torch.Tensor:
    """Return norms in float64, scaled where squares would overflow or underflow."""
    rows = vectors.flatten(1)
    if rows.dtype != torch.float64:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    largest = rows.abs().amax(1, keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    return torch.linalg.vector_norm(rows / scale, dim=1) * scale[:, 0]


def add_chosen(part: Contribution, weights: torch.Tensor, total: torch.Tensor) -> None:
    """Add Σ weight·vector over the records of nonzero weight to the float64 ``total``."""
    if not weights.is_cpu:
        _add_on_device(part, weights, total)
        return
    chosen = weights.nonzero().flatten()
    if not len(chosen):
        return
    if isinstance(part, Materialized):
        total += part.shaped(_chosen_sums(part.gradients, weights, chosen))
    elif isinstance(part, EmbeddingRows):
        rows, owners, tokens, _ = part.distinct
        own = (weights[owners] != 0).nonzero().flatten()
        total.index_add_(0, tokens[own], rows[own] * weights[owners[own]].unsqueeze(1))
    elif _is_one_product(part):
        total += (part.outputs[chosen, 0] * weights[chosen].unsqueeze(1)).t() @ part.inputs[
            chosen, 0
        ].double()
    else:
        for records, block in _written(part):
            add_chosen(block, weights[records], total)


def _add_on_device(part: Contribution, weights: torch.Tensor, total: torch.Tensor) -> None:
    """Add the same without asking how many records there are, which would wait for the device.

    Zeros take the places of what has weight zero.
    """
    chosen = weights != 0
    if isinstance(part, Materialized):
        rows = torch.where(chosen[:, None], part.gradients, 0.0)
        total += part.shaped(weights @ rows.double())
    elif isinstance(part, EmbeddingRows):
        rows, owners, tokens, _ = part.distinct
        rows = torch.where(chosen[owners, None], rows, 0.0)
        total.index_add_(0, tokens, rows * weights[owners].unsqueeze(1))
    elif _is_one_product(part):
        outputs, inputs = (
            torch.where(chosen[:, None], each[:, 0], 0.0).double()
            for each in (part.outputs, part.inputs)
        )
        total += (outputs * weights.unsqueeze(1)).t() @ inputs
    else:
        for records, block in _written(part):
            _add_on_device(block, weights[records], total)


def _is_one_product(part: Contribution) -> TypeGuard[OuterProduct]:
    """Whether a contribution is a product of two vectors per record."""
    return isinstance(part, OuterProduct) and part.inputs.shape[1] == 1


def _written(part: Contribution) -> Iterator[tuple[slice, Materialized]]:
    """Yield the vectors of a few records at a time; equal shapes give equal bits each time."""
    assert isinstance(part, OuterProduct | TiedEmbedding)
    outer, height = (
        (part.outer, part.rows.vocabulary)
        if isinstance(part, TiedEmbedding)
        else (part, part.outputs.shape[2])
    )
    at_once = max(1, BLOCK_NUMBERS // (height * outer.inputs.shape[2]))
    for start in range(0, len(outer.inputs), at_once):
        records = slice(start, start + at_once)
        some = OuterProduct(outer.inputs[records], outer.outputs[records])
        if isinstance(part, TiedEmbedding):
            rows = replace(
                part.rows, tokens=part.rows.tokens[records], outputs=part.rows.outputs[records]
            )
            yield records, TiedEmbedding(rows, some).instantiate()
        else:
            yield records, some.instantiate()
