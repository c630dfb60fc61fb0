"""Conformance of the rules of layers: equal to one record at a time, however a layer is used.

Tests: tests/gradients/bookkeeping/layers/test_rule_table.py.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import nn

from dpfy.gradients import BookkeepingEngine, Engine, GhostEngine, LoopEngine
from dpfy.gradients.base import LossFn
from dpfy.gradients.bookkeeping.layers import rule_for
from dpfy.gradients.chunk import Chunk
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.testing.engines import EngineCase, check_engine

_LEAST_RECORDS = 5
_GRID = 2.0**-60
_UNCLIPPED = 1e30
_CLOSE = 1e-5  # in float64
_CLOSE_IN_BF16 = 5e-2
_SHARE = 1.0 / 50  # of the sum's norm, as a bound: every record is clipped


def check_layer_rule(make: Callable[[], nn.Module], *inputs: torch.Tensor) -> None:
    """Check the rule of a layer against one record at a time, differentiated by plain autograd.

    Sums and norms must agree, for all records and for clipped ones, by the engines ``bookkeeping``
    and ``ghost``: with one call of the module, with two, with two modules that share all
    parameters, and with every selection of trained parameters. Norms must never be below those of
    what is added: for records that are huge, tiny, not finite, for time steps that cancel, and for
    short floats.

    Args:
        make: Makes a module of the kind; it is called on one tensor with the records first, and
            returns one tensor with the records first.
        inputs: Inputs of at least five records each, for example rows and sequences.

    Raises:
        AssertionError: There is no rule for the module, or it violates one of these.

    >>> check_layer_rule(lambda: nn.Linear(3, 2), torch.randn(5, 3), torch.randn(5, 4, 3))
    """
    assert inputs, "expected inputs to call the module on"
    for given in inputs:
        assert len(given) >= _LEAST_RECORDS, f"expected five records or more, got {len(given)}"
        for name, wrapped in _uses(make):
            _check_values(name, wrapped, given.double())
        for name, wrapped in _selections(make):
            _check_values(name, wrapped, given.double())
        for engine in (BookkeepingEngine, GhostEngine):
            check_engine(engine, EngineCase("one call", make, partial(_first, given)))
        _check_cancelling(make, given.double())
        _check_short_floats(make, given)


def _first(given: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    return (given[:size].clone(),)


class _OneCall(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class _TwoCalls(_OneCall):
    """One module on two inputs, whose cross terms count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(x).flatten(1), self.layer(0.5 - x).flatten(1)], 1)


