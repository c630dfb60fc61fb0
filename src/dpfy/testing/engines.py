"""Conformance of engines: equal to one record at a time, bounded, unmoved by bad records.

Tests: tests/gradients/test_engines.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpfy.gradients import Engine, LoopEngine
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import ClipEach, Clipping

_GRID = 2.0**-40
_POISONS = (float("nan"), float("inf"), -float("inf"), 1e38, 1e-45)


@dataclass(frozen=True)
class EngineCase:
    """A model with a loss, and a function that makes its input.

    Args:
        name: The name of the case.
        model: Makes the model.
        example: Makes the fields of a number of examples, floating-point fields first.
    """

    name: str
    model: Callable[[], nn.Module]
    example: Callable[[int], tuple[torch.Tensor, ...]]

    def loss(self, model: nn.Module) -> Callable[..., torch.Tensor]:
        """Return the loss: half the mean squared distance of the output from a fixed pattern."""

        def loss_fn(*fields: torch.Tensor) -> torch.Tensor:
            output = model(*fields).flatten(1)
            pattern = torch.linspace(-1, 1, output.shape[1]).to(output)
            return (output - pattern).square().mean(1) / 2

        return loss_fn


class _Tied(nn.Module):
    """One weight in two places, and one module used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(torch.tanh(self.first(x)))))


class _Bias(nn.Module):
    """A parameter outside of any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(0, 1, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.shift)


class _Recurrent(nn.Module):
    """A recurrent layer and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


class _TimeFirst(nn.Module):
    """A model whose layers have the records on the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 3, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x.transpose(0, 1))[0].transpose(0, 1)


class _Attention(nn.Module):
    """Attention of records to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class _Tokens(nn.Module):
    """An embedding of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, scale: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens).mean(1) * scale)


def _floats(*shape: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """Return a function that makes random numbers of a shape."""
    return lambda size: (torch.randn(size, *shape),)


ENGINE_CASES = (
    EngineCase(
        "linear", lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), _floats(6)
    ),
    EngineCase("linear on sequences", lambda: nn.Linear(6, 3), _floats(5, 6)),
    EngineCase("conv1d", lambda: nn.Conv1d(2, 3, 3, stride=2), _floats(2, 9)),
    EngineCase(
        "conv2d",
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 2, groups=2)
        ),
        _floats(2, 6, 6),
    ),
    EngineCase(
        "layer norm", lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4)), _floats(3, 6)
    ),
    EngineCase(
        "group norm",
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)),
        _floats(2, 5, 5),
    ),
    EngineCase("tied and reused", _Tied, _floats(5)),
    EngineCase("bare parameter", _Bias, _floats(5)),
    EngineCase("lstm", _Recurrent, _floats(5, 4)),
    EngineCase("gru, time first", _TimeFirst, _floats(5, 4)),
    EngineCase("attention", _Attention, _floats(4, 8)),
    EngineCase(
        "embedding", _Tokens, lambda size: (torch.rand(size, 1), torch.randint(7, (size, 5)))
    ),
)
"""Models that every engine is tried on."""


def check_engine(
    engine: type[Engine],
    case: EngineCase,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    grouped: bool = False,
    device: torch.device | str = "cpu",
) -> None:
    """Check one engine on one model against the oracle.

    Its sums must equal those of one record at a time for any chunking, no record may move a sum by
    more than its bound, which may be its own, and records that are not finite must leave the others
    alone.

    Args:
        engine: The class of the engine.
        case: The model, its loss and its input.
        dtype: The precision of the model.
        seed: The seed of weights and input.
        grouped: Whether every parameter is a group with a bound of its own.
        device: The device of the model and its input.

    Raises:
        AssertionError: The engine violates one of these.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = case.model().to(device, dtype)
        fields, *others = (
            tuple(
                field.to(device, dtype) if field.is_floating_point() else field.to(device)
                for field in case.example(5)
            )
            for _ in range(3)
        )
    tolerance = 1e-5 if dtype == torch.float64 else 1e-4
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    subject = _Subject(engine(model, trained), case.loss(model), grouped)
    oracle = _Subject(LoopEngine(model, trained), case.loss(model), grouped)
    subject.engine.prepare(
        subject.loss_fn,
        lambda size, variant: Chunk(
            tuple(field[:size] for field in others[variant % len(others)]), size
        ),
    )
    norm = float(oracle.sums(fields, 1e9).norm())
    for bound in (norm / 50, 1e9):  # all clipped; none clipped
        expected = oracle.sums(fields, bound)
        _close(
            subject.sums(fields, bound),
            expected,
            tolerance,
            f"{case.name}: differs from the oracle",
        )
        halves = subject.sums(tuple(f[:2] for f in fields), bound) + subject.sums(
            tuple(f[2:] for f in fields), bound
        )
        _close(halves, expected, tolerance, f"{case.name}: depends on the chunking")
    _check_bound(subject, fields, norm / 50, case.name)
    _check_poisons(subject, fields, norm / 50, tolerance, case.name)
    _check_factors(subject, oracle, fields, norm / 50, tolerance, case.name)


