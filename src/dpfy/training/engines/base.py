"""What every engine is given and what it gives back."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.func import functional_call

from dpfy.mechanisms.clipping import Weigh
from dpfy.training.chunk import Chunk
from dpfy.training.losses import per_example

LossFn = Callable[..., Any]


@dataclass(frozen=True)
class BoundedSums:
    """The clipped sum of one chunk, a tensor per trainable parameter, in whole multiples of the grid. Sensitive."""

    gradients: list[torch.Tensor]


class Engine(ABC):
    """Sums weighed per-record gradients of one chunk.

    An engine looks at one chunk and keeps nothing: parameters and buffers are substituted for the call, so the user's
    model is never changed, not even by a layer that writes to its own buffers.
    """

    name: ClassVar[str]
    isolation: ClassVar[str]  # how it is known that one record cannot influence another one's gradient

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        self.model = model
        self.parameters = parameters

    @abstractmethod
    def bounded_sums(self, loss_fn: LossFn, chunk: Chunk, weigh: Weigh, grid: float) -> BoundedSums:
        """Return Σ weight·gradient over the chunk, each record rounded to ``grid`` before it is added."""


class LossCall(nn.Module):
    """Gives the user's model a parent, so that ``functional_call`` can substitute parameters inside ``loss_fn``."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        # Not as an attribute of its own: a loss that is a module would be registered, and a parameter that has two
        # names is not put back as it was.
        self._call = lambda *arguments: loss_fn(*arguments)

    def forward(self, *arguments: Any) -> Any:
        """Call the user's loss; it uses the model it closed over."""
        return self._call(*arguments)


class Substitutes:
    """Copies of all parameters and buffers, so that whatever a layer writes to is thrown away."""

    def __init__(self, model: nn.Module, trained: dict[str, nn.Parameter]) -> None:
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        self.trained = {name: parameter.detach().clone() for name, parameter in trained.items()}
        self.others = {name: tensor.detach().clone() for name, tensor in state.items() if name not in trained}

    @property
    def untouched(self) -> bool:
        """Whether nothing was written to the copies since they were made; torch counts."""
        return all(tensor._version == 0 for tensor in (*self.trained.values(), *self.others.values()))


def loss_of_one(call: LossCall, trained: dict[str, torch.Tensor], others: dict[str, torch.Tensor],
                record: Chunk) -> torch.Tensor:
    """Return the loss of a chunk that holds a single record, as a scalar."""
    state = {f"model.{name}": value for name, value in (trained | others).items()}
    return per_example(functional_call(call, state, record.arguments), size=1).sum()