class _Tied(_OneCall):
    """Two modules with the same parameters."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(layer)
        self.other = copy.deepcopy(layer)
        for name, parameter in layer.named_parameters():
            home, _, last = name.rpartition(".")
            setattr(self.other.get_submodule(home), last, parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(x).flatten(1), self.other(0.5 - x).flatten(1)], 1)


def _uses(make: Callable[[], nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield models that use the module in several ways."""
    for name, kind in (("one call", _OneCall), ("two calls", _TwoCalls), ("tied", _Tied)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            yield name, kind(make())


def _selections(make: Callable[[], nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the module with every selection of trained parameters, but all of them."""
    names = [name for name, _ in make().named_parameters()]
    for size in range(1, len(names)):
        for trained in combinations(names, size):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                layer = make()
            for name, parameter in layer.named_parameters():
                parameter.requires_grad_(name in trained)
            yield f"only {', '.join(trained)} trained", _OneCall(layer)


def _loss(model: nn.Module) -> LossFn:
    """Return the distance of the output from a pattern, so that every output has a gradient."""

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        output = model(x).flatten(1)
        pattern = torch.linspace(-1, 1, output.shape[1], dtype=output.dtype)
        return (output - pattern).square().mean(1) / 2

    return loss_fn


def _check_values(name: str, model: nn.Module, given: torch.Tensor) -> None:
    """Check the gradient and the norm of each record, and clipped sums."""
    model = model.double()
    expected = [_single(model, given[row : row + 1]) for row in range(len(given))]
    lengths = torch.stack([each.norm() for each in expected])
    total = torch.stack(expected).sum(0)
    for engine in (_Bookkeeping, _Ghost):
        prepared = _prepared(engine, model, given)
        found, norms = _sums(prepared, given, clip_to(_UNCLIPPED))
        _require_close(f"{name}: the sum", found, total, _CLOSE)
        least = lengths * (1 - 1e-12)
        assert bool((norms >= least).all()), f"{name}: a norm is below that of its gradient"
        _require_close(f"{name}: norms", norms, lengths, 1e-4)
        bound = float(lengths[lengths > 0].min()) / 2 if bool((lengths > 0).any()) else 1.0
        clipped = sum(
            (
                each * min(1.0, bound / float(n))
                for each, n in zip(expected, lengths, strict=True)
                if n > 0
            ),
            torch.zeros_like(total),
        )
        found, _ = _sums(prepared, given, clip_to(bound))
        _require_close(f"{name}: the clipped sum", found, clipped, 1e-4)


def _check_cancelling(make: Callable[[], nn.Module], given: torch.Tensor) -> None:
    """Check that a record whose parts cancel adds no more than its bound."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _TwoCalls(make().double())
    engine = _prepared(BookkeepingEngine, model, given)
    records = given.clone()
    records[0] = 0.5 - (1 - 2.0**-20) * (0.5 - records[0])
    for scale in (1.0, 1e4):
        for bound in (1.0, 1e-6):
            alone, _ = _sums(engine, records[:1] * scale, clip_to(bound))
            assert float(alone.norm()) <= bound * (1 + 1e-6), (
                f"a record whose terms cancel adds {float(alone.norm()) / bound:.3f} bounds"
            )


def _check_short_floats(make: Callable[[], nn.Module], given: torch.Tensor) -> None:
    """Check sums under autocast against the oracle's, and the bound on what is added."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _OneCall(make().float())
    given = given.float()

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        output = output.float().flatten(1)
        return (output - torch.linspace(-1, 1, output.shape[1])).square().mean(1) / 2

    oracle = LoopEngine(model, dict(model.named_parameters()))
    expected, _ = _sums((oracle, loss_fn), given, clip_to(_UNCLIPPED))
    engine = _prepared(_Bookkeeping, model, given, loss_fn)
    found, norms = _sums(engine, given, clip_to(_UNCLIPPED))
    _require_close("bf16: the sum", found, expected, _CLOSE_IN_BF16)
    bound = float(norms.max()) * _SHARE
    for row in range(len(given)):
        alone, _ = _sums(engine, given[row : row + 1], clip_to(bound))
        assert float(alone.norm()) <= bound * (1 + 1e-6), "bf16: a record exceeds its bound"


class _Bookkeeping(BookkeepingEngine):
    """Never hands a record to the oracle, which would then be compared with itself."""

    def _exact(self, *_: Any) -> Any:
        raise AssertionError("the rule does not cover a use, or gives numbers that are not finite")


class _Ghost(GhostEngine):
    """As above."""

    def _exact(self, *_: Any) -> Any:
        raise AssertionError("the rule does not cover a use, or gives numbers that are not finite")


def _prepared(
    kind: type[BookkeepingEngine] | type[GhostEngine],
    model: nn.Module,
    given: torch.Tensor,
    loss_fn: LossFn | None = None,
) -> tuple[Engine, LossFn]:
    """Return an engine that has learnt the model, in which every layer has its rule."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    engine, loss_fn = kind(model, trained), loss_fn or _loss(model)
    variants = (given, given.flip(0))
    engine.prepare(loss_fn, lambda size, seed: Chunk((variants[seed % 2][:size],), size))
    without = [layer for layer in engine.layers or () if layer.rule is None]
    for layer in without:
        reason = "there is none" if rule_for(layer.module) is None else "it refused this use"
        raise AssertionError(f"no rule served {type(layer.module).__name__}: {reason}")
    return engine, loss_fn


def _sums(
    prepared: tuple[Engine, LossFn], given: torch.Tensor, weigh: Callable[..., torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighed sum of all records as one vector, and their norms."""
    engine, loss_fn = prepared
    totals = [torch.zeros_like(p, dtype=torch.float64) for p in engine.parameters.values()]
    clipping = Clipping(weigh, _GRID, (0,) * len(totals))
    sums = engine.bounded_sums(loss_fn, Chunk((given,), len(given)), clipping)
    sums.add_to(totals)
    norms = torch.cat([seen.norms.sum(1) for seen in sums.seen]).sqrt()
    return torch.cat([total.flatten() for total in totals]), norms


def _single(model: nn.Module, record: torch.Tensor) -> torch.Tensor:
    """Return the gradient of one record."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return _sums((LoopEngine(model, trained), _loss(model)), record, clip_to(_UNCLIPPED))[0]


def _require_close(
    what: str, found: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> None:
    distance, scale = float((found - expected).norm()), float(expected.norm()) or 1.0
    assert distance <= tolerance * scale, (
        f"{what} differs from one record at a time by {distance / scale:.1e}"
    )
