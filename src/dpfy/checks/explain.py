"""The cost of private steps, layer by layer, and how to reduce it, from synthetic input only."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import nn

from dpfy.checks.model_kinds import require_python_modules
from dpfy.checks.places import at, stopped_at
from dpfy.checks.probe import Probe
from dpfy.errors import InvalidArgument
from dpfy.gradients import BookkeepingEngine, Engine, GhostEngine
from dpfy.gradients.base import LossFn, Unsupported
from dpfy.gradients.bookkeeping.capture import CapturedLayer, observe
from dpfy.gradients.bookkeeping.contributions import (
    Contribution,
    Materialized,
    OuterProduct,
    Rematerialized,
)
from dpfy.gradients.bookkeeping.costs import cheapest_kept, cheapest_measured, outer_costs
from dpfy.gradients.bookkeeping.embedding_rows import EmbeddingRows, TiedEmbedding
from dpfy.gradients.bookkeeping.recorder import Consumer, Parts
from dpfy.gradients.chunk import Chunk, UnsupportedField
from dpfy.records.example import rows_of
from dpfy.sandbox.uncompiled import uncompiled

_FEW_RECORDS = 8  # in a chunk: too few for the hardware to be busy
_HEADINGS = ("layer", "kind", "input", "way", "extra work", "numbers kept")


@dataclass(frozen=True)
class LayerCost:
    """The cost that one layer adds to a private step, for each record.

    Args:
        layer: The name of the layer.
        kind: Its class.
        inputs: The shape of its first input.
        way: How its gradients are computed: ``ghost``, ``keep`` or ``blocks``, for example.
        extra_multiplications: The multiplications per record beyond ordinary training.
        numbers_kept: The numbers per record that are kept until the weights are known.
    """

    layer: str
    kind: str
    inputs: tuple[int, ...]
    way: str
    extra_multiplications: float
    numbers_kept: int


@dataclass(frozen=True)
class Explanation:
    """The engine that would be chosen and its costs; prints as a table.

    Args:
        engine: The name of the engine.
        records_at_once: The number of records that it computes at once; None for any.
        layers: The cost of each layer.
        advice: What makes steps slow, and what to do about it.
    """

    engine: str
    records_at_once: int | None
    layers: tuple[LayerCost, ...]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        rows = [
            (
                row.layer,
                row.kind,
                "×".join(map(str, row.inputs)),
                row.way,
                f"{row.extra_multiplications:,.0f}",
                f"{row.numbers_kept:,}",
            )
            for row in self.layers
        ]
        rows.append(
            (
                "total",
                "",
                "",
                "",
                f"{sum(row.extra_multiplications for row in self.layers):,.0f}",
                f"{sum(row.numbers_kept for row in self.layers):,}",
            )
        )
        widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if place < 4 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (_HEADINGS, *rows)
        ]
        at_once = (
            "any number of records"
            if self.records_at_once is None
            else f"{self.records_at_once:,} records"
        )
        head = f"engine {self.engine!r}, {at_once} at once"
        return "\n".join(
            [head, *(lines if self.layers else []), *(f"* {advice}" for advice in self.advice)]
        )


def explain(model: nn.Module, batch: Any, loss_fn: LossFn | None = None) -> Explanation:
    """Explain how a model's per-record gradients would be computed, at what cost, and what is slow.

    Work is counted in multiplications per record beyond those of ordinary training, memory in
    numbers per record that are kept until the weights are known.

    Args:
        model: The module to train.
        batch: A collated batch of *synthetic* examples, as ``example_input`` of
            :func:`dpfy.privatize`: a tensor, or a tuple or dict of tensors. What is shown depends
            on it, so it must not be private.
        loss_fn: A function from the fields of the batch to one loss per example, as in training;
            by
            default the sum of the model's outputs.

    Returns:
        The engine, its costs and advice.

    Raises:
        InvalidArgument: The model has nothing to train, or the batch cannot be divided by records.

    >>> model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    >>> found = explain(model, torch.rand(4, 784))
    >>> found.engine, [layer.way for layer in found.layers]
    ('bookkeeping', ['ghost', 'ghost'])

    Reference: Z. Bu et al., Differentially Private Optimization on Large Model at Small Cost,
    2023.
    """
    require_python_modules(model)
    chunk = as_chunk(batch)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise InvalidArgument(
            "Expected a model with parameters that require gradients; all of them are frozen."
        )
    loss_fn = loss_fn or weighted_outputs(model)
    engine = Probe(model, trained, loss_fn, chunk, declared=True).choose("auto")
    if not isinstance(engine, BookkeepingEngine | GhostEngine):
        return Explanation(
            engine.name, engine.records_at_once, (), (_why_not(model, trained, loss_fn, chunk),)
        )
    layers = _layers(engine, loss_fn, chunk)
    return Explanation(engine.name, engine.records_at_once, tuple(layers), tuple(_advice(engine)))


def as_chunk(batch: Any) -> Chunk:
    """Return a collated batch of synthetic examples as a chunk."""
    try:
        rows = rows_of(batch)
    except InvalidArgument:
        raise InvalidArgument(
            "Expected batch to be a tensor with one row per example, or a tuple or dict of them."
        ) from None
    try:
        return Chunk.of(batch, rows)
    except UnsupportedField as error:
        raise InvalidArgument(
            f"Expected batch to hold one row per example in every field; it has {error}."
        ) from None


def weighted_outputs(model: nn.Module) -> Callable[..., torch.Tensor]:
    """Return a stand-in for a loss: a weighted sum of a record's outputs.

    The plain sum of what a normalisation returns is zero, of which only rounding error is left.
    """

    def loss(*fields: Any) -> torch.Tensor:
        outputs = model(**fields[0]) if _takes_names(model, fields) else model(*fields)
        if not isinstance(outputs, torch.Tensor):
            raise TypeError("the model returns more than a tensor: pass loss_fn=")
        return weighted_sum(outputs)

    return loss


def _takes_names(model: nn.Module, fields: tuple[Any, ...]) -> bool:
    """Whether a model is to be called with the items of a mapping by name, as transformers' are."""
    if len(fields) != 1 or not isinstance(fields[0], Mapping):
        return False
    try:
        inspect.signature(model.forward).bind(**fields[0])
    except TypeError:
        return False
    return True


