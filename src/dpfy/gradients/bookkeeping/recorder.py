"""The recorder, to which the layers of one forward and backward pass hand contributions.

Tests: tests/gradients/bookkeeping/test_capture.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeGuard

import torch

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.contributions import Contribution, Materialized, OuterProduct
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows, TiedEmbedding
from dpfy.gradients.bookkeeping.workspace import Workspace

Span = tuple[int, int] | None
"""Rows of a parameter, from a first to before a last one; None for all of it."""

Slot = int
"""The place of a trained parameter among all of them."""

Parts = list[tuple[Span, Contribution]]
"""All contributions to one parameter; no two share rows."""


class Consumer(ABC):
    """Receiver of all contributions to a parameter, as soon as all its uses are recorded."""

    @abstractmethod
    def take(self, position: int, parts: Parts) -> None:
        """Receive all contributions to the parameter at a position."""

    @abstractmethod
    def form(self, outer: OuterProduct) -> Contribution:
        """Return an outer product in the form that is cheapest for this consumer."""


class Recorder:
    """The contributions of one chunk to every trained parameter.

    Layers compute with parameters that are off the graph, so that autograd forms gradients of
    activations only; ``anchor`` keeps the layers' outputs on the graph. ``uses`` counts how often
    each parameter is used in a pass. Layers see ``records`` one by one; their contributions are
    folded into units of ``fold`` consecutive records.

    Args:
        trained: The number of trained parameters; :meth:`bind` says which tensors they are.
        records: The number of records that layers see.
        consumer: The receiver of all contributions to a parameter.
        uses: How often each parameter is used, if that is known.
        fold: The number of consecutive records that are one unit of privacy.
        memory: Where gradients are written out; fresh memory by default.
    """

    def __init__(
        self,
        trained: int,
        records: int,
        consumer: Consumer,
        uses: Sequence[int] | None = None,
        fold: int = 1,
        memory: Workspace | None = None,
    ) -> None:
        self.records = records
        self.memory = memory or Workspace()
        self._fold = fold
        self.anchor = torch.zeros((), requires_grad=True)
        self._consumer = consumer
        self._expected = uses
        self._positions: dict[int, Slot] = {}
        self._found: list[list[tuple[Span, Contribution]]] = [[] for _ in range(trained)]
        self.uses = [0] * trained
        self.stats: Mapping[str, torch.Tensor] = {}
        self.goes_back = False
        self.recomputes = False  # whether layers are called on the way back as well

    def trains(self, parameter: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
        """Whether a tensor stands for a trained parameter."""
        return parameter is not None and id(parameter) in self._positions

    def slot(self, parameter: torch.Tensor | None) -> Slot | None:
        """Return the slot of the trained parameter that a tensor stands for; None for others.

        What is recorded on the way back refers to slots: a function that held the tensor until
        then would keep its memory, which a sharded model gives back in between.
        """
        return None if parameter is None else self._positions.get(id(parameter))

    def bind(self, tensor: torch.Tensor, slot: Slot) -> None:
        """Let a tensor stand for a trained parameter, until :meth:`forget` is called."""
        self._positions[id(tensor)] = slot

    def forget(self, tensor: torch.Tensor) -> None:
        """Let a tensor stand for no parameter any more; another may take its place in memory."""
        self._positions.pop(id(tensor), None)

    def observed(
        self, outputs: torch.Tensor, record: Callable[..., None], *saved: torch.Tensor
    ) -> torch.Tensor:
        """Return the outputs of a layer; on the way back ``record`` is given their gradient.

        It is also given the tensors that are saved for it, which activation checkpointing may drop
        and compute again. Let it close over nothing but parameters.
        """
        return CaptureGrad.apply(self.anchor, outputs, record, *saved)

    def add(
        self, parameter: torch.Tensor | Slot, contribution: Contribution, rows: Span = None
    ) -> None:
        """Add to the gradients of a parameter, given as such or by its slot, or of some rows."""
        self._add(
            parameter, contribution if self._fold == 1 else contribution.folded(self._fold), rows
        )

    def outer(self, parameter: torch.Tensor | Slot, outer: OuterProduct, rows: Span = None) -> None:
        """Add an outer product in the form that is cheapest for the consumer."""
        self._add(
            parameter,
            self._consumer.form(outer if self._fold == 1 else outer.folded(self._fold)),
            rows,
        )

    def _add(self, parameter: torch.Tensor | Slot, contribution: Contribution, rows: Span) -> None:
        """Add a folded contribution, and hand all of them over once the parameter is complete."""
        position = parameter if isinstance(parameter, int) else self._positions[id(parameter)]
        if any((rows is None) != (before is None) for before, _ in self._found[position]):
            raise Unsupported(
                "a parameter is used as a whole and in parts, whose cross terms would be lost"
            )
        self._found[position].append((rows, contribution))
        self.uses[position] += 1
        if self._expected is not None:
            if self.uses[position] == self._expected[position]:
                self._complete(position)
            elif self.uses[position] > self._expected[position]:
                raise Unsupported("a parameter is used more often than on synthetic input")

    def finish(self) -> None:
        """Hand over the parameters that were used less often than expected, or not at all."""
        for position, found in enumerate(self._found):
            if found or not self.uses[position]:
                self._complete(position)

    def _complete(self, position: int) -> None:
        """Hand the contributions to one parameter over, combined row range by row range."""
        found, self._found[position] = self._found[position], []
        if len(found) == 1:  # as mostly
            self._consumer.take(position, found)
            return
        by_rows: dict[Span, list[Contribution]] = {}
        for rows, contribution in found:
            by_rows.setdefault(rows, []).append(contribution)
        self._consumer.take(position, [(rows, combined(parts)) for rows, parts in by_rows.items()])


def combined(parts: Sequence[Contribution]) -> Contribution:
    """Return the sum of all uses of one parameter, cross terms included."""
    if len(parts) == 1:
        return parts[0]
    outers = [part for part in parts if isinstance(part, OuterProduct)]
    rows = [part for part in parts if isinstance(part, EmbeddingRows)]
    if len(outers) + len(rows) < len(parts):
        return reduce(Materialized.added, [part.instantiate() for part in parts])
    if not rows:
        return reduce(OuterProduct.joined, outers)
    table = reduce(EmbeddingRows.joined, rows)
    return TiedEmbedding(table, reduce(OuterProduct.joined, outers)) if outers else table


def region(tensor: torch.Tensor, rows: Span) -> torch.Tensor:
    """Return the rows of a tensor that a contribution is for."""
    return tensor if rows is None else tensor[rows[0] : rows[1]]


class CaptureGrad(torch.autograd.Function):
    """Identity that puts ``value`` on the graph and shows its gradient to ``record``.

    ``record`` is given ``saved`` as well. Tensors that it would close over instead would be out of
    reach for activation checkpointing, which drops what is saved and computes it again.
    """

    @staticmethod
    def forward(ctx, anchor, value, record, *saved):  # type: ignore[no-untyped-def]
        """Pass the value on."""
        ctx.save_for_backward(*saved)
        ctx.record = record
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        """Show the gradient, and pass it on."""
        ctx.record(gradient, *(tensor.detach() for tensor in ctx.saved_tensors))
        own = gradient if ctx.needs_input_grad[1] else None
        return None, own, None, *(None for _ in ctx.saved_tensors)
