"""LSTM, GRU and plain RNN: of any depth, in one direction or both, on padded or packed sequences.

All that a record's gradient is made of is the gradient δ_t of what goes into the gates: Σ_t δ_t ⊗
x_t for the weight of the inputs, Σ_t δ_t ⊗ h_{t-1} for that of the hidden state, Σ_t δ_t for the
biases. One pass back through time leaves it in the place of the gates' values. torch's fused
kernels sum the weights' gradients over the batch and hide δ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from dpfy.gradients.base import Unsupported
from dpfy.gradients.bookkeeping.contributions import Materialized, OuterProduct
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

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


def recurrent(
    module: Any,
    tape: Recorder,
    layout: Layout,
    inputs: torch.Tensor | PackedSequence,
    hx: Any = None,
) -> Any:
    """The rule for :class:`torch.nn.LSTM`, :class:`torch.nn.GRU` and :class:`torch.nn.RNN`.

    An LSTM with ``proj_size`` is refused; torch cannot vectorise one either, so that the loop
    engine serves it.
    """
    if getattr(module, "proj_size", 0):
        raise Unsupported("an LSTM with proj_size has no rule")
    padded, packing = _padded(inputs, module, layout)
    by_record = Layout(0, layout.flat)
    by_record.items(padded, tape.records)
    directions = 2 if module.bidirectional else 1
    rows = Packed.of(*packing, directions) if packing else Even(*padded.shape[:2])
    finals: list[tuple[torch.Tensor, ...]] = []
    with torch.autocast(padded.device.type, enabled=False):
        padded = padded.to(module.weight_ih_l0.dtype)
        for layer in range(module.num_layers):
            some = slice(layer * directions, (layer + 1) * directions)
            weights = [_Weights(*each) for each in module.all_weights[some]]
            record = _recorder(tape, by_record, weights, padded.detach())
            padded, *final = _Layer.apply(
                tape.anchor,
                padded,
                *_initial(hx, some, padded, module),
                weights,
                _CELLS[module.mode],
                rows,
                record,
            )
            finals.append(tuple(final))
            if layer + 1 < module.num_layers:
                padded = F.dropout(padded, module.dropout, module.training)
    states = tuple(map(torch.cat, zip(*finals, strict=True)))
    return _like(inputs, padded, module, rows), states if isinstance(module, nn.LSTM) else states[0]


class _Weights(NamedTuple):
    """The parameters of one layer in one direction."""

    inputs: torch.Tensor
    hidden: torch.Tensor
    inputs_bias: torch.Tensor | None = None
    hidden_bias: torch.Tensor | None = None


def _padded(
    inputs: torch.Tensor | PackedSequence, module: Any, layout: Layout
) -> tuple[torch.Tensor, tuple[list[int], torch.Tensor] | None]:
    """Return [sequences, time, features]; of packed ones how many reach each step, and their order,
    longest first.
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
    """Return hidden state and memory before the first step; layers without a memory get one that
    they do not use.
    """
    if hx is None:
        return [padded.new_zeros(some.stop - some.start, len(padded), module.hidden_size)] * 2
    states = (hx, hx) if isinstance(hx, torch.Tensor) else hx
    return [state[some].to(padded.dtype) for state in states]


def _recorder(
    tape: Recorder, layout: Layout, weights: Sequence[_Weights], inputs: torch.Tensor
) -> Callable[..., None]:
    """Return what records the contributions, given δ, δ as the hidden state's product has it, and
    the states before.
    """

    def record(*found: torch.Tensor) -> None:
        for own, gradient, inner, before in zip(weights, *found, strict=True):
            for weight, bias, rows, factor in (
                (own.inputs, own.inputs_bias, gradient, inputs),
                (own.hidden, own.hidden_bias, inner, before),
            ):
                rows = layout.sequences(rows, tape.records)
                if tape.trains(weight):
                    tape.outer(weight, OuterProduct(layout.sequences(factor, tape.records), rows))
                if bias is not None and tape.trains(bias):
                    tape.add(bias, Materialized.of(rows.sum(1)))

    return record


