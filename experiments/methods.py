"""What a method changes of DP-SGD: its plan, optimizer or activations. Numbers may follow a name
after colons.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import dpfy
from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers import named_schedule
from dpfy.mechanisms.controllers.names import named
from dpfy.models import TemperedSigmoid
from dpfy.optim import ADADP
from dpfy.trainer.options import named_clipping, named_optimizer
from experiments import individual
from experiments.schedules import factors

if TYPE_CHECKING:
    from experiments.cell import Cell

_SCHEDULES = ("time", "exponential", "step", "polynomial")
METHODS = (
    "dp-sgd",
    "dpis",
    "dpis-released",
    "decay",
    "tempered-sigmoid",
    "quantile",
    "adadp",
    "adam",
    "idp-sample",
    "idp-scale",
    "cyclic",
    "ftrl",
    *_SCHEDULES,
)


def kind_of(method: str) -> str:
    """Return the name of a method, which numbers may follow; refuse what is none.

    >>> kind_of("time:0.3"), kind_of("dpis:0.6:2")
    ('time', 'dpis')
    """
    kind = method.partition(":")[0]
    if kind not in METHODS or (kind in ("dp-sgd", "adam", "cyclic") and method != kind):
        raise InvalidArgument(f"Expected method={method!r} to be one of {', '.join(METHODS)}.")
    if kind in (*_SCHEDULES, "decay"):
        named_schedule(_schedule(method))
    elif kind == "quantile":
        named_clipping(method)
    elif kind == "adadp":
        named_optimizer(method)
    elif kind in _OWN:
        named("method", method, _OWN)
    elif kind == "ftrl":
        _validate.choice("strategy", method.partition(":")[2], tuple(_FTRL))
    elif individualised(method):
        individual.groups(case_of(method))
    return kind


def individualised(method: str) -> bool:
    """Return whether groups of records have an ε of their own.

    >>> individualised("idp-scale:1"), individualised("dpis:0.6")
    (True, False)
    """
    return method.startswith("idp-")


def case_of(method: str) -> str:
    """Return the case of the groups' ε that an individualised method names.

    >>> case_of("idp-sample:2")
    '2'
    """
    return method.partition(":")[2]


def method_name(method: str) -> str:
    """Return the name under which results are published.

    >>> method_name("dp-sgd"), method_name("time:0.3")
    ('dpsgd', 'time')
    """
    return kind_of(method).replace("dp-sgd", "dpsgd")


def accounting(method: str) -> str:
    """Return how the steps of a method compose: those that depend on what was released need a
    filter.

    >>> accounting("dp-sgd"), accounting("dpis-released:0.8:3:0.8")
    ('pld', 'rdp-filter')
    """
    return "rdp-filter" if kind_of(method) == "dpis-released" else "pld"


def make_plan(cell: "Cell", records: int) -> dpfy.Plan:
    """Return the plan of a cell for so many records, without its noise unless groups have an ε of
    their own.
    """
    kind = kind_of(cell.method)
    if kind in ("dpis", "dpis-released"):
        return dpfy.dpis(
            records=records,
            batch_size=cell.rate * records,
            steps=cell.steps,
            clip=cell.clip,
            **named("method", cell.method, _OWN),
        )
    if individualised(cell.method):
        return dpfy.idpsgd(
            records=records,
            batch_size=cell.rate * records,
            steps=cell.steps,
            clip=cell.clip,
            groups=individual.groups(case_of(cell.method)),
            delta=cell.delta,
            method=kind.removeprefix("idp-"),
        )
    if kind == "ftrl":
        return dpfy.dpftrl(
            records=records,
            batch_size=round(cell.rate * records),
            steps=cell.steps,
            clip=cell.clip,
            momentum=cell.momentum,
            learning_rates=factors(cell.schedule, cell.steps),
            **_FTRL[cell.method.partition(":")[2]],
        )
    if kind == "cyclic":
        return dpfy.dpsgd(
            records=records,
            batch_size=round(cell.rate * records),
            steps=cell.steps,
            clip=cell.clip,
            sampling="cyclic",
            relation="zero_out",
        )
    options: dict[str, Any] = {}
    if kind in (*_SCHEDULES, "decay"):
        options["noise_schedule"] = _schedule(cell.method)
    elif kind == "quantile":
        options["controllers"] = [named_clipping(cell.method)]
    return dpfy.dpsgd(records=records, rate=cell.rate, steps=cell.steps, clip=cell.clip, **options)


def make_optimizer(cell: "Cell", parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a cell."""
    if kind_of(cell.method) == "adadp":
        return ADADP(parameters, cell.learning_rate, **named_optimizer(cell.method)[1])
    if cell.method == "adam":
        return torch.optim.Adam(parameters, lr=cell.learning_rate, betas=(cell.momentum, 0.999))
    return torch.optim.SGD(parameters, lr=cell.learning_rate, momentum=cell.momentum)


def activation(method: str) -> Callable[[], nn.Module]:
    """Return the activation of networks that have one: tanh, unless the method is about it.

    >>> activation("dp-sgd")(), activation("tempered-sigmoid:1.5:3:0.75")()
    (Tanh(), TemperedSigmoid(1.5, 3.0, 0.75))
    """
    return (
        partial(TemperedSigmoid, **named("method", method, _OWN))
        if kind_of(method) == "tempered-sigmoid"
        else nn.Tanh
    )


def _schedule(method: str) -> str:
    """The name that the library has for a schedule; ``decay`` is what the literature calls
    exponential decay.
    """
    return method.replace("decay", "exponential")


def _dpis(ratio: float, slack: float = 3.0) -> dict[str, float]:
    return {"ratio": ratio, "slack": slack}


def _dpis_released(
    ratio: float, slack: float, cautious: float, clip_factor: float | None = None
) -> dict[str, Any]:
    return {
        "ratio": ratio,
        "slack": slack,
        "norm_sum": "released",
        "cautious": cautious,
        "clip_factor": clip_factor,
    }


def _tempered(scale: float, temperature: float, offset: float) -> dict[str, float]:
    return {"scale": scale, "temperature": temperature, "offset": offset}


_FTRL: dict[str, dict[str, Any]] = {
    "blt": {"strategy": "blt"},
    "banded": {"strategy": "banded"},
    "poisson": {"strategy": "banded", "sampling": "cyclic_poisson"},
}
_OWN: dict[str, Callable[..., dict[str, Any]]] = {
    "dpis": _dpis,
    "dpis-released": _dpis_released,
    "tempered-sigmoid": _tempered,
}
