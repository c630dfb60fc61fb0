"""Noise and bounds that a recipe chooses from what was released.

Tests: tests/recipes/test_noisy_max.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfy import _validate
from dpfy.mechanisms.controllers.base import Controller, State, StepConfig, by_name, with_bounds
from dpfy.mechanisms.query import Query


@dataclass(frozen=True)
class RecipeControlled(Controller, tag="directed"):
    """Takes noise and clip bounds from the recipe that runs the plan.

    Both are factors of the planned ones.

    *Formal guarantee*: that of the plan's filter: every step is marked as adaptive.

    *Assumes* that the recipe chooses from released and public values.

    >>> from dpfy.plans import dpsgd
    >>> plan = dpsgd(records=600, batch_size=600, steps=20, controllers=[RecipeControlled()])
    >>> plan = plan.calibrate(epsilon=2.0, delta=1e-5)
    >>> plan.filter.tag, plan.event.adaptive
    ('renyi_filter', True)
    """

    controls = "noise"
    adaptive = True

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return the planned noise and bounds."""
        return {"noise": 1.0, "bounds": 1.0}

    def configure(self, state: State, step: int, config: StepConfig) -> StepConfig:
        """Return the configuration with the noise and the bounds that were chosen last."""
        bounds = {
            name: bound * state["bounds"] for name, bound in by_name(config.query.leaves).items()
        }
        return replace(with_bounds(config, bounds), noise=config.noise * state["noise"])

    def directed(self, noise: float, bounds: float = 1.0) -> State:
        """Return the state with these factors of the planned noise and bounds, above zero."""
        return {
            "noise": _validate.positive("noise", noise),
            "bounds": _validate.positive("bounds", bounds),
        }
