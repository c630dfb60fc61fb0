"""What should I run? Answers before any privacy is spent, and without torch."""

from dpfy.planning.advisor import Advice, advise
from dpfy.planning.contours import (
    BatchCurve,
    Contour,
    ScalingLaw,
    diminishing_batch,
    noise_over_batch,
    noise_over_rate,
)
from dpfy.planning.correlated import NoiseChoice, NoiseComparison, compare_correlated
from dpfy.planning.defaults import FirstRun, default_delta, first_run
from dpfy.planning.page import interactive
from dpfy.planning.solve import Sketch, solve
from dpfy.planning.strategies import (
    Trial,
    clip_and_rate_grid,
    clip_search,
    given_accuracy,
    given_compute,
    private_clip_plan,
    small_then_large,
    smallest_batch,
)

__all__ = [
    "Advice",
    "BatchCurve",
    "Contour",
    "FirstRun",
    "NoiseChoice",
    "NoiseComparison",
    "ScalingLaw",
    "Sketch",
    "Trial",
    "advise",
    "clip_and_rate_grid",
    "clip_search",
    "compare_correlated",
    "default_delta",
    "diminishing_batch",
    "first_run",
    "given_accuracy",
    "given_compute",
    "interactive",
    "noise_over_batch",
    "noise_over_rate",
    "private_clip_plan",
    "small_then_large",
    "smallest_batch",
    "solve",
]
