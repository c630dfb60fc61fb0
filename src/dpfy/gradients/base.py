"""What every engine is given and what it gives back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.func import functional_call

from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import Losses, per_example, statistics_of
from dpfy.mechanisms.clipping import Clipping
from dpfy.sandbox.torch_settings import users_code
from dpfy.sandbox.uncompiled import uncompiled

LossFn = Callable[..., Any]


Examples = Callable[[int, int], Chunk]
"""From a number of records and a seed to as many synthetic records."""


class Unsupported(Exception):
    """An engine cannot serve this model; the text says why, and speaks of layers only."""


@dataclass(frozen=True)
class RecordStats:
    """What a pass has shown of some records besides their gradients. Sensitive.

    ``norms`` are the squared norms [records, groups] by which they were clipped, ``stats`` what
    ``loss_fn`` returned beside the losses.
    """

    norms: torch.Tensor
    stats: Mapping[str, torch.Tensor]


def set_to_zero(total: torch.Tensor) -> None:
    """Overwrite it with zeros, on this thread: torch would divide the work, and wait for a core
    that may draw noise.
    """
    if total.is_cpu:
        total.numpy().fill(0.0)
    else:
        total.zero_()


class BoundedSums(ABC):
    """The clipped sum of one chunk. Sensitive."""

    seen: tuple[RecordStats, ...]  # every record once

    @abstractmethod
    def add_to(self, totals: Sequence[torch.Tensor]) -> None:
        """Add it to the float64 ``totals``, one for each trained parameter."""

    def formed_in(self, totals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return it, a tensor for each trained parameter: as it was formed, or in its total, which
        is overwritten.

        The tensors become the caller's, who overwrites them.
        """
        for total in totals:
            set_to_zero(total)
        self.add_to(totals)
        return [*totals]


class Summed(BoundedSums):
    """A sum that is formed already, a tensor per trained parameter."""

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
    """Sums weighed per-record gradients of one chunk.

    An engine looks at one chunk and keeps nothing of it: whatever the computation does to
    parameters and buffers, the user's model is as it was.
    """

    name: ClassVar[str]
    isolation: ClassVar[
        str
    ]  # how it is known that one record cannot influence another one's gradient
    isolates: ClassVar[
        bool
    ]  # whether that holds by construction, whatever the model and the loss do
    one_by_one: ClassVar[bool] = False  # whether generators have fresh states for every record
    provides_gradients: ClassVar[bool] = False  # of every record, for coordinates of their own
    rounding: ClassVar[
        float
    ]  # by how much one record more may move each other's contribution, in clip bounds

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        self.model = model
        self.parameters = parameters
        self.records_at_once: int | None = (
            None  # the largest chunk that suits the engine; None for any
        )
        self.accepts: Callable[[Chunk], bool] = lambda chunk: (
            True
        )  # or its records are to be computed one by one

    def prepare(self, loss_fn: LossFn, examples: Examples) -> None:
        """Learn what the engine has to know of the model, on synthetic records; raise
        ``Unsupported`` otherwise.
        """
        return

    @abstractmethod
    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, clipping: Clipping) -> BoundedSums:
        """Return Σ weight·gradient over the chunk; nothing that a record does can fail after
        that.
        """


class LossCall(nn.Module):
    """Gives the user's model a parent, so that ``functional_call`` can substitute parameters inside
    ``loss_fn``.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        # Not as an attribute of its own: a loss that is a module would be registered, and a
        # parameter that has two names is not put back as it was.
        self._call = lambda *arguments: loss_fn(*arguments)

    def forward(self, *arguments: Any) -> Any:
        """Call the user's loss, which uses the model it closed over; add what its modules observed
        of the records.
        """
        observers: list[Any] = [
            module.observed
            for module in self.model.modules()
            if callable(getattr(module, "observed", None))
        ]
        try:
            with users_code(), uncompiled():
                returned = self._call(*arguments)
        finally:
            observed = {name: rows for observe in observers for name, rows in observe().items()}
        if not observed:
            return returned
        losses = returned if isinstance(returned, Losses) else Losses(returned)
        return Losses(losses.loss, {**losses.stats, **observed})


class Substitutes:
    """Copies of all parameters and buffers, so that whatever a layer writes to is thrown away."""

    def __init__(self, model: nn.Module, trained: dict[str, nn.Parameter]) -> None:
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        self.trained = {name: parameter.detach().clone() for name, parameter in trained.items()}
        self.others = {
            name: tensor.detach().clone() for name, tensor in state.items() if name not in trained
        }

    @property
    def untouched(self) -> bool:
        """Whether nothing was written to the copies since they were made; torch counts."""
        return all(
            tensor._version == 0 for tensor in (*self.trained.values(), *self.others.values())
        )


def loss_of_one(
    call: LossCall, trained: dict[str, torch.Tensor], others: dict[str, torch.Tensor], record: Chunk
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a chunk that holds a single unit, as a scalar, and its statistics."""
    state = {f"model.{name}": value for name, value in (trained | others).items()}
    losses, stats = per_unit(functional_call(call, state, record.arguments), record)
    return losses.sum(), stats


def per_unit(returned: object, chunk: Chunk) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of each unit of a chunk, and its statistics: means over the unit's rows."""
    losses, stats = per_example(returned, chunk.size * chunk.rows), statistics_of(returned)
    if chunk.rows == 1:
        return losses, stats
    shape = (chunk.size, chunk.rows)
    return losses.unflatten(0, shape).mean(1), {
        name: values.double().unflatten(0, shape).mean(1) for name, values in stats.items()
    }
