"""Predict what a process of a sharded run has in memory at its peak, before there are processes.

Tests: tests/run/test_sharded_resources.py.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from dpfy import _validate
from dpfy.checks.explain import as_chunk, weighted_outputs
from dpfy.checks.probe import Probe
from dpfy.errors import InvalidArgument
from dpfy.gradients.base import LossFn
from dpfy.gradients.sharded.engine import CountingEngine, records_in_room
from dpfy.gradients.sharded.exchange import BUCKET
from dpfy.run.partition import BatchPartition

_BYTES = {"adam": 24, "sgd": 20}  # own parameter, gradient, states of the optimizer, float64 sum
_ROOMS = 4 * 4 * BUCKET  # of the exchange: two to send from and two to receive in
_LOADED = 450 * 2**20  # torch, dpfy, a process group, and what the probe leaves behind


@dataclass(frozen=True)
class ShardedResources:
    """Hold what one of several processes needs; printed, a few lines.

    Args:
        ranks: the number of processes.
        parameters: the number of trained parameters, of all processes.
        largest_unit: the numbers of the largest module that is gathered at once.
        numbers_per_record: the numbers that a record keeps in memory during a pass.
        records_at_once: the records of a pass, as one process expects them.
        peak_bytes: the peak of a process, in bytes.
    """

    ranks: int
    parameters: int
    largest_unit: int
    numbers_per_record: int
    records_at_once: int
    peak_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {self.ranks} processes\n"
            f"peak {self.peak_bytes / 2**20:,.0f} MB in each, with {self.records_at_once:,} "
            f"records at once, {4 * self.numbers_per_record / 2**20:.1f} MB for each of them; the "
            f"largest module that is gathered has {self.largest_unit:,} parameters"
        )


def estimate_sharded(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFn | None = None,
    *,
    batch_size: int,
    ranks: int,
    max_physical_batch: int | None = None,
    optimizer: str = "adam",
) -> ShardedResources:
    """Return what a process needs if a model is sharded layer by layer.

    Args:
        model: the model to train, whole; it is left as it is.
        batch: a collated batch of synthetic examples.
        loss_fn: the loss as a function of the fields of ``batch``. Default: a weighted sum of the
            outputs.
        batch_size: the expected number of records per step, of all processes.
        ranks: the number of processes.
        max_physical_batch: the most records in memory at once. Default: as suits the engine.
        optimizer: ``sgd``, with momentum, or ``adam``. Default: ``adam``.

    Returns:
        The prediction.

    Raises:
        InvalidArgument: if an argument is out of its range.
    """
    _validate.count("ranks", ranks)
    _validate.count("batch_size", batch_size)
    _validate.choice("optimizer", optimizer, tuple(_BYTES))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise InvalidArgument("Expected a model with parameters that require gradients.")
    judge = Probe(
        model, trained, loss_fn or weighted_outputs(model), as_chunk(batch), declared=True
    )
    engine = CountingEngine(model, trained)
    with judge.undisturbed():
        engine.prepare(judge.loss_fn, judge.input)
    own = sum(p.numel() for p in trained.values())
    frozen = sum(p.numel() for p in model.parameters()) - own
    room = records_in_room(own, ranks, engine.numbers_per_record)
    limit = min(room, max_physical_batch or room)
    expected = BatchPartition.planned(batch_size, limit, ranks)
    at_once = max(1, min(limit, -(-batch_size // expected.count)))
    unit = _largest_unit(model)
    peak = (
        _LOADED
        + (_BYTES[optimizer] * own + 4 * frozen) // ranks
        + 4 * engine.numbers_per_record * at_once
        + 3 * 4 * unit
        + _ROOMS
    )
    return ShardedResources(ranks, own, unit, engine.numbers_per_record, at_once, peak)


def _largest_unit(model: nn.Module) -> int:
    """Return the numbers of the largest module that is gathered at once, with those around it."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    longest = max(lists, key=len, default=())
    layers = [sum(p.numel() for p in layer.parameters()) for layer in longest]
    return max(sum(p.numel() for p in model.parameters()) - sum(layers), *layers, 0)
