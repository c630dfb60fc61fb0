"""Coordinates in which gradients are bounded, learned from what was released.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.mechanisms.controllers.base import (
    Controller,
    Coordinates,
    Outcome,
    State,
    StepConfig,
    require_clipping,
)
from dpfy.mechanisms.query import Query


@dataclass(frozen=True)
class AdaClip(Controller, tag="adaclip"):
    """Clips (g − a)/b instead of g, with an offset a and a scale b learned for every coordinate.

    The offset a follows the released gradients, and s² their squared distance from it less the
    variance of the noise, kept in [least, most]; b_i = √(s_i·Σs_j). The first step has a = 0 and
    all scales equal, which is the plan's clip.

    *Formal guarantee*: that of the plan: offset and scale are constants when a step begins, the
    clipped vectors have norm 1 at most in the new coordinates, and the way back is post-processing.

    *Assumes* an engine that has every record's gradient: ``vmap`` or ``loop``.

    Args:
        mean_decay: The weight of the old offset in its moving average, in [0, 1).
        variance_decay: The weight of the old variance in its moving average, in [0, 1).
        least: The least squared distance that enters the average, from 1e-24 to 1e24.
        most: The largest one, at least ``least``.

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> from dpfy.plans import dpsgd
    >>> plan = dpsgd(
    ...     rate=0.01, divisor=600, steps=100, noise_multiplier=1.0, controllers=[AdaClip()]
    ... )
    >>> plan.controllers[0].controls
    'coordinates'

    Reference: V. Pichapati et al., AdaCliP: Adaptive Clipping for Private SGD, 2019, Algorithm 2
    and Theorem 2.
    """

    controls = "coordinates"

    mean_decay: float = 0.99
    variance_decay: float = 0.9
    least: float = 1e-12
    most: float = 10.0

    def __post_init__(self) -> None:
        for name in ("mean_decay", "variance_decay"):
            _validate.real(name, getattr(self, name), 0, 1, open_high=True)
        for name in ("least", "most"):
            _validate.real(name, getattr(self, name), 1e-24, 1e24)
        if self.least > self.most:
            raise InvalidArgument(
                f"Expected least={self.least!r} to be at most most={self.most!r}."
            )

    def extend_query(self, query: Query) -> Query:
        """Return the query unchanged; refuse several clipped sums, and scales of parameters."""
        require_clipping(query, "AdaClip")
        if len(query.leaves) > 1 or query.leaves[0].scales:
            raise InvalidArgument(
                "AdaClip has a scale for every coordinate and clips all of them together: groups "
                "and scales of parameters have no place beside it. Give clip= a number."
            )
        return query

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return offsets of zero, and deviations for which every scale is the plan's bound."""
        dimension = sum(parameter.numel() for parameter in parameters.values())
        zeros = {name: parameter.detach().double() * 0 for name, parameter in parameters.items()}
        variance = query.leaves[0].bound ** 2 / dimension
        return {
            "means": zeros,
            "variances": {name: zero + variance for name, zero in zeros.items()},
        }

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration with the coordinates of this step."""
        deviations = {name: variance.sqrt() for name, variance in state["variances"].items()}
        total = sum(float(deviation.sum()) for deviation in deviations.values())
        # A norm of at most the bound in units of b/bound is one of at most 1 in units of b.
        bound = config.query.leaves[0].bound
        return replace(
            config,
            coordinates={
                name: Coordinates(state["means"][name], (deviation * total).sqrt() / bound)
                for name, deviation in deviations.items()
            },
        )

    def update(self, state: State, released: Outcome) -> State:
        """Return the moving averages of releases; frozen parameters keep theirs."""
        means, variances = dict(state["means"]), dict(state["variances"])
        for name, gradient in released.gradients.items():
            found, noise = gradient.double(), released.stddevs[name]
            distance = ((found - means[name]).square() - noise**2).clamp(self.least, self.most)
            means[name] = self.mean_decay * means[name] + (1 - self.mean_decay) * found
            variances[name] = (
                self.variance_decay * variances[name] + (1 - self.variance_decay) * distance
            )
        return {"means": means, "variances": variances}
