"""Controllers: the bounds, the noise and the coordinates of the next step, from what was released."""

from dpfy.mechanisms.controllers.base import Controller, Coordinates, Draw, Outcome, Setting, State
from dpfy.mechanisms.controllers.bounds import NormClipping, QuantileClipping
from dpfy.mechanisms.controllers.coordinates import AdaClip
from dpfy.mechanisms.controllers.noise import NormNoise, ValidationDecay
from dpfy.mechanisms.controllers.norm_sum import NormSum
from dpfy.mechanisms.controllers.recipe_controlled import Directed
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
    "Directed",
    "Draw",
    "NormClipping",
    "NormNoise",
    "NormSum",
    "Outcome",
    "QuantileClipping",
    "Schedule",
    "Setting",
    "State",
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
