"""Form clipped sums a few rows at a time, so that the sum of a large parameter is never whole.

Tests: tests/gradients/sharded/test_forming.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpfy.gradients.base import BoundedSums, RecordStats
from dpfy.gradients.bookkeeping.arithmetic import Weights
from dpfy.gradients.bookkeeping.contributions import LARGE_WEIGHT, Contribution, OuterProduct
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows, TiedEmbedding
from dpfy.gradients.bookkeeping.recorder import Parts
from dpfy.gradients.bookkeeping.strategies import add_parts
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.sharded.rows import Owned


@dataclass(frozen=True)
class RowSums(BoundedSums):
    """The clipped sum of a chunk, formed by rows: on this process alone, or for their owners.

    Args:
        parts: The contributions to each trained parameter.
        weights: The weights of the records for each of them.
        seen: Norms and statistics of the records, every record once.
        owned: This process's rows of each of them.
        memory: Where products are formed.
    """

    parts: list[Parts]
    weights: Sequence[Weights]
    seen: tuple[RecordStats, ...]
    owned: Sequence[Owned]
    memory: Workspace

    def of(self, position: int) -> "ParameterSum":
        """Return the sum of one parameter, to be formed; its contributions are used up."""
        parts, self.parts[position] = self.parts[position], []
        return ParameterSum(parts, self.weights[position], self.owned[position], self.memory)

    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add this process's rows of the sum of its own records, without those of others."""
        for position, total in enumerate(totals):
            first, last = self.owned[position].span()
            if last > first:
                total += self.of(position).rows(first, last).view(total.shape)


class ParameterSum:
    """The sum of one parameter: of a small one as a whole, of a large one rows by rows.

    Args:
        parts: All contributions.
        weights: The weights of the records.
        owned: This process's rows, from which the shape is known.
        memory: Where products are formed.
    """

    def __init__(self, parts: Parts, weights: Weights, owned: Owned, memory: Workspace) -> None:
        self._weights, self._owned, self._memory = weights, owned, memory
        large = owned.rows * owned.width >= LARGE_WEIGHT
        self._by_rows = [each for each in parts if large and _has_rows(each[1])]
        self._rest = [each for each in parts if not (large and _has_rows(each[1]))]
        self._whole: torch.Tensor | None = None

    def rows(self, first: int, last: int) -> torch.Tensor:
        """Return the sum of rows from ``first`` to before ``last``, as [rows, numbers]."""
        only = self._only_product(first, last)
        if only is not None:
            return only
        total = torch.zeros(
            last - first, self._owned.width, dtype=torch.float64, device=self._owned.local.device
        )
        if self._rest or self._whole is not None:
            total += self._formed()[first:last]
        for span, part in self._by_rows:
            begin, end = span or (0, self._owned.rows)
            low, high = max(first, begin), min(last, end)
            if low < high:
                _add_rows(
                    part,
                    self._weights,
                    low - begin,
                    high - begin,
                    total[low - first : high - first],
                )
        return total

    def _only_product(self, first: int, last: int) -> torch.Tensor | None:
        """Return the rows in float32 if they are a single product."""
        if self._rest or self._whole is not None or len(self._by_rows) != 1:
            return None
        (span, part), *_ = self._by_rows
        if span is not None or not isinstance(part, OuterProduct):
            return None
        return part.between(first, last).summed(self._weights, self._memory)

    def _formed(self) -> torch.Tensor:
        """Return the sum of what is not formed by rows, as [rows, numbers]."""
        if self._whole is None:
            shaped = torch.zeros(
                self._owned.shape, dtype=torch.float64, device=self._owned.local.device
            )
            add_parts(self._rest, self._weights.exact, shaped)
            self._whole = shaped.view(self._owned.rows, -1)
        return self._whole


def _has_rows(part: Contribution) -> bool:
    """Whether some rows of a contribution can be summed without the others."""
    return isinstance(part, OuterProduct | EmbeddingRows | TiedEmbedding)


def _add_rows(
    part: Contribution, weights: Weights, first: int, last: int, total: torch.Tensor
) -> None:
    """Add some rows of the sum of a contribution to a float64 total."""
    if isinstance(part, TiedEmbedding):
        _add_rows(part.rows, weights, first, last, total)
        # also of a single step in the precision that the norm of both was charged for
        part.outer.between(first, last).add_steps(weights.exact, total)
        return
    if isinstance(part, EmbeddingRows):
        rows, owners, tokens, _ = part.distinct
        chosen = ((tokens >= first) & (tokens < last)).nonzero().flatten()
        weighed = rows[chosen] * weights.exact.double()[owners[chosen]].unsqueeze(1)
        total.index_add_(0, tokens[chosen] - first, weighed.to(total.dtype))
        return
    assert isinstance(part, OuterProduct)
    part.between(first, last).add_sum(weights.exact, total)
