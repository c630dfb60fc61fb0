"""What should I run? Answered before any privacy is spent, and without torch."""

from dpfy.planning.contours import (
    BatchCurve,
    Contour,
    ScalingLaw,
    diminishing_batch,
    noise_over_batch,
    noise_over_rate,
)
from dpfy.planning.solve import Sketch, solve

__all__ = ["BatchCurve", "Contour", "ScalingLaw", "Sketch", "diminishing_batch", "noise_over_batch", "noise_over_rate",
           "solve"]
