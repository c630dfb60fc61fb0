"""LSTM, GRU and plain RNN: of any depth, in one direction or both, on padded or packed sequences.

All that a record's gradient is made of is the gradient δ_t of what goes into the gates: Σ_t δ_t ⊗ x_t for the weight of
the inputs, Σ_t δ_t ⊗ h_{t-1} for that of the hidden state, Σ_t δ_t for the biases. One pass back through time leaves it
in the place of the gates' values. torch's fused kernels sum the weights' gradients over the batch and hide δ.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from dpfy.training.engines.base import Unsupported
from dpfy.training.engines.bookkeeping.contributions import Kept, Outer
from dpfy.training.engines.bookkeeping.layout import Layout
from dpfy.training.engines.bookkeeping.rules.sequences import Even, Packed, Rows
from dpfy.training.engines.bookkeeping.tape import Tape

_DEEPEST = 64  # layers: deeper ones have names that are not known, and no rule
RECURRENT_PARAMETERS = frozenset(
    f"{name}_l{layer}{way}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    for layer in range(_DEEPEST) for way in ("", "_reverse"))

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


def recurrent(module: Any, tape: Tape, layout: Layout, inputs: torch.Tensor | PackedSequence, hx: Any = None) -> Any:
    """The rule for :class:`torch.nn.LSTM`, :class:`torch.nn.GRU` and :class:`torch.nn.RNN`.

    An LSTM with ``proj_size`` is refused; torch cannot vectorise one either, so that the loop engine serves it.
    """
    if getattr(module, "proj_size", 0):
        raise Unsupported("an LSTM with proj_size has no rule")
    padded, packing = _padded(inputs, module, layout)
    by_record = Layout(0, layout.flat)
    by_record.items(padded, tape.records)
    directions = [Packed.of(*packing, reverse) if packing else Even(len(padded), padded.shape[1], reverse)
                  for reverse in ((False, True) if module.bidirectional else (False,))]
    finals: list[tuple[torch.Tensor, ...]] = []
    with torch.autocast(padded.device.type, enabled=False):
        padded = padded.to(module.weight_ih_l0.dtype)
        for layer in range(module.num_layers):
            outputs = []
            for rows in directions:
                number = len(finals)
                weights = _Weights(*module.all_weights[number])
                record = _recorder(tape, by_record, weights, padded.detach())
                output, *final = _Layer.apply(tape.anchor, padded, *_initial(hx, number, padded, weights), weights,
                                              _CELLS[module.mode], rows, record)
                outputs.append(output)
                finals.append(tuple(final))
            padded = torch.cat(outputs, 2) if len(outputs) > 1 else outputs[0]
            if layer + 1 < module.num_layers:
                padded = F.dropout(padded, module.dropout, module.training)
    states = tuple(torch.stack(state) for state in zip(*finals, strict=True))
    return _like(inputs, padded, module, directions[0]), states if isinstance(module, nn.LSTM) else states[0]


class _Weights(NamedTuple):
    """The parameters of one layer in one direction."""

    inputs: torch.Tensor
    hidden: torch.Tensor
    inputs_bias: torch.Tensor | None = None
    hidden_bias: torch.Tensor | None = None


def _padded(inputs: torch.Tensor | PackedSequence, module: Any,
            layout: Layout) -> tuple[torch.Tensor, tuple[list[int], torch.Tensor] | None]:
    """Return [sequences, time, features]; of packed ones how many reach each step, and their order, longest first."""
    if isinstance(inputs, PackedSequence):
        if layout.axis or (inputs.sorted_indices is None and len(set(inputs.batch_sizes.tolist())) > 1):
            raise Unsupported("sequences were sorted outside of their packing")
        padded, _ = pad_packed_sequence(inputs, batch_first=True)
        order = torch.arange(len(padded), device=padded.device) if inputs.sorted_indices is None \
            else inputs.sorted_indices
        return padded, (inputs.batch_sizes.tolist(), order)
    if inputs.ndim != 3 or layout.axis != (0 if module.batch_first else 1):
        raise Unsupported
    return (inputs if module.batch_first else inputs.transpose(0, 1).contiguous()), None


def _like(inputs: torch.Tensor | PackedSequence, padded: torch.Tensor, module: Any, rows: "Rows") -> Any:
    """Return outputs in the form that the inputs had."""
    if isinstance(inputs, PackedSequence):
        return PackedSequence(rows.taken(padded), *inputs[1:])
    return padded if module.batch_first else padded.transpose(0, 1)


def _initial(hx: Any, number: int, padded: torch.Tensor, weights: _Weights) -> list[torch.Tensor]:
    """Return hidden state and memory before the first step; layers without a memory get one that they do not use."""
    if hx is None:
        return [padded.new_zeros(len(padded), weights.hidden.shape[1])] * 2
    states = (hx, hx) if isinstance(hx, torch.Tensor) else hx
    return [state[number].to(padded.dtype) for state in states]


def _recorder(tape: Tape, layout: Layout, weights: _Weights, inputs: torch.Tensor) -> Callable[..., None]:
    """Return what records the contributions, given δ, δ as the hidden state's product has it, and the states before."""
    def record(gradient: torch.Tensor, inner: torch.Tensor, before: torch.Tensor) -> None:
        for weight, bias, found, factor in ((weights.inputs, weights.inputs_bias, gradient, inputs),
                                            (weights.hidden, weights.hidden_bias, inner, before)):
            rows = layout.sequences(found, tape.records)
            if tape.trains(weight):
                tape.outer(weight, Outer(layout.sequences(factor, tape.records), rows))
            if bias is not None and tape.trains(bias):
                tape.add(bias, Kept.of(rows.sum(1)))

    return record


