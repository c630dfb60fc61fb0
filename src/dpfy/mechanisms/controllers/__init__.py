"""Controllers: choose the bounds, noise or coordinates of the next step from what was released.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

from typing import Any

from dpfy._renamed import warn_renamed
from dpfy.mechanisms.controllers.base import (
    Controller,
    Coordinates,
    Draw,
    Outcome,
    State,
    StepConfig,
)
from dpfy.mechanisms.controllers.bounds import MeanNormClipping, QuantileClipping
from dpfy.mechanisms.controllers.coordinates import AdaClip
from dpfy.mechanisms.controllers.former_names import CLASSES
from dpfy.mechanisms.controllers.noise import GradientNormNoise, ValidationDecay
from dpfy.mechanisms.controllers.norm_sum import NormSumSampling
from dpfy.mechanisms.controllers.recipe_controlled import RecipeControlled
from dpfy.mechanisms.controllers.schedules import (
    SCHEDULES,
    ClipSchedule,
    Schedule,
    Timed,
    convex_decay,
    dynamic_decay,
    exponential_decay,
    named_schedule,
    polynomial_decay,
    step_decay,
    strongly_convex_decay,
    time_decay,
)

__all__ = [
    "SCHEDULES",
    "AdaClip",
    "ClipSchedule",
    "Controller",
    "Coordinates",
    "Draw",
    "GradientNormNoise",
    "MeanNormClipping",
    "NormSumSampling",
    "Outcome",
    "QuantileClipping",
    "RecipeControlled",
    "Schedule",
    "State",
    "StepConfig",
    "Timed",
    "ValidationDecay",
    "convex_decay",
    "dynamic_decay",
    "exponential_decay",
    "named_schedule",
    "polynomial_decay",
    "step_decay",
    "strongly_convex_decay",
    "time_decay",
]


def __getattr__(name: str) -> Any:
    """Return a class by the name that it had before, with a warning."""
    if name not in CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.{name}", f"{__name__}.{CLASSES[name]}")
    return globals()[CLASSES[name]]
