"""Measure what a private step takes in memory and time, in a few steps on synthetic records."""

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from dpfy import _validate
from dpfy.checks.explain import as_chunk, explain, weighted_outputs, weighted_sum
from dpfy.checks.fields import Fields, loss_of_fields, made_up, outputs_of_fields, shapes_of
from dpfy.errors import InvalidArgument
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.ledger import Ledger
from dpfy.plans import dpsgd
from dpfy.run.privatize import privatize
from dpfy.run.sharded_resources import ShardedResources, estimate_sharded

_FEW = 16  # records of the smaller of two measurements
_CHUNKS = 3  # of the larger one: what a chunk leaves behind is then in memory, as in a long run
_STEPS = 3
_OPTIMIZERS: dict[str, Any] = {  # steps of length 0 leave the parameters as they are
    "sgd": partial(torch.optim.SGD, lr=0.0, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.0),
}


@dataclass(frozen=True)
class Resources:
    """Hold what private steps of one model take on this machine; printed, a few lines.

    Memory is that of the whole process (of the allocator, on an accelerator) at its peak. It grows
    with the records in memory at once, a chunk, and not with the batch: a batch of any size is
    computed in chunks.

    Args:
        engine: the name of the engine.
        parameters: the number of trained parameters.
        batch_size: the expected number of records per step.
        records_at_once: the records in memory at once.
        peak_bytes: the peak of memory, in bytes.
        bytes_per_record: the memory that one more record at once takes, in bytes.
        seconds_per_record: the time of one more record, in seconds.
        seconds_per_step: the time of noise, optimizer and ledger, in seconds.
    """

    engine: str
    parameters: int
    batch_size: int
    records_at_once: int
    peak_bytes: int
    bytes_per_record: float
    seconds_per_record: float
    seconds_per_step: float
    """Beyond what the records take: noise, the optimizer, the ledger in memory."""

    def seconds(self, batch_size: float, steps: int = 1) -> float:
        """Return how long ``steps`` of this expected batch size take."""
        return steps * (self.seconds_per_step + batch_size * self.seconds_per_record)

    def epochs_within(self, seconds: float, records: int, batch_size: float) -> float:
        """Return how many epochs fit into this time."""
        return (
            seconds / self.seconds(batch_size, 1) * batch_size / _validate.count("records", records)
        )

    def largest_batch(self, seconds: float, steps: int) -> int:
        """Return the largest expected batch of which ``steps`` fit into a time; 0 if none."""
        left = seconds / _validate.count("steps", steps) - self.seconds_per_step
        return max(0, math.floor(left / self.seconds_per_record))

    def largest_chunk(self, memory: float) -> int:
        """Return the largest ``max_physical_batch`` for a peak in bytes; 0 if none."""
        spare = memory - (self.peak_bytes - self.records_at_once * self.bytes_per_record)
        return max(0, math.floor(spare / self.bytes_per_record))

    def __str__(self) -> str:
        return (
            f"engine {self.engine!r}, {self.parameters:,} parameters\n"
            f"peak {self.peak_bytes / 2**20:,.0f} MB with {self.records_at_once:,} records at "
            "once, "
            f"{self.bytes_per_record / 2**20:.3f} MB for each of them\n"
            f"{1e3 * self.seconds(self.batch_size):,.1f} ms for a step of {self.batch_size:,}: "
            f"{1e3 * self.seconds_per_record:.3f} ms per record and "
            f"{1e3 * self.seconds_per_step:.1f} ms besides"
        )