class _Layer(torch.autograd.Function):
    """One layer in all its directions, whose weights' gradients are left to ``record``."""

    @staticmethod
    def forward(ctx, anchor, padded, hidden, memory, weights, kind, rows, record):  # type: ignore[no-untyped-def]
        ctx.inputs_weight = torch.stack([own.inputs for own in weights])
        gates = _product(
            rows.taken(padded.expand(len(weights), *padded.shape)),
            ctx.inputs_weight.mT,
            kind.bias(weights),
        )
        cell = kind(gates, rows.sorted(hidden), rows.sorted(memory), weights, rows)
        cell.forward()
        ctx.cell, ctx.rows, ctx.record = cell, rows, record
        ctx.save_for_backward(
            padded, *cell.buffers
        )  # so that autograd refuses to go back twice: once uses them up
        ctx.set_materialize_grads(False)
        return torch.cat(tuple(rows.put_back(cell.outputs)), 2), *map(rows.ends, cell.states)

    @staticmethod
    def backward(ctx, outputs, hidden, memory=None):  # type: ignore[no-untyped-def]
        _, cell, rows = ctx.saved_tensors, ctx.cell, ctx.rows
        hidden, memory = (
            torch.zeros_like(cell.hidden[0]) if state is None else rows.sorted(state)
            for state in (hidden, memory)
        )
        if outputs is not None:
            outputs = rows.split(rows.taken(torch.stack(outputs.chunk(len(hidden), 2))))
        cell.backward(outputs, hidden, memory)
        gradient = rows.put_back(cell.gates)
        inner = gradient if cell.inner is cell.gates else rows.put_back(cell.inner)
        ctx.record(gradient, inner, rows.put_back(cell.before))
        found = (
            rows.put_back(torch.bmm(cell.gates, ctx.inputs_weight)).sum(0)
            if ctx.needs_input_grad[1]
            else None
        )
        return None, found, rows.unsorted(hidden), rows.unsorted(memory), None, None, None, None


def _product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the product of each direction, with its bias if there is one."""
    return torch.bmm(rows, weight) if bias is None else torch.baddbmm(bias, rows, weight)


class _Cell(ABC):
    """The steps of one layer in all its directions, [directions, sequences, features] each.

    ``gates`` hold their values on the way forward and δ on the way back.
    """

    folds_biases: ClassVar[bool] = True  # whether both biases are added at the same place

    def __init__(
        self,
        gates: torch.Tensor,
        hidden: torch.Tensor,
        memory: torch.Tensor,
        weights: Sequence[_Weights],
        rows: TimeSteps,
    ) -> None:
        self.gates, self.rows, self.sizes = gates, rows, rows.sizes
        self.weight = torch.stack([own.hidden for own in weights])
        self.steps = rows.split(gates)
        self.outputs = gates.new_empty(*gates.shape[:2], hidden.shape[2])
        self.hidden = (hidden, *rows.split(self.outputs))
        self.inner = gates  # δ as the product with the hidden state has it
        self.states: tuple[torch.Tensor, ...] = (self.outputs,)
        self.buffers: tuple[torch.Tensor, ...] = (self.gates, self.outputs)

    @classmethod
    def bias(cls, weights: Sequence[_Weights]) -> torch.Tensor | None:
        """Return what is added to the product with the inputs."""
        inputs = _stacked([own.inputs_bias for own in weights])
        hidden = _stacked([own.hidden_bias for own in weights])
        return (
            inputs if inputs is None or hidden is None or not cls.folds_biases else inputs + hidden
        )

    @property
    def before(self) -> torch.Tensor:
        """The hidden state that each row started from."""
        return torch.cat(
            [_first(state, size) for state, size in zip(self.hidden, self.sizes, strict=False)], 1
        )

    def forward(self) -> None:
        """Go through all steps."""
        for step, size in enumerate(self.sizes):
            self._forward(step, _first(self.hidden[step], size))

    def backward(
        self, outputs: tuple[torch.Tensor, ...] | None, hidden: torch.Tensor, memory: torch.Tensor
    ) -> None:
        """Go back, and turn the gradients of the last states into those of the first ones."""
        for step in reversed(range(len(self.sizes))):
            some, kept = _first(hidden, self.sizes[step]), _first(memory, self.sizes[step])
            if outputs is not None:
                some += outputs[step]
            self._backward(step, some, kept)

    @abstractmethod
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        """From what the inputs give to a step to its gates and its hidden state."""

    @abstractmethod
    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        """From the gradients of the states after a step to δ and to those of the states before it,
        in place.
        """


def _stacked(biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the biases of all directions as something to be added to rows; they all have one, or
    none has.
    """
    present = [bias for bias in biases if bias is not None]
    return torch.stack(present).unsqueeze(1) if present else None


def _first(states: torch.Tensor, size: int) -> torch.Tensor:
    """Return the states of the first sequences; all of them as they are, since a view takes time as
    well.
    """
    return states if states.shape[1] == size else states[:, :size]


