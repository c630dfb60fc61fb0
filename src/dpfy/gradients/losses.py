"""The values that a loss function may return, and how they are validated.

Tests: tests/run/test_run.py.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from dpfy.errors import LossError


@dataclass(frozen=True)
class Losses:
    """Per-example losses, and per-example statistics for the plan's side sums.

    Statistics leave a run only as released sums: those that the plan's query does not ask for are
    dropped.

    Args:
        loss: One loss per example, shape (examples,).
        stats: Statistics by name, each a dense tensor of real numbers with one row per example.
    """

    loss: torch.Tensor
    stats: Mapping[str, torch.Tensor] = field(default_factory=dict)


def per_example(returned: object, size: int) -> torch.Tensor:
    """Return the loss vector of ``size`` examples, or explain what ``loss_fn`` should return."""
    losses = returned.loss if isinstance(returned, Losses) else returned
    if not isinstance(losses, torch.Tensor):
        raise LossError(
            f"loss_fn returned a {type(losses).__name__}; return the tensor of per-example losses, "
            "or dpfy.Losses(loss, stats={...})."
        )
    if losses.shape != (size,):
        scalar = " A scalar mixes the examples: use reduction='none'." if losses.ndim == 0 else ""
        raise LossError(
            f"loss_fn returned shape {tuple(losses.shape)} for {size} examples; expected one loss "
            f"per example, shape ({size},).{scalar}"
        )
    if isinstance(returned, Losses):
        for name, values in returned.stats.items():
            if not isinstance(values, torch.Tensor) or values.shape[:1] != (size,):
                raise LossError(
                    f"The statistic {name!r} must be a tensor with one row per example ({size} "
                    "here)."
                )
            if values.layout is not torch.strided or values.is_complex():
                raise LossError(f"The statistic {name!r} must be a dense tensor of real numbers.")
    return losses


def statistics_of(returned: object) -> dict[str, torch.Tensor]:
    """Return the statistics that a loss function returned, off the graph and in float64."""
    stats = returned.stats if isinstance(returned, Losses) else {}
    return {name: values.detach().double() for name, values in stats.items()}


def shown_of_each(returned: object, size: int) -> torch.Tensor:
    """Return the loss and the statistics of each of ``size`` examples as one row."""
    losses = per_example(returned, size).detach().double().unsqueeze(1)
    return torch.cat(
        [losses, *(rows.reshape(size, -1) for rows in statistics_of(returned).values())], 1
    )


def identity(loss_fn: Any) -> Hashable:
    """Return a key that tells loss functions apart: their code, and the object whose method it is.

    A lambda inside of a loop is a new object in every turn, with the same code. The values that it
    reads may change between turns; :mod:`dpfy.checks.loss_state` compares those.

    >>> losses = [lambda x: x * factor for factor in (1.0, 2.0)]
    >>> identity(losses[0]) == identity(losses[1]), identity(partial(max)) == identity(partial(min))
    (True, False)
    """
    if isinstance(loss_fn, partial):
        return (partial, identity(loss_fn.func))
    if not hasattr(loss_fn, "__code__"):
        return _Identical(loss_fn)
    return (
        getattr(loss_fn, "__func__", loss_fn).__code__,
        _Identical(getattr(loss_fn, "__self__", None)),
    )


@dataclass(frozen=True, eq=False)
class _Identical:
    """Equal to holders of the very same object, which it keeps alive so that its id stays taken."""

    value: object

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identical) and other.value is self.value
