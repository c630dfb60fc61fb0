"""Measure what a private step takes, beside a step without privacy, on synthetic records.

Tests: tests/checks/test_check.py.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from dpfy.checks.check import Parts
from dpfy.checks.explain import as_chunk, weighted_outputs
from dpfy.checks.fields import Fields, made_up
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import per_example
from dpfy.run.resources import Resources, _gradients_kept, estimate_resources

_STEPS = 3


@dataclass(frozen=True)
class Expected:
    """Time and memory of private steps on this machine, and the time of plain ones."""

    resources: Resources
    plain_seconds: float

    @property
    def slowdown(self) -> float:
        """How many times as long a private step takes."""
        return self.resources.seconds(self.resources.batch_size) / max(self.plain_seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            **asdict(self.resources),
            "plain_seconds": self.plain_seconds,
            "slowdown": self.slowdown,
        }

    def __str__(self) -> str:
        found = self.resources
        private = 1e3 * found.seconds(found.batch_size)
        return (
            f"A private step of {found.batch_size:,} records takes {private:,.1f} ms, "
            f"{self.slowdown:.1f} times a plain one ({1e3 * self.plain_seconds:,.1f} ms), and the "
            f"process {found.peak_bytes / 2**20:,.0f} MB at its peak, with "
            f"{found.records_at_once:,} records at once; {found.bytes_per_record / 2**20:.3f} MB "
            "for each record more"
        )


def measure(made: Any, fields: Fields, batch_size: int) -> Expected:
    """Measure a step of a model on synthetic records; ``made`` is as for ``dpfy check``."""
    parts = Parts.of(made)
    return expected(parts.model, made_up(fields), parts.loss(fields), batch_size=batch_size)


def expected(
    model: nn.Module, batch: Any, loss_fn: LossFn | None = None, *, batch_size: int
) -> Expected:
    """Take a few private and a few plain steps of length 0 on synthetic records.

    The model stays as it was. Arguments are those of
    :func:`~dpfy.run.resources.estimate_resources`.
    """
    resources = estimate_resources(model, batch, loss_fn, batch_size=batch_size)
    made = as_chunk(batch)
    places = torch.arange(resources.records_at_once) % made.size
    with _gradients_kept(model), _buffers_kept(model):
        seconds = _plain(
            model, made.taken(places, 1), loss_fn or weighted_outputs(model), batch_size
        )
    return Expected(resources, seconds)


def _plain(model: nn.Module, chunk: Chunk, loss_fn: LossFn, batch_size: int) -> float:
    """The seconds of an ordinary step over as many records, in chunks of the same size."""
    own = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0, momentum=0.9)
    times = []
    for _ in range(_STEPS + 1):
        began = time.perf_counter()
        own.zero_grad()
        for start in range(0, batch_size, chunk.size):
            part = chunk.part(0, min(chunk.size, batch_size - start))
            (per_example(loss_fn(*part.arguments), part.size).sum() / batch_size).backward()
        own.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])  # torch loads what it needs at the first


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Give the buffers the values back that they had."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)
