"""LSTM, GRU and plain RNN of any depth, in one or both directions, padded or packed.

A record's gradient needs only the gradient δ_t of what goes into the gates: Σ_t δ_t ⊗ x_t for the
weight of the inputs, Σ_t δ_t ⊗ h_{t-1} for that of the hidden state, Σ_t δ_t for the biases. One
pass back through time overwrites the gates' values by δ. torch's fused kernels sum the weights'
gradients over the batch and do not expose δ.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.contributions import Materialized, OuterProduct
from dpfy.gradients.bookkeeping.layers.recurrent_cells import CELLS, LayerWeights
from dpfy.gradients.bookkeeping.layers.sequences import Even, Packed, TimeSteps
from dpfy.gradients.bookkeeping.layout import Layout
from dpfy.gradients.bookkeeping.recorder import Recorder

_DEEPEST = 64  # layers: deeper ones have names that are not known, and no rule
RECURRENT_PARAMETERS = frozenset(
    f"{name}_l{layer}{way}"
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    for layer in range(_DEEPEST)
    for way in ("", "_reverse")
)


def recurrent(
    module: Any,
    recorder: Recorder,
    layout: Layout,
    inputs: torch.Tensor | PackedSequence,
    hx: Any = None,
) -> Any:
    """Compute and record :class:`torch.nn.LSTM`, :class:`torch.nn.GRU`, :class:`torch.nn.RNN`.

    An LSTM with ``proj_size`` is refused; torch cannot vectorise one either, so the loop engine
    serves it.
    """
    if getattr(module, "proj_size", 0):
        raise Unsupported("an LSTM with proj_size has no rule")
    padded, packing = _padded(inputs, module, layout)
    by_record = Layout(0, layout.flat)
    by_record.items(padded, recorder.records)
    directions = 2 if module.bidirectional else 1
    rows = Packed.of(*packing, directions) if packing else Even(*padded.shape[:2])
    finals: list[tuple[torch.Tensor, ...]] = []
    with torch.autocast(padded.device.type, enabled=False):
        padded = padded.to(module.weight_ih_l0.dtype)
        for layer in range(module.num_layers):
            some = slice(layer * directions, (layer + 1) * directions)
            weights = [LayerWeights(*each) for each in module.all_weights[some]]
            record = _recording(recorder, by_record, weights)
            padded, *final = _Layer.apply(
                recorder.anchor,
                padded,
                *_initial(hx, some, padded, module),
                weights,
                CELLS[module.mode],
                rows,
                record,
            )
            finals.append(tuple(final))
            if layer + 1 < module.num_layers:
                padded = F.dropout(padded, module.dropout, module.training)
    states = tuple(map(torch.cat, zip(*finals, strict=True)))
    return _like(inputs, padded, module, rows), states if isinstance(module, nn.LSTM) else states[0]


def _padded(
    inputs: torch.Tensor | PackedSequence, module: Any, layout: Layout
) -> tuple[torch.Tensor, tuple[list[int], torch.Tensor] | None]:
    """Return [sequences, time, features], and how packed sequences were packed.

    The packing is the number of sequences that reach each step, and their order, longest first.
    """
    if isinstance(inputs, PackedSequence):
        if layout.axis or (
            inputs.sorted_indices is None and len(set(inputs.batch_sizes.tolist())) > 1
        ):
            raise Unsupported("sequences were sorted outside of their packing")
        padded, _ = pad_packed_sequence(inputs, batch_first=True)
        order = (
            torch.arange(len(padded), device=padded.device)
            if inputs.sorted_indices is None
            else inputs.sorted_indices
        )
        return padded, (inputs.batch_sizes.tolist(), order)
    if inputs.ndim != 3 or layout.axis != (0 if module.batch_first else 1):
        raise Unsupported
    return (inputs if module.batch_first else inputs.transpose(0, 1).contiguous()), None


def _like(
    inputs: torch.Tensor | PackedSequence, padded: torch.Tensor, module: Any, rows: "TimeSteps"
) -> Any:
    """Return outputs in the form that the inputs had."""
    if isinstance(inputs, PackedSequence):
        return PackedSequence(rows.taken(padded.unsqueeze(0))[0], *inputs[1:])
    return padded if module.batch_first else padded.transpose(0, 1)


def _initial(hx: Any, some: slice, padded: torch.Tensor, module: Any) -> list[torch.Tensor]:
    """Return hidden state and memory before the first step; only an LSTM uses the memory."""
    if hx is None:
        return [padded.new_zeros(some.stop - some.start, len(padded), module.hidden_size)] * 2
    states = (hx, hx) if isinstance(hx, torch.Tensor) else hx
    return [state[some].to(padded.dtype) for state in states]


def _recording(
    recorder: Recorder, layout: Layout, weights: Sequence[LayerWeights]
) -> Callable[..., None]:
    """Return a function that records contributions from δ and the states before each step.

    It takes the inputs, δ, δ as the product with the hidden state has it, and the previous hidden
    states.
    """
    slots = [
        (
            (recorder.slot(own.inputs), recorder.slot(own.inputs_bias)),
            (recorder.slot(own.hidden), recorder.slot(own.hidden_bias)),
        )
        for own in weights
    ]

    def record(inputs: torch.Tensor, *found: torch.Tensor) -> None:
        for (of_inputs, of_hidden), gradient, inner, before in zip(slots, *found, strict=True):
            for (weight, bias), rows, factor in (
                (of_inputs, gradient, inputs),
                (of_hidden, inner, before),
            ):
                rows = layout.sequences(rows, recorder.records)
                if weight is not None:
                    recorder.outer(
                        weight, OuterProduct(layout.sequences(factor, recorder.records), rows)
                    )
                if bias is not None:
                    recorder.add(bias, Materialized.of(rows.sum(1)))

    return record


class _Layer(torch.autograd.Function):
    """One layer in all its directions, whose weight gradients are left to ``record``."""

    @staticmethod
    def forward(ctx, anchor, padded, hidden, memory, weights, kind, rows, record):  # type: ignore[no-untyped-def]
        ctx.inputs_weight = torch.stack([own.inputs for own in weights])
        gates = _product(
            rows.taken(padded.expand(len(weights), *padded.shape)),
            ctx.inputs_weight.mT,
            kind.bias(weights),
        )
        room = kind.room(gates, rows.sorted(hidden), rows.sorted(memory))
        cell = kind(room, weights, rows)
        cell.forward()
        ctx.weights, ctx.kind, ctx.rows, ctx.record = weights, kind, rows, record
        # autograd refuses to go back twice, which would be wrong: once overwrites the room
        ctx.save_for_backward(padded, *room)
        ctx.set_materialize_grads(False)
        return torch.cat(tuple(rows.put_back(cell.outputs)), 2), *map(rows.ends, cell.states)

    @staticmethod
    def backward(ctx, outputs, hidden, memory=None):  # type: ignore[no-untyped-def]
        (padded, *room), rows = ctx.saved_tensors, ctx.rows
        cell = ctx.kind(room, ctx.weights, rows)
        hidden, memory = (
            torch.zeros_like(cell.hidden[0]) if state is None else rows.sorted(state)
            for state in (hidden, memory)
        )
        if outputs is not None:
            outputs = rows.split(rows.taken(torch.stack(outputs.chunk(len(hidden), 2))))
        cell.backward(outputs, hidden, memory)
        gradient = rows.put_back(cell.gates)
        inner = gradient if cell.inner is cell.gates else rows.put_back(cell.inner)
        ctx.record(padded.detach(), gradient, inner, rows.put_back(cell.before))
        found = (
            rows.put_back(torch.bmm(cell.gates, ctx.inputs_weight)).sum(0)
            if ctx.needs_input_grad[1]
            else None
        )
        return None, found, rows.unsorted(hidden), rows.unsorted(memory), None, None, None, None


def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the product of each direction, with its bias if there is one."""
    return torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias, rows, weight)
