"""Requirements on models and losses that need no comparison of records.

Tests: tests/checks/test_probe.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def without_scalers() -> Iterator[None]:
    """Refuse losses that are scaled for float16 inside the block."""
    original = torch.amp.GradScaler.scale

    def scale(self: torch.amp.GradScaler, outputs: Any) -> Any:
        if not self.is_enabled():
            return original(self, outputs)
        raise LossError(
            "loss_fn scales losses with a GradScaler. Gradients are clipped and released as the "
            "loss gives them, so that a scale changes what the clip bound means and scaler.step "
            "divides released gradients by it. Use torch.autocast with torch.bfloat16, which needs "
            "no GradScaler."
        )

    try:
        setattr(torch.amp.GradScaler, "scale", scale)  # noqa: B010 - a method of torch's
        yield
    finally:
        setattr(torch.amp.GradScaler, "scale", original)  # noqa: B010


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
