"""Noise and bounds that a recipe chooses from what was released."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpfy import _validate
from dpfy.mechanisms.controllers.base import Controller, State, StepConfig, by_name, with_bounds
from dpfy.mechanisms.query import Query


@dataclass(frozen=True)
class RecipeControlled(Controller, tag="directed"):
    """Takes noise and clip bounds, as factors of the planned ones, from the recipe that runs the
    plan.

    *Formal guarantee*: that of the plan's filter: every step is marked as adaptive.

    *Assumes* that the recipe chooses from released and public values.

    >>> from dpfy.plans import dpsgd
    >>> plan = dpsgd(records=600, batch_size=600, steps=20, controllers=[Directed()]).calibrate(epsilon=2.0, delta=1e-5)
    >>> plan.filter.tag, plan.event.adaptive
    ('renyi_filter', True)
    """

    controls = "noise"
    adaptive = True

    def start(self, query: Query, parameters: Mapping[str, Any]) -> State:
        """Return what was planned."""
        return {"noise": 1.0, "bounds": 1.0}

    def configure(self, state: State, step: int, setting: StepConfig) -> StepConfig:
        """Return the setting with the noise and the bounds that were chosen last."""
        bounds = {
            name: bound * state["bounds"] for name, bound in by_name(setting.query.leaves).items()
        }
        return replace(with_bounds(setting, bounds), noise=setting.noise * state["noise"])

    def directed(self, noise: float, bounds: float = 1.0) -> State:
        """Return the state with these factors."""
        return {
            "noise": _validate.positive("noise", noise),
            "bounds": _validate.positive("bounds", bounds),
        }