class _Layer(torch.autograd.Function):
    """One direction of one layer, whose weights' gradients are left to ``record``."""

    @staticmethod
    def forward(ctx, anchor, padded, hidden, memory, weights, kind, rows, record):  # type: ignore[no-untyped-def]
        gates = rows.taken(F.linear(padded, weights.inputs, kind.bias(weights)))
        cell = kind(gates, rows.sorted(hidden), rows.sorted(memory), weights, rows)
        cell.forward()
        ctx.cell, ctx.weights, ctx.rows, ctx.record = cell, weights, rows, record
        ctx.save_for_backward(padded, *cell.buffers)  # so that autograd refuses to go back twice: once uses them up
        ctx.set_materialize_grads(False)
        return rows.put_back(cell.outputs).contiguous(), *map(rows.ends, cell.states)

    @staticmethod
    def backward(ctx, outputs, hidden, memory=None):  # type: ignore[no-untyped-def]
        _, cell, rows = ctx.saved_tensors, ctx.cell, ctx.rows
        first = cell.hidden[0]
        hidden, memory = (torch.zeros_like(first) if state is None else rows.sorted(state)
                          for state in (hidden, memory))
        cell.backward(None if outputs is None else rows.split(rows.taken(outputs)), hidden, memory)
        gradient = rows.put_back(cell.gates)
        inner = gradient if cell.inner is cell.gates else rows.put_back(cell.inner)
        ctx.record(gradient, inner, rows.put_back(cell.before))
        found = gradient @ ctx.weights.inputs if ctx.needs_input_grad[1] else None
        return None, found, rows.unsorted(hidden), rows.unsorted(memory), None, None, None, None


class _Cell(ABC):
    """The steps of one layer in one direction; ``gates`` hold their values on the way forward and δ on the way back."""

    folds_biases: ClassVar[bool] = True  # whether both biases are added at the same place

    def __init__(self, gates: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor, weights: _Weights,
                 rows: Rows) -> None:
        self.gates, self.rows, self.sizes, self.weight = gates, rows, rows.sizes, weights.hidden
        self.steps = rows.split(gates)
        self.outputs = gates.new_empty(len(gates), hidden.shape[1])
        self.hidden = (hidden, *rows.split(self.outputs))
        self.inner = gates  # δ as the product with the hidden state has it
        self.states: tuple[torch.Tensor, ...] = (self.outputs,)
        self.buffers: tuple[torch.Tensor, ...] = (self.gates, self.outputs)

    @classmethod
    def bias(cls, weights: _Weights) -> torch.Tensor | None:
        """Return what is added to the product with the inputs."""
        if weights.inputs_bias is None or weights.hidden_bias is None or not cls.folds_biases:
            return weights.inputs_bias
        return weights.inputs_bias + weights.hidden_bias

    @property
    def before(self) -> torch.Tensor:
        """The hidden state that each row started from."""
        return self.rows.joined([_first(state, size) for state, size in zip(self.hidden, self.sizes, strict=False)])

    def forward(self) -> None:
        """Go through all steps."""
        for step, size in enumerate(self.sizes):
            self._forward(step, _first(self.hidden[step], size))

    def backward(self, outputs: tuple[torch.Tensor, ...] | None, hidden: torch.Tensor, memory: torch.Tensor) -> None:
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
        """From the gradients of the states after a step to δ and to those of the states before it, in place."""