def weighted_sum(outputs: torch.Tensor) -> torch.Tensor:
    """Return one number for each record: a weighted sum of its outputs."""
    if outputs.ndim == 1:
        return outputs
    flat = outputs.flatten(1)
    weights = torch.linspace(1, 2, flat.shape[1], device=flat.device)
    return (flat * weights.to(flat.dtype)).sum(1)


class _Noting(Consumer):
    """Notes the forms and costs of contributions and drops them."""

    def __init__(self, form: Callable[[OuterProduct], Contribution], records: int) -> None:
        self.found: dict[int, list[tuple[str, float, int]]] = {}
        self._form, self._records = form, records

    def take(self, position: int, parts: Parts) -> None:
        self.found[position] = [
            (*_cost(part), _numbers(part) // self._records) for _, part in parts
        ]

    def form(self, outer: OuterProduct) -> Contribution:
        return self._form(outer)


@singledispatch
def _cost(part: Contribution) -> tuple[str, float]:
    """Return the form and the extra multiplications per record of a contribution."""
    raise TypeError(f"no cost is known for {type(part).__name__}")


@_cost.register
def _(part: Materialized) -> tuple[str, float]:
    return "keep", outer_costs(1, 1, part.gradients[:, 0].numel())["keep"]


@_cost.register
def _(part: OuterProduct) -> tuple[str, float]:
    way = "blocks" if isinstance(part, Rematerialized) else "ghost"
    return way, outer_costs(part.inputs.shape[1], part.inputs.shape[2], part.outputs.shape[2])[way]


@_cost.register
def _(part: EmbeddingRows) -> tuple[str, float]:
    return "rows", float(part.outputs[0].numel())


@_cost.register
def _(part: TiedEmbedding) -> tuple[str, float]:
    way, cost = _cost(part.outer)
    return f"rows, {way}", cost + _cost(part.rows)[1]


def _numbers(part: Contribution) -> int:
    """Return how many numbers a contribution keeps, for all records."""
    if isinstance(part, TiedEmbedding):
        return _numbers(part.rows) + _numbers(part.outer)
    return sum(tensor.numel() for tensor in vars(part).values() if isinstance(tensor, torch.Tensor))


def _layers(
    engine: BookkeepingEngine | GhostEngine, loss_fn: LossFn, chunk: Chunk
) -> list[LayerCost]:
    """Return a row for every layer, and one for every parameter that is used outside of them."""
    layers = engine.layers or []
    with torch.no_grad(), uncompiled():
        seen = observe(
            {layer.name: layer.module for layer in layers},
            lambda: loss_fn(*chunk.arguments),
            values=False,
        )
    noting = _Noting(
        cheapest_measured if isinstance(engine, GhostEngine) else cheapest_kept, chunk.size
    )
    engine._pass(loss_fn, chunk, noting)
    positions = {id(parameter): place for place, parameter in enumerate(engine.parameters.values())}
    rows = []
    for layer in layers:
        largest_first = sorted(layer.module.parameters(), key=torch.numel, reverse=True)
        own = [place for p in largest_first if (place := positions.pop(id(p), None)) is not None]
        found = [part for place in own for part in noting.found[place]]
        inputs = next(
            (tuple(leaf.shape) for leaf in seen.inputs[layer.name][0] if leaf is not None), ()
        )
        rows.append(
            _row(
                layer.name or "model",
                type(layer.module).__name__,
                inputs,
                _way(layer, found),
                found,
            )
        )
    names = list(engine.parameters)
    return rows + [
        _row(names[place], "parameter", (), "copies", noting.found[place])
        for place in positions.values()
        if noting.found[place]
    ]


def _way(layer: CapturedLayer, found: Sequence[tuple[str, float, int]]) -> str:
    """Return the form that the largest of a layer's parameters has."""
    if layer.rule is None:
        return "vectorised"
    return found[0][0] if found else "shared"


def _row(
    name: str, kind: str, inputs: tuple[int, ...], way: str, found: Sequence[tuple[str, float, int]]
) -> LayerCost:
    """Return the costs of one layer."""
    return LayerCost(
        name,
        kind,
        inputs,
        way,
        sum(cost for _, cost, _ in found),
        sum(kept for _, _, kept in found),
    )


def _advice(engine: BookkeepingEngine | GhostEngine) -> list[str]:
    """Return what makes steps slow, and what to do about it."""
    advice = [
        f"{layer.name!r} ({type(layer.module).__name__}) has no rule of its own and is vectorised. "
        "Built from layers of torch.nn it would be faster; the other layers are not affected."
        for layer in engine.layers or []
        if layer.rule is None
    ]
    if (engine.records_at_once or _FEW_RECORDS) < _FEW_RECORDS:
        advice.append(
            f"Only {engine.records_at_once} records fit into memory at once. Shorter sequences or "
            "smaller images help, and so does freezing layers."
        )
    return advice


def _why_not(
    model: nn.Module, trained: dict[str, nn.Parameter], loss_fn: LossFn, chunk: Chunk
) -> str:
    """Return why the fast engines are not used."""
    engine: Engine = BookkeepingEngine(model, trained)
    if doubt := Probe(model, trained, loss_fn, chunk, declared=True).doubts()(engine):
        return (
            f"Records are computed apart: {doubt}. Write the model and the loss without if, "
            ".item() or indexing by values, and without anything that several records have a part "
            "in."
        )
    try:
        engine.prepare(loss_fn, lambda size, seed: _repeated(chunk, size))
    except Unsupported as error:
        reason = error or "a layer is used in a way that no rule knows"
        return f"The fast engine cannot serve this model: {reason}{at(stopped_at(error))}."
    except Exception as error:  # torch's own refusal, on the synthetic input
        said = f"{type(error).__name__}: {error}"
        return f"The fast engine cannot serve this model ({said}){at(stopped_at(error))}."
    return (
        "The fast engine does not give the gradients that one example at a time gives. Please "
        "report this model."
    )


def _repeated(chunk: Chunk, size: int) -> Chunk:
    return Chunk.joined([chunk.record(place % chunk.size) for place in range(size)])
