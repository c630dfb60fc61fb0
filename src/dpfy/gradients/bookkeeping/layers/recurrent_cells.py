"""The recurrences of LSTM, GRU and plain RNN cells, step by step, forward and back.

Tests: tests/gradients/bookkeeping/layers/test_recurrent.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch

from dpfy.gradients.bookkeeping.layers.sequences import TimeSteps

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


class LayerWeights(NamedTuple):
    """The parameters of one layer in one direction."""

    inputs: torch.Tensor
    hidden: torch.Tensor
    inputs_bias: torch.Tensor | None = None
    hidden_bias: torch.Tensor | None = None


class Cell(ABC):
    """The steps of one layer in all its directions, [directions, sequences, features] each.

    ``gates`` hold their values on the way forward and δ on the way back. A cell owns no numbers: it
    works in a room, which is saved between the two ways.
    """

    folds_biases: ClassVar[bool] = True  # whether both biases are added at the same place

    def __init__(
        self, room: Sequence[torch.Tensor], weights: Sequence[LayerWeights], rows: TimeSteps
    ) -> None:
        self.gates, hidden, self.first_memory, self.outputs, *_ = room
        self.rows, self.sizes = rows, rows.sizes
        self.weight = torch.stack([own.hidden for own in weights])
        self.steps = rows.split(self.gates)
        self.hidden = (hidden, *rows.split(self.outputs))
        self.inner = self.gates  # δ as the product with the hidden state has it
        self.states: tuple[torch.Tensor, ...] = (self.outputs,)

    @classmethod
    def room(
        cls, gates: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the gates, the first states, and memory for what is computed of them."""
        return gates, hidden, memory, gates.new_empty(*gates.shape[:2], hidden.shape[2])

    @classmethod
    def bias(cls, weights: Sequence[LayerWeights]) -> torch.Tensor | None:
        """Return the bias that is added to the product with the inputs."""
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
        """Go back, and turn the gradients of the last states into those of the first states."""
        for step in reversed(range(len(self.sizes))):
            some, kept = _first(hidden, self.sizes[step]), _first(memory, self.sizes[step])
            if outputs is not None:
                some += outputs[step]
            self._backward(step, some, kept)

    @abstractmethod
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        """Compute gates and hidden state of a step from the product with its inputs."""

    @abstractmethod
    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        """Compute δ and the gradients of the states before a step, in place."""


def _stacked(biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the biases of all directions, to be added to rows; None if there are none."""
    present = [bias for bias in biases if bias is not None]
    return torch.stack(present).unsqueeze(1) if present else None


def _first(states: torch.Tensor, size: int) -> torch.Tensor:
    """Return the states of the first sequences, without a view where that is all of them."""
    return states if states.shape[1] == size else states[:, :size]


class _Lstm(Cell):
    def __init__(
        self, room: Sequence[torch.Tensor], weights: Sequence[LayerWeights], rows: TimeSteps
    ) -> None:
        super().__init__(room, weights, rows)
        cells, squashed, new = room[4:]
        self.memory, self.squashed, self.new = (
            (self.first_memory, *rows.split(cells)),
            rows.split(squashed),
            rows.split(new),
        )
        self.parts = list(zip(*map(rows.split, self.gates.chunk(4, 2)), strict=True))
        self.states = (self.outputs, cells)
        self._hidden_weight = self.weight.mT

    @classmethod
    def room(
        cls, gates: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        room = super().room(gates, hidden, memory)
        return *room, *(torch.empty_like(room[-1]) for _ in range(3))

    @cached_property
    def _changes(self) -> tuple[torch.Tensor, ...]:
        """Memory that all steps of the way back share."""
        change = self.gates.new_zeros(*self.hidden[0].shape[:2], self.gates.shape[2])
        entering, keeping, _, showing = change.chunk(4, 2)
        return change, entering, keeping, showing

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


class _Gru(Cell):
    # the reset gate scales what the hidden state gives to the new value, its bias included
    folds_biases = False

    def __init__(
        self, room: Sequence[torch.Tensor], weights: Sequence[LayerWeights], rows: TimeSteps
    ) -> None:
        super().__init__(room, weights, rows)
        gates, width = self.gates, self.outputs.shape[2]
        shift = _stacked([own.hidden_bias for own in weights])
        self.shift = gates.new_zeros(1) if shift is None else shift
        self.inner = room[4]
        self.products = list(
            zip(
                *map(rows.split, (self.inner, *self.inner.split([2 * width, width], 2))),
                strict=True,
            )
        )
        self.parts = list(
            zip(*map(rows.split, (gates[..., : 2 * width], *gates.chunk(3, 2))), strict=True)
        )

    @classmethod
    def room(
        cls, gates: torch.Tensor, hidden: torch.Tensor, memory: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return *super().room(gates, hidden, memory), torch.empty_like(gates)

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


class _Tanh(Cell):
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        torch.tanh(self.steps[step].baddbmm_(hidden, self.weight.mT), out=self.hidden[step + 1])

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        _tanh_backward(hidden, self.hidden[step + 1], grad_input=self.steps[step])
        torch.bmm(self.steps[step], self.weight, out=hidden)


class _Relu(Cell):
    def _forward(self, step: int, hidden: torch.Tensor) -> None:
        torch.clamp(
            self.steps[step].baddbmm_(hidden, self.weight.mT), min=0, out=self.hidden[step + 1]
        )

    def _backward(self, step: int, hidden: torch.Tensor, memory: torch.Tensor) -> None:
        _threshold_backward(hidden, self.hidden[step + 1], 0, grad_input=self.steps[step])
        torch.bmm(self.steps[step], self.weight, out=hidden)


CELLS: dict[str, type[Cell]] = {"LSTM": _Lstm, "GRU": _Gru, "RNN_TANH": _Tanh, "RNN_RELU": _Relu}
