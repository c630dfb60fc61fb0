"""Contributions to embedding tables: only rows of tokens that occur are stored.

A table may also be the weight of a Linear; then the cross term of both uses counts.

Tests: tests/gradients/bookkeeping/test_contributions.py.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from dpfy.gradients.bookkeeping.arithmetic import (
    Weights,
    in_working_precision,
    squared_norm_bounds,
)
from dpfy.gradients.bookkeeping.contributions import (
    Contribution,
    Materialized,
    NormBounds,
    OuterProduct,
    as_steps,
)
from dpfy.gradients.bookkeeping.workspace import Workspace


@dataclass(frozen=True)
class EmbeddingRows(Contribution):
    """Gradients of an embedding, Σ_t row(token_t) += g_t per record, as the rows that occur.

    ``tokens`` are [records, time] and ``outputs`` [records, time, d]; a token that occurs twice in
    a record is one row.
    """

    tokens: torch.Tensor
    outputs: torch.Tensor
    vocabulary: int

    def norms(self) -> NormBounds:
        """Return norms of the rows after equal tokens of a record were added up."""
        rows, owners, _, _ = self.distinct
        squared = torch.zeros(len(self.tokens), dtype=torch.float64, device=rows.device)
        return NormBounds(
            squared.index_add_(0, owners, squared_norm_bounds(rows))
            * (1 + self.tokens.shape[1] * 2.0**-52)
        )

    @cached_property
    def distinct(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The summed rows, with the record and the token of each, and its number for each place."""
        numbers = (
            torch.arange(len(self.tokens), device=self.tokens.device).unsqueeze(1) * self.vocabulary
            + self.tokens
        )
        keys, places = _distinct(numbers.flatten())
        outputs = in_working_precision(self.outputs).flatten(0, 1)
        rows = outputs.new_zeros(len(keys), outputs.shape[1]).index_add_(0, places, outputs)
        return (
            rows,
            torch.div(keys, self.vocabulary, rounding_mode="floor"),
            keys % self.vocabulary,
            places,
        )

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add the rows that occur; noise is added to all rows later."""
        rows, owners, tokens, _ = self.distinct
        weighed = rows * weights.double()[owners].unsqueeze(1)
        total.index_add_(0, tokens, weighed.to(total.dtype))

    def instantiate(self) -> Materialized:
        """Write out dense gradients, for a table that is tied to something other than a Linear."""
        rows, owners, tokens, _ = self.distinct
        dense = rows.new_zeros(len(self.tokens), self.vocabulary, rows.shape[1])
        return Materialized.of(dense.index_put_((owners, tokens), rows, accumulate=True))

    def folded(self, rows: int) -> "EmbeddingRows":
        """Treat the tokens of a unit's rows as one record's, so that equal ones are one row."""
        return replace(
            self, tokens=as_steps(self.tokens, rows), outputs=as_steps(self.outputs, rows)
        )

    def joined(self, other: "EmbeddingRows") -> "EmbeddingRows":
        """Return the sum of two uses of one table."""
        return EmbeddingRows(
            torch.cat([self.tokens, other.tokens], 1),
            torch.cat([self.outputs, other.outputs], 1),
            self.vocabulary,
        )

    def inner(self, other: OuterProduct) -> torch.Tensor:
        """Return ⟨rows, outer⟩ per record: Σ_t Σ_s b_s[token_t]·(r_t·a_s), without a table.

        r_t is the very row that is added, rounding included, at the first place of its token and
        zero at the others.
        """
        rows, _, _, places = self.distinct
        numbers = torch.arange(len(places), device=places.device)
        first = torch.full_like(numbers[: len(rows)], len(places)).scatter_reduce_(
            0, places, numbers, "amin"
        )
        # one place more, for rows of no token
        placed = rows.new_zeros(len(places) + 1, rows.shape[1], dtype=torch.float64).index_copy_(
            0, first, rows.double()
        )
        products = torch.bmm(placed[:-1].unflatten(0, self.tokens.shape), other.inputs.double().mT)
        tokens = self.tokens.unsqueeze(2).expand(-1, -1, other.inputs.shape[1])
        entries = other.outputs.mT.gather(1, tokens).double()
        return (products * entries).sum((1, 2))


def _distinct(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct numbers in order, and the place of each number among them.

    How many there are is known to a device only, and would have to be waited for. There, the places
    that are left over repeat the last number: rows of zeros belong to them.
    """
    if numbers.is_cpu or not len(numbers):
        return torch.unique(numbers, return_inverse=True)
    ordered, order = numbers.sort()
    begins = (ordered.diff() != 0).long()
    ranks = torch.cat([begins.new_zeros(1), begins.cumsum(0)])
    keys = ordered[-1:].expand_as(ordered).clone().index_copy_(0, ranks, ordered)
    return keys, torch.empty_like(ranks).index_copy_(0, order, ranks)


@dataclass(frozen=True)
class TiedEmbedding(Contribution):
    """An embedding table that is also a Linear's weight: two forms and their cross term."""

    rows: EmbeddingRows
    outer: OuterProduct

    def norms(self) -> NormBounds:
        """Return ‖r‖² + ‖o‖² + 2⟨r, o⟩."""
        rows = self.rows.norms().squared
        squared = rows + self.outer.gram() + 2 * self.rows.inner(self.outer)
        return self.outer.certified(
            squared, rows.sqrt() + self.outer.magnitude(), self.rows.tokens.shape[1]
        )

    def add_sum(self, weights: torch.Tensor, total: torch.Tensor) -> None:
        """Add both forms."""
        self.rows.add_sum(weights, total)
        self.outer.add_steps(weights, total)

    def summed(self, weights: Weights, memory: Workspace) -> torch.Tensor | None:
        """Return the sum of both forms if that of the product is one tensor."""
        summed = self.outer.summed_steps(weights, memory)
        if summed is not None:
            self.rows.add_sum(weights.exact, summed)
        return summed

    def instantiate(self) -> Materialized:
        """Write both forms out."""
        return self.rows.instantiate().added(self.outer.instantiate())

    def folded(self, rows: int) -> "TiedEmbedding":
        """Fold both forms."""
        return TiedEmbedding(self.rows.folded(rows), self.outer.folded(rows))