class _Lstm(_Cell):
    def __init__(
        self,
        gates: torch.Tensor,
        hidden: torch.Tensor,
        memory: torch.Tensor,
        weights: Sequence[_Weights],
        rows: TimeSteps,
    ) -> None:
        super().__init__(gates, hidden, memory, weights, rows)
        cells, squashed, new = (torch.empty_like(self.outputs) for _ in range(3))
        self.memory, self.squashed, self.new = (
            (memory, *rows.split(cells)),
            rows.split(squashed),
            rows.split(new),
        )
        self.parts = list(zip(*map(rows.split, gates.chunk(4, 2)), strict=True))
        self.states, self.buffers = (self.outputs, cells), (*self.buffers, cells, squashed, new)
        change = gates.new_zeros(*hidden.shape[:2], gates.shape[2])
        entering, keeping, _, showing = change.chunk(4, 2)
        self._changes = (change, entering, keeping, showing)  # room that all steps share
        self._hidden_weight = self.weight.mT

    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        gates = self.steps[step].baddbmm_(hidden, self._hidden_weight)
        enter, keep, made, show = self.parts[step]
        new = torch.tanh(made, out=self.new[step])
        # of all four, in one call: what it leaves in the new value's place is not read
        gates.sigmoid_()
        before = _first(self.memory[step], keep.shape[1])
        memory = torch.mul(keep, before, out=self.memory[step + 1]).addcmul_(enter, new)
        torch.mul(show, torch.tanh(memory, out=self.squashed[step]), out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        gates, new, squashed = self.steps[step], self.new[step], self.squashed[step]
        enter, keep, made, show = self.parts[step]
        change, entering, keeping, showing = (_first(room, keep.shape[1]) for room in self._changes)
        through = hidden * show
        memory += _tanh_backward(through, squashed, grad_input=through)
        torch.mul(memory, new, out=entering)
        torch.mul(memory, _first(self.memory[step], keep.shape[1]), out=keeping)
        torch.mul(hidden, squashed, out=showing)
        making = torch.mul(memory, enter, out=through)
        memory *= keep
        _sigmoid_backward(change, gates, grad_input=gates)
        _tanh_backward(making, new, grad_input=made)
        torch.bmm(gates, self.weight, out=hidden)


class _Gru(_Cell):
    # the reset gate scales what the hidden state gives to the new value, its bias included
    folds_biases = False

    def __init__(
        self,
        gates: torch.Tensor,
        hidden: torch.Tensor,
        memory: torch.Tensor,
        weights: Sequence[_Weights],
        rows: TimeSteps,
    ) -> None:
        super().__init__(gates, hidden, memory, weights, rows)
        width = hidden.shape[2]
        shift = _stacked([own.hidden_bias for own in weights])
        self.shift = gates.new_zeros(1) if shift is None else shift
        self.inner = torch.empty_like(gates)
        self.products = list(
            zip(
                *map(rows.split, (self.inner, *self.inner.split([2 * width, width], 2))),
                strict=True,
            )
        )
        self.parts = list(
            zip(*map(rows.split, (gates[..., : 2 * width], *gates.chunk(3, 2))), strict=True)
        )
        self.buffers = (*self.buffers, self.inner)

    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        both, reset, keep, new = self.parts[step]
        product, for_both, for_new = self.products[step]
        torch.baddbmm(self.shift, hidden, self.weight.mT, out=product)
        both.add_(for_both).sigmoid_()
        new.addcmul_(reset, for_new).tanh_()
        torch.lerp(new, hidden, keep, out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        both, reset, keep, new = self.parts[step]
        product, for_both, for_new = self.products[step]
        kept = hidden * keep
        keeping = (_first(self.hidden[step], keep.shape[1]) - new).mul_(hidden)
        _tanh_backward(hidden - kept, new, grad_input=new)
        resetting = new * for_new
        torch.mul(new, reset, out=for_new)
        _sigmoid_backward(resetting, reset, grad_input=reset)
        _sigmoid_backward(keeping, keep, grad_input=keep)
        for_both.copy_(both)
        torch.baddbmm(kept, product, self.weight, out=hidden)


class _Tanh(_Cell):
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        torch.tanh(self.steps[step].baddbmm_(hidden, self.weight.mT), out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        _tanh_backward(hidden, self.hidden[step + 1], grad_input=self.steps[step])
        torch.bmm(self.steps[step], self.weight, out=hidden)


class _Relu(_Cell):
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        torch.clamp(
            self.steps[step].baddbmm_(hidden, self.weight.mT), min=0, out=self.hidden[step + 1]
        )

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        _threshold_backward(hidden, self.hidden[step + 1], 0, grad_input=self.steps[step])
        torch.bmm(self.steps[step], self.weight, out=hidden)


_CELLS: dict[str, type[_Cell]] = {"LSTM": _Lstm, "GRU": _Gru, "RNN_TANH": _Tanh, "RNN_RELU": _Relu}