def estimate_resources(
    model: nn.Module,
    batch: Any,
    loss_fn: LossFn | None = None,
    *,
    batch_size: int,
    max_physical_batch: int | None = None,
    optimizer: str = "sgd",
) -> Resources:
    """Take a few private steps of length 0 on synthetic records, and return what they took.

    No record is read, nothing is spent, and the model stays as it was. Peaks are measured and not
    counted, because kernels take memory that no formula of weights and activations knows: the
    review's b·C + (1 + b)·L (Section 4.3) is that of an engine which keeps every record's gradient.

    Args:
        model: the model to train.
        batch: a collated batch of synthetic examples.
        loss_fn: the loss as a function of the fields of ``batch``. Default: a weighted sum of the
            outputs.
        batch_size: the expected number of records per step.
        max_physical_batch: the most records in memory at once. Default: as suits the engine.
        optimizer: ``sgd``, with momentum, or ``adam``. Default: ``sgd``.

    Returns:
        Memory in bytes and time in seconds.

    Raises:
        InvalidArgument: if an argument is out of its range.

    >>> found = estimate_resources(nn.Linear(10, 2), torch.rand(4, 10), batch_size=64)
    >>> found.engine, found.parameters, found.largest_batch(seconds=0.0, steps=1)
    ('bookkeeping', 22, 0)
    """
    chunk, loss = as_chunk(batch), loss_fn or weighted_outputs(model)
    _validate.count("batch_size", batch_size)
    _validate.choice("optimizer", optimizer, tuple(_OPTIMIZERS))
    chosen = explain(model, chunk.arguments, loss)
    at_once = min(
        limit for limit in (batch_size, chosen.records_at_once, max_physical_batch) if limit
    )
    with _gradients_kept(model):
        _measured(
            model, chunk, loss, 2, max_physical_batch, optimizer
        )  # what torch loads on first use
        few = _measured(
            model, chunk, loss, max(1, min(_FEW, at_once // 2)), max_physical_batch, optimizer
        )
        many = _measured(
            model, chunk, loss, min(batch_size, _CHUNKS * at_once), max_physical_batch, optimizer
        )
    per_record = (
        max(0.0, many.seconds - few.seconds) / max(1, many.batch - few.batch)
        or many.seconds / many.batch
    )
    return Resources(
        engine=chosen.engine,
        parameters=sum(p.numel() for p in model.parameters()),
        batch_size=batch_size,
        records_at_once=many.at_once,
        peak_bytes=many.peak,
        bytes_per_record=max(1.0, (many.peak - few.peak) / max(1, many.at_once - few.at_once)),
        seconds_per_record=per_record,
        seconds_per_step=max(0.0, few.seconds - few.batch * per_record),
    )


def measure_made(made: Any, fields: Fields, batch_size: int) -> Resources:
    """Return the resources of a model, or a tuple of model and loss, on records of given fields.

    Without a loss, a last field of one whole number is a class.
    """
    model, loss_fn = _parts(made, fields)
    return estimate_resources(model, made_up(fields), loss_fn, batch_size=batch_size)


def predict_made(made: Any, fields: Fields, batch_size: int, ranks: int) -> ShardedResources:
    """Return what a process needs if the model is sharded; ``made`` is as for `measure_made`."""
    model, loss_fn = _parts(made, fields)
    return estimate_sharded(model, made_up(fields), loss_fn, batch_size=batch_size, ranks=ranks)


def _parts(made: Any, fields: Fields) -> tuple[nn.Module, LossFn]:
    """Return a model and its loss on fields."""
    model, *rest = made if isinstance(made, tuple) and made else (made,)
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            "Expected a torch.nn.Module, or a tuple that begins with one; got a "
            f"{type(model).__name__}."
        )
    loss = next((part for part in rest if callable(part)), None)
    if loss is None and len(fields) > 1 and shapes_of(fields)[-1] == ("int64", ()):
        loss = F.cross_entropy
    if loss is not None:
        return model, loss_of_fields(model, loss, fields)
    outputs = outputs_of_fields(model, fields)
    return model, lambda *values: weighted_sum(outputs(*values))


@dataclass(frozen=True)
class _Measurement:
    batch: int
    at_once: int
    peak: int
    seconds: float


class _MadeUp(Dataset[Any]):
    """Repeat the same few synthetic records."""

    def __init__(self, chunk: Chunk, records: int) -> None:
        self.records, self.made_up = (
            records,
            [self._fields(chunk, place) for place in range(chunk.size)],
        )

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Any:
        return self.made_up[index % len(self.made_up)]

    @staticmethod
    def _fields(chunk: Chunk, place: int) -> tuple[Any, ...]:
        return tuple(field[0] for field in chunk.record(place).arguments)


def _measured(
    model: nn.Module,
    chunk: Chunk,
    loss: LossFn,
    batch: int,
    max_physical_batch: int | None,
    optimizer: str,
) -> _Measurement:
    """Take a few steps whose samples are all records, so that they have no luck."""
    own = _OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])
    plan = dpsgd(records=batch, batch_size=batch, steps=_STEPS, clip=1e-3, noise_multiplier=1e-3)
    device, times = next(model.parameters()).device, []
    _reset_peak(device)
    with privatize(
        model,
        own,
        _MadeUp(chunk, batch),
        plan,
        Ledger.in_memory(),
        max_physical_batch=max_physical_batch,
        example_input=chunk.arguments,
        announce=False,
    ) as run:
        for step in run:
            began = time.perf_counter()
            own.zero_grad()
            run.backward(loss, step)
            own.step()
            times.append(time.perf_counter() - began)
        largest = run.largest_chunk
    own.zero_grad()
    # The first step probes the model; a run of many steps does not.
    return _Measurement(
        batch, min(batch, largest or batch), _peak(device), statistics.median(times[1:])
    )


@contextmanager
def _gradients_kept(model: nn.Module) -> Iterator[None]:
    """Give the parameters the gradients back that they had."""
    gradients = [(p, p.grad) for p in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _reset_peak(device: torch.device) -> None:
    """Forget the last peak, where the system can: elsewhere it is that of the process so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        import resource  # which Windows lacks
        import sys

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    return next(
        int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")
    )
