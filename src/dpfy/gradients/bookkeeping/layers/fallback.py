"""Modules without a rule: vectorised over records, with a copy of the parameters for each.

Tests: tests/gradients/bookkeeping/test_capture.py.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.contributions import Materialized
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import CaptureGrad, Recorder


@dataclass(frozen=True)
class Layouts:
    """The layout of each leaf of a module's inputs and outputs; None for those without records."""

    inputs: Sequence[Layout | None]
    outputs: Sequence[Layout | None]


def fallback(
    module: nn.Module, recorder: Recorder, layouts: Layouts, *args: Any, **kwargs: Any
) -> Any:
    """Call a module without a rule on one record at a time, vectorised by ``vmap``."""
    leaves, structure = tree_flatten((args, kwargs))
    if len(leaves) != len(layouts.inputs):
        raise Unsupported
    batched = [
        leaf if layout is None else layout.records(leaf, recorder.records)
        for leaf, layout in zip(leaves, layouts.inputs, strict=True)
    ]
    own = dict(module.named_parameters())
    copies = {name: per_record(recorder, p) for name, p in own.items() if recorder.trains(p)}
    shapes: list[Any] = []

    def one(parameters: dict[str, torch.Tensor], *fields: torch.Tensor) -> list[torch.Tensor]:
        moving = iter(fields)
        restored = [
            leaf if layout is None else _with_batch(next(moving), layout)
            for leaf, layout in zip(batched, layouts.inputs, strict=True)
        ]
        own_args, own_kwargs = tree_unflatten(restored, structure)
        found, shape = tree_flatten(functional_call(module, own | parameters, own_args, own_kwargs))
        shapes.append(shape)
        if [isinstance(leaf, torch.Tensor) for leaf in found] != [
            layout is not None for layout in layouts.outputs
        ]:
            raise Unsupported
        return [
            _without_batch(leaf, layout)
            for leaf, layout in zip(found, layouts.outputs, strict=True)
            if layout
        ]

    fields = [
        leaf for leaf, layout in zip(batched, layouts.inputs, strict=True) if layout is not None
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="There is a performance drop", category=UserWarning
        )
        found = iter(vmap(one, randomness="different")(copies, *fields))
    outputs = [
        None if layout is None else _outside(next(found), layout) for layout in layouts.outputs
    ]
    return tree_unflatten(outputs, shapes[-1])


def per_record(recorder: Recorder, parameter: torch.Tensor) -> torch.Tensor:
    """Return one copy of the parameter for each record, without memory of their own."""
    copies = parameter.expand(recorder.records, *parameter.shape)
    own = recorder.slot(parameter)
    assert own is not None
    return CaptureGrad.apply(
        recorder.anchor, copies, lambda gradient: recorder.add(own, Materialized.of(gradient))
    )


def _with_batch(field: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Give one record's field an axis of length one, as the module expects."""
    return field if layout.flat else field.unsqueeze(layout.axis)


def _without_batch(field: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Remove the axis of length one."""
    return field if layout.flat else field.squeeze(layout.axis)


def _outside(field: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a vectorised output in the layout that the module's own output has."""
    return field.flatten(0, 1) if layout.flat else field.movedim(0, layout.axis)
