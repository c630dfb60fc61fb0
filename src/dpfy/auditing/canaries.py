"""Canaries: records that pull at one known coordinate as hard as the clip bound lets them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from dpfy import _validate
from dpfy.mechanisms.noise import SecureStream
from dpfy.training.losses import Losses

NAME = "dpfy_canaries"
"""What the parameter of the canaries is called while a model is watched."""

_PULL = 1e4  # the norm of a canary's gradient before clipping
_ORDINARY = -1


class Canaries:
    """Gradient canaries at coordinates of their own, each of which is in the data by its own fair coin.

    A canary's gradient is zero but for one coordinate (Nasr et al. 2023 call it Dirac) of a parameter that exists for
    canaries only: they do not disturb each other, and no record of the data disturbs them.

    *Assumes*: the coins come from a generator that the audited run does not see.
    """

    def __init__(self, count: int, key: int | None = None) -> None:
        words = SecureStream(None if key is None else key + 1, purpose="sampling").words(8)  # not the run's own
        generator = np.random.Generator(np.random.PCG64(words.tolist()))
        self.parameter = nn.Parameter(torch.zeros(_validate.count("canaries", count)))
        self.present = torch.from_numpy(generator.integers(0, 2, count).astype(bool))

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Lend the model the parameter of the canaries for the length of a block."""
        model.register_parameter(NAME, self.parameter)
        try:
            yield
        finally:
            del model._parameters[NAME]


class WatchedData:
    """Records and, after them, the canaries that are in; a field more says which one it is, or that it is none."""

    def __init__(self, data: Any, canaries: Canaries) -> None:
        self._data = data
        self._present = torch.nonzero(canaries.present).flatten().tolist()
        self._blank = tuple(_blank(field) for field in _fields(data[0]))

    def __len__(self) -> int:
        return len(self._data) + len(self._present)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index < len(self._data):
            return (*_fields(self._data[index]), _ORDINARY)
        return (*self._blank, self._present[index - len(self._data)])


def watched_loss(model: nn.Module, loss_fn: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """Return a loss that is ``loss_fn`` for ordinary records and pulls at its coordinate for a canary."""
    def loss(*fields: Any) -> torch.Tensor:
        *ordinary, which = fields
        returned = loss_fn(*ordinary)
        losses = returned.loss if isinstance(returned, Losses) else returned
        # The engine puts stand-ins into the model, so the parameter is looked up at every call.
        return torch.where(which >= 0, _PULL * getattr(model, NAME)[which.clamp(min=0)], losses)

    return loss


def _fields(record: Any) -> Sequence[Any]:
    return record if isinstance(record, tuple | list) else (record,)


def _blank(field: Any) -> Any:
    """A field like those of records, without what it says."""
    return torch.zeros_like(field) if isinstance(field, torch.Tensor) else type(field)(0)
