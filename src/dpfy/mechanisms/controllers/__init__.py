"""Controllers: the bounds, the noise and the coordinates of the next step, from what was
released.
"""

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
