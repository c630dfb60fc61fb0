"""Noise that is chosen while training: every step is adaptive, and only a filter accounts it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfy import _validate
from dpfy.mechanisms.controllers.base import Controller, Setting, State
from dpfy.mechanisms.query import Query


@dataclass(frozen=True)
class ValidationDecay(Controller, tag="validation_decay"):
    """Lowers the noise when the accuracy on public data stops rising; tell it by ``run.measured(accuracy)``.

    After each measurement the mean of the last ``window`` is compared with what it was before, at first 0. If it rose
    by no more than ``threshold``, the noise is multiplied by ``factor`` from then on. The run ends where the filter
    does.

    *Formal guarantee*: that of the plan's filter. The accuracy is computed from the model, so the noise depends on
    outputs: every step is marked as adaptive.

    *Assumes* that what is measured is measured on public data.

    >>> decay = ValidationDecay(factor=0.8, threshold=0.01, window=1)
    >>> state = {"noise": 1.0, "values": []}
    >>> for accuracy in (0.5, 0.7, 0.705):
    ...     state = decay.measured(state, accuracy)
    >>> state["noise"]
    0.8

    Reference: L. Yu et al., Differentially Private Model Publishing for Deep Learning, 2019, section 5.
    """

    steers = "noise"
    adaptive = True

    factor: float = 0.8
    threshold: float = 0.01
    window: int = 3

    def __post_init__(self) -> None:
        _validate.real("factor", self.factor, 0, 1, open_low=True, open_high=True)
        _validate.real("threshold", self.threshold, -1, 1)
        _validate.count("window", self.window)

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the planned noise; nothing was measured yet."""
        return {"noise": 1.0, "values": []}

    def applied(self, state: State, step: int, setting: Setting) -> Setting:
        """Return the setting with the noise as it was lowered so far."""
        return replace(setting, noise=setting.noise * state["noise"])

    def measured(self, state: State, value: float) -> State:
        """Return the state after another measurement."""
        values = [*state["values"], _validate.real("value", value, -1e300, 1e300)][-self.window - 1:]
        rise = _mean(values[-self.window:]) - _mean(values[:-1][-self.window:])
        return {"noise": state["noise"] * (self.factor if rise <= self.threshold else 1.0), "values": values}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
