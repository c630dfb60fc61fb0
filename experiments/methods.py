"""What a method changes of DP-SGD: its plan or its optimizer. Numbers may follow a name after colons."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import named_schedule
from dpfy.optim import ADADP
from dpfy.training.adaptive import named_clipping, named_optimizer

if TYPE_CHECKING:
    from experiments.cell import Cell

_SCHEDULES = ("time", "exponential", "step", "polynomial")
METHODS = ("dp-sgd", "quantile", "adadp", *_SCHEDULES)


def kind_of(method: str) -> str:
    """Return the name of a method, which numbers may follow; refuse what is none.

    >>> kind_of("time:0.3")
    'time'
    """
    kind = method.partition(":")[0]
    if kind not in METHODS or (kind == "dp-sgd" and method != kind):
        raise InvalidArgument(f"Expected method={method!r} to be one of {', '.join(METHODS)}.")
    if kind in _SCHEDULES:
        named_schedule(method)
    elif kind == "quantile":
        named_clipping(method)
    elif kind == "adadp":
        named_optimizer(method)
    return kind


def method_name(method: str) -> str:
    """Return the name under which results are published.

    >>> method_name("dp-sgd"), method_name("time:0.3")
    ('dpsgd', 'time')
    """
    return kind_of(method).replace("dp-sgd", "dpsgd")


def plan_options(cell: "Cell") -> dict[str, Any]:
    """Return the arguments of :func:`dpfy.dpsgd` that the method of a cell means."""
    kind = kind_of(cell.method)
    if kind in _SCHEDULES:
        return {"noise_schedule": cell.method}
    return {"controllers": [named_clipping(cell.method)]} if kind == "quantile" else {}


def make_optimizer(cell: "Cell", parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a cell."""
    if kind_of(cell.method) == "adadp":
        return ADADP(parameters, cell.learning_rate, **named_optimizer(cell.method)[1])
    return torch.optim.SGD(parameters, lr=cell.learning_rate, momentum=cell.momentum)
