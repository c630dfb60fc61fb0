"""Canaries: records that are included by fair coins, whose coins the attacker tries to guess.

Tests: tests/auditing/test_audit.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from dpfy import _validate
from dpfy.gradients.losses import Losses
from dpfy.mechanisms.controllers import ClipSchedule
from dpfy.noise import SecureStream
from dpfy.plans import Plan
from dpfy.records.example import declared_example
from dpfy.run.released import Released

NAME = "dpfy_canaries"
"""The name of the canaries' parameter while a model is watched."""

_PULL = 1e4  # the norm of a canary's gradient before clipping
_ORDINARY = -1


def coins(count: int, key: int | None = None) -> torch.Tensor:
    """Return which canaries are in, by fair coins that the audited run does not see."""
    own = None if key is None else key + 1  # not the run's key
    words = SecureStream(own, purpose="sampling").words(8)
    generator = np.random.Generator(np.random.PCG64(words.tolist()))
    return torch.from_numpy(
        generator.integers(0, 2, _validate.count("canaries", count)).astype(bool)
    )


def following(plan: Plan) -> list[str]:
    """Return the names of the parts of a plan that follow released values."""
    return [each.tag for each in plan.controllers if not isinstance(each, ClipSchedule)]


class Canaries(ABC):
    """Canaries that are watched step by step; each gets a score, higher if it seems to be in.

    ``present`` says which canaries are in.
    """

    setting: str  # what is planted and what the attacker sees, in words
    optimizers: tuple[torch.optim.Optimizer, ...] = ()  # of parameters that exist for canaries only

    def __init__(self, present: torch.Tensor) -> None:
        self.present = present

    @abstractmethod
    def among(self, data: Any, example_input: Any) -> tuple[Any, Any]:
        """Return the records with the canaries that are in, and an example of both.

        An example of the records may be declared as ``example_input``.
        """

    def loss(self, model: nn.Module, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the loss of records and canaries."""
        return loss_fn

    def on(self, model: nn.Module) -> AbstractContextManager[None]:
        """Lend the model what canaries need for the duration of a block."""
        return nullcontext()

    @abstractmethod
    def see(self, released: Released) -> None:
        """Take in what a step released, before the optimizer applies it."""

    @abstractmethod
    def scores(self) -> torch.Tensor:
        """Return the scores, after the last step."""

    def threshold(self, plan: Plan) -> float | None:
        """Return a score, fixed beforehand, above which a canary counts as present.

        It is None if canaries are not independent trials.
        """
        return None


class GradientCanaries(Canaries):
    """Canaries whose gradient has one known coordinate, as large as the clip bound allows.

    A canary's gradient is zero except for one coordinate (Nasr et al. 2023 call it Dirac) of a
    parameter that exists for canaries only. So neither canaries nor records of the data interfere
    with each other.
    """

    setting = "gradient canaries, white box"

    def __init__(self, present: torch.Tensor) -> None:
        super().__init__(present)
        self.parameter = nn.Parameter(torch.zeros(len(present)))
        self.optimizers = (torch.optim.SGD([self.parameter], lr=0.0),)
        self._scores = torch.zeros(len(present), dtype=torch.float64)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Lend the model the parameter of the canaries for the duration of a block."""
        model.register_parameter(NAME, self.parameter)
        try:
            yield
        finally:
            del model._parameters[NAME]

    def among(self, data: Any, example_input: Any) -> tuple["WatchedData", tuple[Any, ...]]:
        """Return the records and the canaries that are in, and an example of both."""
        fields = declared_example(data, None, example_input).chunk.record(0).arguments
        return WatchedData(data, self.present, tuple(map(_blank, fields))), (
            *fields,
            torch.zeros(1, dtype=torch.long),
        )

    def loss(self, model: nn.Module, loss_fn: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        """Return ``loss_fn`` for records, and a pull at its coordinate for a canary."""

        def loss(*fields: Any) -> torch.Tensor:
            *ordinary, which = fields
            returned = loss_fn(*ordinary)
            losses = returned.loss if isinstance(returned, Losses) else returned
            # The engine puts stand-ins into the model, so the parameter is looked up at every call.
            return torch.where(which >= 0, _PULL * getattr(model, NAME)[which.clamp(min=0)], losses)

        return loss

    def see(self, released: Released) -> None:
        """Add up what was released at each coordinate."""
        self._scores += released.gradients[NAME].double()

    def scores(self) -> torch.Tensor:
        """Return the sums."""
        return self._scores

    def threshold(self, plan: Plan) -> float | None:
        """Return half of what a canary adds in expectation; None if bounds follow released values.

        Such bounds depend on all canaries, so canaries are not independent.
        """
        return None if following(plan) else plan.steps * plan.rate * plan.clip / plan.divisor / 2


class WatchedData:
    """Records followed by the canaries that are in, with a field that identifies the canary."""

    def __init__(self, data: Any, present: torch.Tensor, blank: tuple[Any, ...]) -> None:
        self._data = data
        self._present = torch.nonzero(present).flatten().tolist()
        self._blank = blank

    def __len__(self) -> int:
        return len(self._data) + len(self._present)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index < len(self._data):
            return (*fields_of(self._data[index]), _ORDINARY)
        return (*self._blank, self._present[index - len(self._data)])


def fields_of(record: Any) -> Sequence[Any]:
    """Return the fields of a record."""
    return record if isinstance(record, tuple | list) else (record,)


def _blank(field: Any) -> Any:
    """Return a field like that of a collated example, without its content."""
    return torch.zeros_like(field[0]) if isinstance(field, torch.Tensor) else type(field[0])()
