"""Noise that is chosen while training: every step is adaptive, and only a filter accounts it.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers.base import (
    Controller,
    Outcome,
    State,
    StepConfig,
    kept_within,
    with_statistic,
)
from dpfy.mechanisms.query import NormOfSum, Query

_NORM = "norm of the sum"


@dataclass(frozen=True)
class ValidationDecay(Controller, tag="validation_decay"):
    """Lowers the noise when the accuracy on public data stops rising.

    The training loop reports it by ``run.measured(accuracy)``. After each report the mean
    of the last ``window`` values is compared with the mean before, at first 0. If it rose by no
    more than ``threshold``, the noise is multiplied by ``factor`` from then on. The run ends where
    the filter does.

    *Formal guarantee*: that of the plan's filter. The accuracy is computed from the model, so the
    noise depends on outputs: every step is marked as adaptive.

    *Assumes* that the accuracy is measured on public data.

    Args:
        factor: The factor by which noise is lowered, in (0, 1).
        threshold: The least rise of the mean that counts as progress, in [−1, 1].
        window: The number of values in a mean, at least 1.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> decay = ValidationDecay(factor=0.8, threshold=0.01, window=1)
    >>> state = {"noise": 1.0, "values": []}
    >>> for accuracy in (0.5, 0.7, 0.705):
    ...     state = decay.on_public_metric(state, accuracy)
    >>> state["noise"]
    0.8

    Reference: L. Yu et al., Differentially Private Model Publishing for Deep Learning, 2019,
    section 5.
    """

    controls = "noise"
    adaptive = True

    factor: float = 0.8
    threshold: float = 0.01
    window: int = 3

    def __post_init__(self) -> None:
        _validate.real("factor", self.factor, 0, 1, open_low=True, open_high=True)
        _validate.real("threshold", self.threshold, -1, 1)
        _validate.count("window", self.window)

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the planned noise and no measurements."""
        return {"noise": 1.0, "values": []}

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration with the noise as lowered so far."""
        return replace(config, noise=config.noise * state["noise"])

    def on_public_metric(self, state: State, value: float) -> State:
        """Return the state after another measurement."""
        values = [*state["values"], _validate.real("value", value, -1e300, 1e300)][
            -self.window - 1 :
        ]
        rise = _mean(values[-self.window :]) - _mean(values[:-1][-self.window :])
        return {
            "noise": state["noise"] * (self.factor if rise <= self.threshold else 1.0),
            "values": values,
        }


@dataclass(frozen=True)
class GradientNormNoise(Controller, tag="norm_noise"):
    """Keeps the noise in proportion to the norm of the gradient.

    Its standard deviation per coordinate is ratio·‖gradient‖/√d. Every step releases the norm of
    its sum too, with noise, and the noise of the next step follows it, within [least, most] times
    the planned noise. With ``ratio`` 1, noise and gradient have the same norm, which has the least
    privacy loss for each unit of progress where the loss is priced as 1/σ; priced as 1/σ² there is
    no such optimum.

    *Formal guarantee*: that of the plan's filter: every step is marked as adaptive. The norm moves
    by at most one bound with the sum, and takes ``share`` of the noise budget of its step.

    Args:
        ratio: The norm of the noise over that of the gradient, above zero; by default that of the
            first step, which has the planned noise.
        share: The part of a step's noise budget that releases the norm, in (0, 1).
        least: The least noise as a factor of the planned one, above zero.
        most: The most noise as a factor of the planned one, at least ``least``.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> from dpfy.plans import dpsgd
    >>> plan = dpsgd(rate=0.1, divisor=60, steps=50, controllers=[GradientNormNoise()])
    >>> plan = plan.calibrate(epsilon=2.0, delta=1e-5)
    >>> plan.filter.tag, plan.event.adaptive
    ('renyi_filter', True)

    Reference: D. Fay et al., Adaptive Hyperparameter Selection for Differentially Private Gradient
    Descent, 2023.
    """

    controls = "noise"
    adaptive = True

    ratio: float | None = None
    share: float = 0.05
    least: float = 0.5
    most: float = 2.0

    def __post_init__(self) -> None:
        for name in ("least", "most") if self.ratio is None else ("ratio", "least", "most"):
            _validate.positive(name, getattr(self, name))
        _validate.real("share", self.share, 0, 1, open_low=True, open_high=True)
        if self.least > self.most:
            raise InvalidArgument(
                f"Expected least={self.least!r} to be at most most={self.most!r}."
            )

    def extend_query(self, query: Query) -> Query:
        """Return the query with the norm of its sum; refuse scales of single coordinates."""
        if any(leaf.scales for leaf in query.leaves):
            raise InvalidArgument(
                "Noise in proportion to the gradient's norm is the same for every coordinate; "
                "leave the scales of joint clipping out."
            )
        return with_statistic(query, NormOfSum(name=_NORM, share=self.share))

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the planned noise."""
        return {
            "noise": 1.0,
            "ratio": self.ratio,
            "dimension": sum(each.numel() for each in parameters.values()),
        }

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration with the present noise."""
        return replace(config, noise=config.noise * state["noise"])

    def update(self, state: State, released: Outcome) -> State:
        """Return the noise that is in proportion to the released norm.

        A run without noise stays without.
        """
        stddev, (bound,) = next(iter(released.stddevs.values())), released.bounds.values()
        norm = max(0.0, float(released.statistics[_NORM])) * bound / math.sqrt(state["dimension"])
        ratio = state["ratio"] or (stddev / norm if norm else None)
        if not stddev or ratio is None:
            return state
        return {
            **state,
            "ratio": ratio,
            "noise": kept_within(state["noise"] * ratio * norm / stddev, self.least, self.most),
        }


def _mean(values: list[float]) -> float:
    """Return the mean; 0 if there are no values."""
    return sum(values) / len(values) if values else 0.0
