"""Requirements on models and losses that need no comparison of records.

Tests: tests/checks/test_probe.py.
"""

from collections.abc import Mapping

import torch
from torch import nn

from dpfy.errors import IsolationError, LossError
from dpfy.mechanisms.query import Statistic


def check_layers(model: nn.Module) -> None:
    """Refuse layers that rescale rows which have grown; synthetic input may not show it."""
    for name, module in model.named_modules():
        if getattr(module, "max_norm", None) is not None:
            raise IsolationError(
                f"The module {name!r} ({type(module).__name__}) has max_norm, which rewrites "
                "the rows that the records use. Make it with max_norm=None."
            )


def check_statistics(statistics: tuple[Statistic, ...], stats: Mapping[str, torch.Tensor]) -> None:
    """Refuse a loss that does not return what the plan wants to release."""
    for statistic in statistics:
        if type(statistic) is not Statistic:  # the others are not for the loss to give
            continue
        if statistic.name not in stats:
            given = ", ".join(map(repr, stats)) or "none"
            raise LossError(
                f"The plan releases the statistic {statistic.name!r}, and loss_fn returns "
                f"{given}. Return dpfy.Losses(loss, stats={{name: one row per example}})."
            )
        if (shape := tuple(stats[statistic.name].shape[1:])) != statistic.shape:
            raise LossError(
                f"The plan declares the statistic {statistic.name!r} with the shape "
                f"{statistic.shape} per example; loss_fn returns {shape}."
            )