@dataclass(frozen=True)
class _Subject:
    """An engine with a loss."""

    engine: Engine
    loss_fn: Callable[..., Any]
    grouped: bool

    def sums(
        self, fields: tuple[torch.Tensor, ...], bound: float, factors: tuple[float, ...] = ()
    ) -> torch.Tensor:
        """Return the clipped sums of a chunk, whose records may have factors of the bound."""
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in self.engine.parameters.values()]
        groups = tuple(range(len(totals))) if self.grouped else (0,) * len(totals)
        count = max(groups) + 1
        clip = ClipEach((bound / math.sqrt(count),) * count)
        clipping = Clipping(clip, _GRID, groups, factors=factors)
        self.engine.bounded_sums(self.loss_fn, Chunk(fields, len(fields[0])), clipping).add_to(
            totals
        )
        return torch.cat([total.flatten() for total in totals])


def _check_bound(
    subject: _Subject, fields: tuple[torch.Tensor, ...], bound: float, name: str
) -> None:
    """Check that a record moves the sum by at most the bound, however large its input is."""
    rest = subject.sums(tuple(f[1:] for f in fields), bound)
    for scale in (1.0, 1e3, 1e6):
        first = (torch.cat([fields[0][:1] * scale, fields[0][1:]]), *fields[1:])
        moved = float((subject.sums(first, bound) - rest).norm())
        assert moved <= bound * (1 + 1e-6), (
            f"{name}: one record moved the sum by {moved / bound:.3f} bounds"
        )


def _check_poisons(
    subject: _Subject, fields: tuple[torch.Tensor, ...], bound: float, tolerance: float, name: str
) -> None:
    """Check NaN, infinite, huge and subnormal records: bounded, and without effect on others."""
    rest = subject.sums(tuple(f[1:] for f in fields), bound)
    for poison in _POISONS:
        first = (torch.cat([torch.full_like(fields[0][:1], poison), fields[0][1:]]), *fields[1:])
        moved = subject.sums(first, bound) - rest
        assert bool(moved.isfinite().all()), (
            f"{name}: a record of {poison} makes the sum non-finite"
        )
        limit = bound * (1 + 1e-6) + tolerance * float(rest.norm())
        assert float(moved.norm()) <= limit, f"{name}: a record of {poison} exceeds the bound"


def _check_factors(
    subject: _Subject,
    oracle: _Subject,
    fields: tuple[torch.Tensor, ...],
    bound: float,
    tolerance: float,
    name: str,
) -> None:
    """Check bounds of the records' own, also where some of them have to be computed apart."""
    factors = tuple(2.0 ** (place % 4 - 2) for place in range(len(fields[0])))
    poisoned = fields[0].clone()
    poisoned[1] = torch.nan if poisoned.is_floating_point() else poisoned[1]
    for first in (fields[0], poisoned):
        given = (first, *fields[1:])
        expected = oracle.sums(given, bound, factors)
        found = subject.sums(given, bound, factors)
        _close(found, expected, tolerance, f"{name}: bounds of records are not their own")


def _close(found: torch.Tensor, expected: torch.Tensor, tolerance: float, message: str) -> None:
    """Whether sums are equal up to a tolerance."""
    distance = float((found - expected).norm())
    scale = float(expected.norm()) or 1.0
    assert distance <= tolerance * scale, (
        f"{message}: relative distance {distance / scale:.2e} > {tolerance:.0e}"
    )
