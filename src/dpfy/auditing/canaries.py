"""Canaries: records that are in or out by fair coins, and what a run that is watched betrays of the
coins.
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
"""What the parameter of the canaries is called while a model is watched."""

_PULL = 1e4  # the norm of a canary's gradient before clipping
_ORDINARY = -1


def coins(count: int, key: int | None = None) -> torch.Tensor:
    """Return who is in, by fair coins from a generator that the audited run does not see."""
    words = SecureStream(None if key is None else key + 1, purpose="sampling").words(
        8
    )  # not the run's own
    generator = np.random.Generator(np.random.PCG64(words.tolist()))
    return torch.from_numpy(
        generator.integers(0, 2, _validate.count("canaries", count)).astype(bool)
    )


def following(plan: Plan) -> list[str]:
    """Return what in a plan follows released values, by name."""
    return [each.tag for each in plan.controllers if not isinstance(each, ClipSchedule)]


class Canaries(ABC):
    """Canaries of which ``present`` says who is in; watched step by step, each gets a score, higher
    if it seems in.
    """

    setting: str  # what is planted and what the attacker sees, in words
    optimizers: tuple[torch.optim.Optimizer, ...] = ()  # of parameters that exist for canaries only

    def __init__(self, present: torch.Tensor) -> None:
        self.present = present

    @abstractmethod
    def among(self, data: Any, example_input: Any) -> tuple[Any, Any]:
        """Return the records and the canaries that are in, and an example of both; one of records
        may be declared.
        """

    def loss(self, model: nn.Module, loss_fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the loss of records and canaries."""
        return loss_fn

    def on(self, model: nn.Module) -> AbstractContextManager[None]:
        """Lend the model what canaries need for the length of a block."""
        return nullcontext()

    @abstractmethod
    def see(self, released: Released) -> None:
        """Take in what a step released, before the optimizer applies it."""

    @abstractmethod
    def scores(self) -> torch.Tensor:
        """Return the scores, after the last step."""

    def threshold(self, plan: Plan) -> float | None:
        """Return a score, fixed beforehand, above which a canary is taken for present; None if they
        are no trials.
        """
        return None


class GradientCanaries(Canaries):
    """Canaries that pull at one known coordinate each, as hard as the clip bound lets them.

    A canary's gradient is zero but for one coordinate (Nasr et al. 2023 call it Dirac) of a
    parameter that exists for canaries only: they do not disturb each other, and no record of the
    data disturbs them.
    """

    setting = "gradient canaries, white box"

    def __init__(self, present: torch.Tensor) -> None:
        super().__init__(present)
        self.parameter = nn.Parameter(torch.zeros(len(present)))
        self.optimizers = (torch.optim.SGD([self.parameter], lr=0.0),)
        self._scores = torch.zeros(len(present), dtype=torch.float64)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Lend the model the parameter of the canaries for the length of a block."""
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
        """Return a loss that is ``loss_fn`` for ordinary records and pulls at its coordinate for a
        canary.
        """

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
        """Return half of what a canary adds in expectation; bounds that follow all canaries make
        them dependent.
        """
        return None if following(plan) else plan.steps * plan.rate * plan.clip / plan.divisor / 2


class WatchedData:
    """Records and, after them, the canaries that are in; a field more says which one it is, or that
    it is none.
    """

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
    """A field of a record like that of a collated example, without what it says."""
    return torch.zeros_like(field[0]) if isinstance(field, torch.Tensor) else type(field[0])()
