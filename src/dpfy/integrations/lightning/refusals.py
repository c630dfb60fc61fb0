"""Refuse settings of a Lightning trainer that would change what a step is."""

from typing import Any

import torch
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy

from dpfy.errors import InvalidArgument


def check_module(module: Any) -> None:
    """Refuse a module without per-example losses.

    Args:
        module: The LightningModule.

    Raises:
        InvalidArgument: It has no method ``per_example_loss``.
    """
    if not callable(getattr(module, "per_example_loss", None)):
        raise InvalidArgument(
            f"{type(module).__name__} has no method per_example_loss(*fields) that returns one "
            "loss for each record, such as cross_entropy(self(x), y, reduction='none')."
        )


def check_trainer(trainer: Any) -> None:
    """Refuse settings that would change what a step is, or that read records without paying.

    Args:
        trainer: The trainer of Lightning.

    Raises:
        InvalidArgument: A setting is refused; the message says what to use instead.
    """
    for refused, reason in (
        (
            bool(trainer.gradient_clip_val),
            "gradient_clip_val would change released gradients, and records are clipped already by "
            "the plan's clip. Leave it out; or override configure_gradient_clipping and clip "
            "inside of `with callback.run.postprocessing():`.",
        ),
        (
            trainer.accumulate_grad_batches != 1,
            "accumulate_grad_batches would add up several steps. Give the plan the batch_size that "
            "you want; max_physical_batch= limits the records in memory at once.",
        ),
        (
            type(trainer.strategy) is not SingleDeviceStrategy or _ranks() > 1,
            "Strategies of several processes average raw gradients. Use devices=1; for several "
            "processes write the loop yourself, whose run divides the work "
            "(docs/how-to/distributed.md).",
        ),
        (
            not _allowed(trainer.precision_plugin),
            f"precision={trainer.precision!r} scales gradients or converts parameters. Use "
            "'32-true' or 'bf16-mixed'.",
        ),
        (
            any(isinstance(c, BatchSizeFinder | LearningRateFinder) for c in trainer.callbacks),
            "Finders of a batch size or a learning rate take steps on private data and throw them "
            "away. Search on public data first, or with `dpfy tune`.",
        ),
    ):
        if refused:
            raise InvalidArgument(reason)


def _allowed(plugin: Any) -> bool:
    """Whether a precision computes in float32, or by autocast without a scale."""
    mixed = type(plugin) is MixedPrecision and plugin.scaler is None
    return type(plugin) is Precision or mixed


def _ranks() -> int:
    distributed = torch.distributed
    there = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if there else 1
