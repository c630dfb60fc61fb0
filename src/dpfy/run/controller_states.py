"""Run the controllers of a plan: from released values to the configuration of the next step.

Tests: tests/trainer/test_options.py, tests/run/test_step.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.gradients import PER_RECORD_GRADIENTS
from dpfy.mechanisms.controllers import Outcome, State, StepConfig
from dpfy.plans import Plan


class ControllerStates:
    """Runs the controllers of a plan. All of its state is a function of released and public values.

    With several processes every one has a copy, and all see the same releases.
    """

    def __init__(self, plan: Plan, parameters: Mapping[str, nn.Parameter], engine: str) -> None:
        self._plan = plan
        self._states = [controller.start(plan.query, parameters) for controller in plan.controllers]
        if self.needs_gradients and engine not in ("auto", *PER_RECORD_GRADIENTS):
            names = " or ".join(map(repr, PER_RECORD_GRADIENTS))
            raise InvalidArgument(
                "The plan bounds gradients in coordinates of their own (adaclip); engine "
                f"{engine!r} provides norms only. Use {names}."
            )

    @property
    def needs_gradients(self) -> bool:
        """Whether every record's gradient is needed and not only its norm."""
        return any(controller.controls == "coordinates" for controller in self._plan.controllers)

    def config(self, step: int) -> StepConfig:
        """Return what a step, counted from 1, is run with."""
        config = StepConfig(self._plan.query)
        for controller, state in zip(self._plan.controllers, self._states, strict=True):
            config = controller.configure(state, step, config)
        return config

    def observe(self, released: Outcome) -> None:
        """Take in what a step released."""
        self._states = [
            controller.update(state, released)
            for controller, state in zip(self._plan.controllers, self._states, strict=True)
        ]

    def on_public_metric(self, value: float) -> None:
        """Take in what was measured on public data."""
        self._states = [
            controller.on_public_metric(state, value)
            for controller, state in zip(self._plan.controllers, self._states, strict=True)
        ]

    def state_dict(self) -> dict[str, State]:
        """Return what every controller remembers, by its tag."""
        return {
            controller.tag: state
            for controller, state in zip(self._plan.controllers, self._states, strict=True)
        }

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` returned."""
        missing = [
            controller.tag for controller in self._plan.controllers if controller.tag not in states
        ]
        if missing:
            raise CheckpointError(f"The checkpoint has no state of the controller {missing[0]!r}.")
        self._states = [
            _placed(states[controller.tag], started)
            for controller, started in zip(self._plan.controllers, self._states, strict=True)
        ]


def _placed(value: Any, like: Any) -> Any:
    """A saved state with its tensors on the devices of the state that a controller starts with."""
    if isinstance(value, torch.Tensor) and isinstance(like, torch.Tensor):
        return value.to(like.device)
    if isinstance(value, dict) and isinstance(like, dict):
        return {name: _placed(item, like.get(name)) for name, item in value.items()}
    return value
