"""Conformance of controllers: explicit state, usable settings, and the events of the plan.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

import copy
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact
from dpfy.mechanisms.controllers import Controller, State, StepConfig
from dpfy.mechanisms.query import ClippedSum, Query
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.released import Released
from dpfy.run.state_file import read_state, write_state

_SHAPES = {"first.weight": (3, 2), "first.bias": (3,), "last.weight": (1, 3)}
_FLAT = (ClippedSum(0.7),)
_GROUPS = (
    ClippedSum(0.5, "first", ("first.weight", "first.bias"), share=0.75),
    ClippedSum(2.0, "last", share=0.25),
)
# of released values: noise knows no limits
_SIZES = (
    1.0,
    1.0,
    1.0,
    1e-3,
    0.0,
    -1.0,
    50.0,
    1e12,
    -1e12,
    1e-12,
)
_STEPS = 3 * len(_SIZES)
_CONTROLS = ("bounds", "coordinates", "noise")
_NOISE = 1.3


def check_controller(controller: Controller) -> None:
    """Raise ``AssertionError`` unless a controller keeps what plans, ledgers and checkpoints need.

    It must have a JSON round trip and extend a query once. Its state must be explicit, must not be
    changed in place and must survive a checkpoint. After releases of any size its settings must
    have bounds, noise and scales above zero, and the sums of the plan: the same events, or the
    same up to a noise that is marked as adaptive.

    Args:
        controller: The controller to check.

    >>> from dpfy.mechanisms.controllers import QuantileClipping
    >>> check_controller(QuantileClipping())
    """
    again = Fact.from_json(json.loads(json.dumps(controller.to_json())))
    assert again == controller and hash(again) == hash(controller), (
        "the JSON round trip changes the controller"
    )
    assert getattr(controller, "controls", None) in _CONTROLS, (
        f"the controller does not say that it controls one of {', '.join(_CONTROLS)}"
    )
    accepted = 0
    for leaves in (_FLAT, _GROUPS):
        try:
            query = controller.extend_query(Query.of(leaves))
        except InvalidArgument:
            continue
        accepted += 1
        assert controller.extend_query(query) == query, (
            "a query that was extended is extended once more"
        )
        _check_run(controller, query)
    assert accepted, "the controller accepts neither one clipped sum nor groups"


def _check_run(controller: Controller, query: Query) -> None:
    """Take a few steps with releases of any size, through a checkpoint."""
    parameters = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in _SHAPES.items()}
    state = controller.start(query, parameters)
    for step, size in enumerate(_SIZES * (_STEPS // len(_SIZES)), start=1):
        kept = copy.deepcopy(state)
        setting = controller.configure(state, step, StepConfig(query))
        _check_setting(controller, setting, query, step)
        new = controller.on_public_metric(
            controller.update(state, _released(parameters, setting, step, size)), size
        )
        assert _equal(state, kept), "a state was changed in place; return another one"
        state = new
    restored = _through_a_checkpoint(state)
    assert _equal(restored, state), "the state does not survive a checkpoint"
    before, after = (
        controller.configure(each, _STEPS + 1, StepConfig(query)) for each in (state, restored)
    )
    assert before.query == after.query and before.noise == after.noise, (
        "a restored state makes another setting"
    )


def _check_setting(controller: Controller, setting: StepConfig, query: Query, step: int) -> None:
    """Check the settings of one step."""
    for leaf in setting.query.leaves:
        assert 0 < leaf.bound < float("inf"), f"the bound of {leaf.name!r} became {leaf.bound}"
    assert 0 < setting.noise < float("inf"), (
        f"the noise became {setting.noise} times the planned one"
    )
    assert setting.noise == 1 or controller.adaptive, (
        "the noise is chosen from outputs, and adaptive is False"
    )
    assert setting.query.sum_queries(_NOISE, step) == query.sum_queries(_NOISE, step), (
        "the sums, their shares or their names are not those of the plan; its events would be "
        "others"
    )
    assert replace(setting.query, leaves=query.leaves, statistics=query.statistics) == query, (
        "more than the bounds of sums and statistics has changed"
    )
    for name, place in setting.coordinates.items():
        assert place.scale.shape == _SHAPES[name], (
            f"the scale of {name!r} has another shape than the parameter"
        )
        assert bool((place.scale > 0).all()) and bool(place.scale.isfinite().all()), (
            f"a scale of {name!r} is unusable"
        )


def _released(
    parameters: dict[str, torch.nn.Parameter], setting: StepConfig, step: int, size: float
) -> Released:
    """Return a synthetic release of a given size, in proportion to the bounds."""
    generator = torch.Generator().manual_seed(step)
    layout = ReleaseLayout.of_step(step, setting, parameters)
    vector = torch.randn(layout.size, generator=generator, dtype=torch.float64) * size
    outputs = layout.outputs(layout.split(vector)[0])
    for part, factor, output in zip(
        vector.split(layout.sizes), layout.factors(divisor=10.0), outputs, strict=True
    ):
        output.copy_((part * factor).view_as(output))
    return layout.released(outputs, step, noise_multiplier=_NOISE, stddev=_NOISE / 10)


def _through_a_checkpoint(state: State) -> State:
    """Return a state as a checkpoint restores it."""
    with tempfile.TemporaryDirectory() as folder:
        write_state(Path(folder) / "state", state)
        return read_state(Path(folder) / "state")


def _equal(one: Any, other: Any) -> bool:
    """Whether two states hold equal values."""
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(_values(one), _values(other), strict=True)
    )


def _values(state: Any) -> Iterator[Any]:
    """Return every value in a state, in order."""
    if isinstance(state, dict):
        for name, value in state.items():
            yield name
            yield from _values(value)
    elif isinstance(state, Sequence) and not isinstance(state, str):
        yield len(state)
        for value in state:
            yield from _values(value)
    else:
        yield state
