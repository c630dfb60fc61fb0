"""The contour of integration: the tilt of the line, its window and its smoothing.

Good choices make the loop fast; every choice is sound.

Tests: tests/accounting/pld/test_soundness.py.
"""

import math

import numpy as np

from dpfy.accounting.pld.discretize import Array
from dpfy.accounting.pld.fourier import Line, Moments

_CANDIDATES = (1.0, 0.93, 0.85, 0.7, 0.55, 0.4, 0.25, 0.12)
_LARGER = tuple(
    2.0**i for i in range(1, 13)
)  # where δ is near 1, Chernoff's tilt is near 0, and any other is as good
_CLIMB = 4.0  # log of what terms may grow by at a larger tilt
_PRECISION = 1e-6  # of δ, or of 1 − δ: what tails and aliases may cost
_HEIGHT = 28.0  # log of terms over what aliases may cost, up to which rounding does not matter
# with noise multipliers of at least 0.03, rare losses that decide a tiny δ have larger ones
_LEAST_TILT = 0.05
_SPACING = 0.1  # of tilts, logarithm
_END = 6.6  # standard deviations of the smoothing's transform; beyond lies 1e-10 of it


def log_spare(log_delta: float) -> float:
    """Return the log of what tails and aliases may cost, given log δ."""
    return math.log(_PRECISION) + log_delta + math.log(max(-math.expm1(log_delta), 1e-9))


def tilt_grid(variance: float, log_delta: float) -> Array:
    """Return tilts around the best one for a Gaussian loss, and smaller ones for rare losses."""
    best = math.sqrt(max(-2 * log_delta, 1.0) / max(variance, 1e-290))
    near = np.geomspace(0.05 * best, 6 * best, 30)
    least = min(_LEAST_TILT, near[0] / 2)
    rare = np.geomspace(least, near[0], max(12, math.ceil(math.log(near[0] / least) / _SPACING)))
    return np.concatenate((np.geomspace(min(1e-4 * best, 1e-3), least, 12)[:-1], rare[:-1], near))


def saddle(moments: Moments, log_delta: float) -> tuple[float, float]:
    """Return the tilt at which Chernoff's bound on the ε of this δ is best, and a guess of ε."""
    bounds = (moments.log_moment - log_delta + _log_conversion(moments.tilts)) / moments.tilts
    best = int(np.argmin(bounds))
    tilt, bound = float(moments.tilts[best]), max(0.0, float(bounds[best]))
    gain = math.log(2 * math.pi * max(moments.variance[best], tilt**-2.0) * tilt**2) / 2 - 1
    return tilt, max(bound - max(gain, 0.0) / tilt, 0.7 * bound)


def saddle_at(moments: Moments, epsilon: float) -> tuple[float, float]:
    """Return the tilt at which Chernoff's bound on δ(ε) is best, and a guess of log δ."""
    bounds = moments.log_moment - moments.tilts * epsilon + _log_conversion(moments.tilts)
    best = int(np.argmin(bounds))
    return float(moments.tilts[best]), min(0.0, float(bounds[best])) - 1


def log_chernoff(moments: Moments, epsilon: float) -> float:
    """Return Chernoff's bound on log δ(ε) of the finite losses.

    It is the least K(λ) − λε + log(λ^λ/(1 + λ)^(1 + λ)) over the tilts.
    """
    return min(
        0.0,
        float(
            (moments.log_moment - moments.tilts * epsilon + _log_conversion(moments.tilts)).min()
        ),
    )


def choose_line(
    moments: Moments,
    best: float,
    steepest: float,
    epsilon: float,
    log_target: float,
    smoothing: float,
    gauss: float,
    most: float,
) -> Line:
    """Return the line with the narrowest window whose aliases are below e^``log_target``.

    Lines with large terms are avoided. The tilt is near the ``best`` one or below, and at most the
    ``steepest``. The line is smoothed as asked, or as much as it takes to need at most ``most``
    frequencies. Where all of δ is below the target, a tilt that shows this is enough: at larger
    ones it is lost in rounding.
    """
    most_tilt = min(float(moments.tilts[-4]), steepest, _enough(moments, epsilon, log_target))
    tilts = min(best, most_tilt) * np.array(_CANDIDATES + _LARGER)
    heights = np.interp(tilts, moments.tilts, moments.log_moment) - tilts * epsilon - log_target
    useful = (tilts <= tilts[0]) | ((heights <= heights[0] + _CLIMB) & (tilts <= most_tilt))
    tilts, heights = tilts[useful], heights[useful]
    windows = [_window(moments, tilt, epsilon, log_target) for tilt in tilts.tolist()]
    best_line = int(np.argmin(np.log(windows) + np.maximum(heights - _HEIGHT, 0.0) / 2))
    tilt, window = float(tilts[best_line]), windows[best_line]
    smoothing = max(smoothing, (_END * window / (2 * math.pi * most)) ** 2 - gauss)
    end = _END / math.sqrt(smoothing + gauss)
    return Line(tilt, window, smoothing, math.ceil(end * window / (2 * math.pi)) + 2)


def _enough(moments: Moments, epsilon: float, log_target: float) -> float:
    """Return the first tilt at which K(λ) − λε is below the target, or a little less.

    The function is convex, so it lies below its chords.
    """
    heights = moments.log_moment - moments.tilts * epsilon
    place = int(np.argmax(heights < log_target))
    if heights[place] >= log_target:
        return math.inf
    ends = slice(max(place - 1, 0), place + 1)
    return float(np.interp(-log_target, -heights[ends], moments.tilts[ends]))


def _log_conversion(tilts: Array) -> Array:
    return tilts * np.log(tilts) - (1 + tilts) * np.log1p(tilts)


def _window(moments: Moments, tilt: float, epsilon: float, log_target: float) -> float:
    left = -log_target / tilt
    steeper = moments.tilts > 1.05 * tilt
    if not steeper.any():
        return math.inf
    tilts = moments.tilts[steeper]
    right = (moments.log_moment[steeper] - tilts * epsilon - log_target) / (tilts - tilt)
    return 1.05 * max(left, float(right.min()))
