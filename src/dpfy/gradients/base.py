"""The interface of engines: what each is given, and what it returns.

Tests: tests/gradients/test_engines.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn
from torch.func import functional_call

from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import Losses, per_example, statistics_of
from dpfy.gradients.modules import modules_of
from dpfy.mechanisms.clipping import Clipping
from dpfy.sandbox.torch_settings import users_code
from dpfy.sandbox.uncompiled import uncompiled

LossFn = Callable[..., Any]


class Examples(Protocol):
    """Function that makes synthetic records of the public shape."""

    def __call__(self, size: int, seed: int, /) -> Chunk:
        """Return ``size`` synthetic records, others for another seed."""


class Unsupported(Exception):
    """An engine cannot serve this model; the text says why, and speaks of layers only."""


@dataclass(frozen=True)
class RecordStats:
    """Quantities of some records that a pass yields besides their gradients. Sensitive.

    Args:
        norms: The squared norms [records, groups] by which the records were clipped.
        stats: The statistics that ``loss_fn`` returned with the losses, a row per record.
    """

    norms: torch.Tensor
    stats: Mapping[str, torch.Tensor]


def set_to_zero(total: torch.Tensor) -> None:
    """Overwrite a tensor with zeros, on the calling thread only.

    torch would divide the work among threads, and wait for a core that may be drawing noise.
    """
    if total.is_cpu:
        total.numpy().fill(0.0)
    else:
        total.zero_()


class BoundedSums(ABC):
    """The clipped sum of the gradients of one chunk. Sensitive."""

    seen: tuple[RecordStats, ...]  # every record once

    @abstractmethod
    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add the sum to the float64 ``totals``, one for each trained parameter."""

    def formed_in(self, totals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sum, a tensor for each trained parameter, overwriting ``totals`` where needed.

        A tensor is either the sum as it was formed or its total. The caller owns the tensors and
        may overwrite them.
        """
        for total in totals:
            set_to_zero(total)
        self.add_to(totals)
        return [*totals]


class Summed(BoundedSums):
    """A sum that is already formed, a tensor per trained parameter. Sensitive.

    Args:
        gradients: The sums, in the order of the trained parameters.
        seen: Norms and statistics of the records in the sum, every record once.
    """

    def __init__(self, gradients: list[torch.Tensor], *seen: RecordStats) -> None:
        self.gradients = gradients
        self.seen = seen

    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add the tensors."""
        for total, gradient in zip(totals, self.gradients, strict=True):
            total += gradient.to(total.device)

    def formed_in(self, totals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors."""
        return [
            gradient.to(total.device)
            for total, gradient in zip(totals, self.gradients, strict=True)
        ]


class Engine(ABC):
    """A way to compute per-record gradients of one chunk, weigh them and sum them.

    An engine looks at one chunk and keeps nothing of it. Parameters and buffers of the user's
    model are left as they were, whatever the computation does to them.

    Args:
        model: The user's module. Engines compute with copies of its parameters and buffers.
        parameters: The trained parameters by name, in the order of the sums.
    """

    name: ClassVar[str]
    # how it is known that one record cannot influence another one's gradient
    isolation: ClassVar[str]
    # whether that holds by construction, whatever the model and the loss do
    isolates: ClassVar[bool]
    one_by_one: ClassVar[bool] = False  # whether generators have fresh states for every record
    provides_gradients: ClassVar[bool] = False  # of every record, for coordinates of their own
    # the most that another record may move each contribution by rounding error, in clip bounds
    rounding: ClassVar[float]

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        self.model = model
        self.parameters = parameters
        self.records_at_once: int | None = (
            None  # the largest chunk that suits the engine; None for any
        )
        # whether the records of a chunk may be computed together, or else one by one
        self.accepts: Callable[[Chunk], bool] = lambda chunk: True

    @property
    def device(self) -> torch.device:
        """The device of the trained parameters."""
        return next(iter(self.parameters.values())).device

    @property
    def defeats_checkpointing(self) -> bool:
        """Whether it keeps much of what the model computes again in order not to keep it."""
        return False

    def prepare(self, loss_fn: LossFn, examples: Examples) -> None:
        """Learn the structure of the model from synthetic records.

        Raises:
            Unsupported: The engine cannot serve this model or this loss.
        """
        return

    @abstractmethod
    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> BoundedSums:
        """Return Σ weight·gradient over the chunk; no record can make a later step fail."""


class LossCall(nn.Module):
    """A parent of the user's model, so that ``functional_call`` reaches it inside ``loss_fn``."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        # Not as an attribute of its own: a loss that is a module would be registered, and a
        # parameter that has two names is not put back as it was.
        self._call = lambda *arguments: loss_fn(*arguments)

    def forward(self, *arguments: Any) -> Any:
        """Call the user's loss on the model it closed over, and add what the modules observed."""
        return returned_by(self.model, self._call, arguments)


def returned_by(model: nn.Module, loss_fn: LossFn, arguments: tuple[Any, ...]) -> Any:
    """Return what the user's loss returns, with what the modules of the model observed."""
    observers: list[Any] = [
        module.observed
        for module in modules_of(model)
        if callable(getattr(module, "observed", None))
    ]
    try:
        with users_code(), uncompiled():
            returned = loss_fn(*arguments)
    finally:
        observed = {name: rows for observe in observers for name, rows in observe().items()}
    if not observed:
        return returned
    losses = returned if isinstance(returned, Losses) else Losses(returned)
    return Losses(losses.loss, {**losses.stats, **observed})


class Substitutes:
    """Copies of all parameters and buffers, so that whatever a layer writes is thrown away."""

    def __init__(self, model: nn.Module, trained: dict[str, nn.Parameter]) -> None:
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        self.trained = {name: parameter.detach().clone() for name, parameter in trained.items()}
        self.others = {
            name: tensor.detach().clone() for name, tensor in state.items() if name not in trained
        }

    @property
    def untouched(self) -> bool:
        """Whether nothing was written to the copies; torch counts the writes of each tensor."""
        return all(
            tensor._version == 0 for tensor in (*self.trained.values(), *self.others.values())
        )


class Originals(Substitutes):
    """The parameters themselves, off their graphs, and copies of all buffers.

    For a model that is known to write to no parameter, since a large one takes long to copy.
    """

    def __init__(self, model: nn.Module, trained: dict[str, nn.Parameter]) -> None:
        self.trained = {name: parameter.detach() for name, parameter in trained.items()}
        self.others = {
            name: parameter.detach()
            for name, parameter in model.named_parameters()
            if name not in trained
        } | {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def loss_of_one(
    call: LossCall, trained: dict[str, torch.Tensor], others: dict[str, torch.Tensor], record: Chunk
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a chunk that holds one unit, as a scalar, and its statistics."""
    state = {f"model.{name}": value for name, value in (trained | others).items()}
    losses, stats = per_unit(functional_call(call, state, record.arguments), record)
    return losses.sum(), stats


def per_unit(returned: object, chunk: Chunk) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return loss and statistics of each unit of a chunk: means over the unit's rows."""
    losses, stats = per_example(returned, chunk.size * chunk.rows), statistics_of(returned)
    if chunk.rows == 1:
        return losses, stats
    shape = (chunk.size, chunk.rows)
    return losses.unflatten(0, shape).mean(1), {
        name: values.double().unflatten(0, shape).mean(1) for name, values in stats.items()
    }