def _first(states: torch.Tensor, size: int) -> torch.Tensor:
    """Return the states of the first sequences; all of them as they are, since a view takes time as well."""
    return states if len(states) == size else states[:size]


class _Lstm(_Cell):
    def __init__(self, gates: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor, weights: _Weights,
                 rows: Rows) -> None:
        super().__init__(gates, hidden, memory, weights, rows)
        cells, squashed = torch.empty_like(self.outputs), torch.empty_like(self.outputs)
        self.memory, self.squashed = (memory, *rows.split(cells)), rows.split(squashed)
        width = hidden.shape[1]
        both = gates[:, :2 * width]  # of the gates that let in and keep: for what is done to the two alike
        self.parts = list(zip(*map(rows.split, (both, *gates.chunk(4, 1))), strict=True))
        self.states, self.buffers = (self.outputs, cells), (*self.buffers, cells, squashed)
        self._change = gates.new_empty(len(hidden), 2 * width)
        self._hidden_weight = self.weight.t()

    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        self.steps[step].addmm_(hidden, self._hidden_weight)
        both, enter, keep, new, show = self.parts[step]
        both.sigmoid_()
        show.sigmoid_()
        new.tanh_()
        memory = torch.mul(keep, _first(self.memory[step], len(keep)), out=self.memory[step + 1]).addcmul_(enter, new)
        torch.mul(show, torch.tanh(memory, out=self.squashed[step]), out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        both, enter, keep, new, show = self.parts[step]
        squashed, change = self.squashed[step], _first(self._change, len(keep))
        through = hidden * show
        memory += _tanh_backward(through, squashed, grad_input=through)
        _sigmoid_backward(hidden.mul_(squashed), show, grad_input=show)
        entering, keeping = change.chunk(2, 1)
        torch.mul(memory, new, out=entering)
        torch.mul(memory, _first(self.memory[step], len(keep)), out=keeping)
        making = torch.mul(memory, enter, out=through)
        memory *= keep
        _sigmoid_backward(change, both, grad_input=both)
        _tanh_backward(making, new, grad_input=new)
        torch.mm(self.steps[step], self.weight, out=hidden)


class _Gru(_Cell):
    folds_biases = False  # the reset gate scales what the hidden state gives to the new value, its bias included

    def __init__(self, gates: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor, weights: _Weights,
                 rows: Rows) -> None:
        super().__init__(gates, hidden, memory, weights, rows)
        width = hidden.shape[1]
        self.shift = gates.new_zeros(3 * width) if weights.hidden_bias is None else weights.hidden_bias
        self.inner = torch.empty_like(gates)
        self.products = list(zip(*map(rows.split, (self.inner, *self.inner.split([2 * width, width], 1))), strict=True))
        self.parts = list(zip(*map(rows.split, (gates[:, :2 * width], *gates.chunk(3, 1))), strict=True))
        self.buffers = (*self.buffers, self.inner)

    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        both, reset, keep, new = self.parts[step]
        product, for_both, for_new = self.products[step]
        torch.addmm(self.shift, hidden, self.weight.t(), out=product)
        both.add_(for_both).sigmoid_()
        new.addcmul_(reset, for_new).tanh_()
        torch.lerp(new, hidden, keep, out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        both, reset, keep, new = self.parts[step]
        product, for_both, for_new = self.products[step]
        kept = hidden * keep
        keeping = (_first(self.hidden[step], len(keep)) - new).mul_(hidden)
        _tanh_backward(hidden - kept, new, grad_input=new)
        resetting = new * for_new
        torch.mul(new, reset, out=for_new)
        _sigmoid_backward(resetting, reset, grad_input=reset)
        _sigmoid_backward(keeping, keep, grad_input=keep)
        for_both.copy_(both)
        torch.addmm(kept, product, self.weight, out=hidden)


class _Tanh(_Cell):
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        torch.tanh(self.steps[step].addmm_(hidden, self.weight.t()), out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        _tanh_backward(hidden, self.hidden[step + 1], grad_input=self.steps[step])
        torch.mm(self.steps[step], self.weight, out=hidden)


class _Relu(_Cell):
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        torch.clamp(self.steps[step].addmm_(hidden, self.weight.t()), min=0, out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        _threshold_backward(hidden, self.hidden[step + 1], 0, grad_input=self.steps[step])
        torch.mm(self.steps[step], self.weight, out=hidden)


_CELLS: dict[str, type[_Cell]] = {"LSTM": _Lstm, "GRU": _Gru, "RNN_TANH": _Tanh, "RNN_RELU": _Relu}
