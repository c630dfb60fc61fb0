"""Where the layers of one forward and backward pass leave their contributions."""

from collections.abc import Callable, Mapping

import torch

from dpfy.training.engines.bookkeeping.contributions import Contribution, Outer, combined
from dpfy.training.engines.bookkeeping.costs import cheapest_outer

Span = tuple[int, int] | None
"""Some rows of a parameter, from one to before another; None for all of it."""


class Tape:
    """The contributions of one chunk to every trained parameter.

    Layers compute with parameters that are off the graph, so that autograd forms the gradients of activations only;
    ``anchor`` keeps the layers' outputs on it.
    """

    def __init__(self, trained: Mapping[str, torch.Tensor], records: int) -> None:
        self.records = records
        self.anchor = torch.zeros((), requires_grad=True)
        self._positions = {id(tensor): position for position, tensor in enumerate(trained.values())}
        self._parts: list[dict[Span, list[Contribution]]] = [{} for _ in trained]

    def trains(self, parameter: torch.Tensor | None) -> bool:
        """Whether a tensor stands for a parameter that is trained."""
        return parameter is not None and id(parameter) in self._positions

    def add(self, parameter: torch.Tensor, contribution: Contribution, rows: Span = None) -> None:
        """Add to the gradients of a parameter, or of some of its rows."""
        self._parts[self._positions[id(parameter)]].setdefault(rows, []).append(contribution)

    def outer(self, parameter: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor,
              rows: Span = None) -> None:
        """Add Σ_t outputs_t ⊗ inputs_t for [records, time, features], in the form that is cheapest for its shape."""
        self.add(parameter, cheapest_outer(Outer(inputs, outputs)), rows)

    def contributions(self) -> list[list[tuple[Span, Contribution]]]:
        """Return what was added, parameter by parameter; parts that share rows are one contribution."""
        return [[(rows, combined(parts)) for rows, parts in by_rows.items()] for by_rows in self._parts]


def region(tensor: torch.Tensor, rows: Span) -> torch.Tensor:
    """Return the rows of a tensor that a contribution is for."""
    return tensor if rows is None else tensor[rows[0]:rows[1]]


Record = Callable[[torch.Tensor], None]


class Tap(torch.autograd.Function):
    """Gives ``value`` a place on the graph and shows its gradient to ``record``."""

    @staticmethod
    def forward(ctx, anchor, value, record):  # type: ignore[no-untyped-def]
        """Pass the value on."""
        ctx.record = record
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        """Show the gradient."""
        ctx.record(gradient)
        return None, None, None
