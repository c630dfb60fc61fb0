import math

import mpmath
import numpy as np
import pytest

from dpfy.noise.rejection_table import RECTANGLES, cover

SPREADS = [32.0, 32 * 1.3, 32 * 1.7, math.nextafter(64.0, 0.0)]


def curve(x, spread):
    with mpmath.workprec(120):
        return mpmath.exp(-((mpmath.mpf(x) / mpmath.mpf(spread)) ** 2) / 2)


def columns(bell):
    """Return the left end of each rectangle's column."""
    return np.floor(bell.middle * 2.0**-32).astype(int)


@pytest.mark.parametrize("spread", SPREADS)
def test_the_stacks_reach_above_the_curve_and_the_certain_ones_stay_below(spread):
    bell = cover(spread)
    assert len(bell.middle) == RECTANGLES and len(bell.level) == RECTANGLES - bell.certain
    left = columns(bell)
    assert bool((bell.middle == (left + 0.5) * 2.0**32 + 0.5).all())
    stacked = np.bincount(left[:-1] + bell.reach, minlength=2 * bell.reach)  # without the tail
    certain = np.bincount(left[: bell.certain] + bell.reach, minlength=2 * bell.reach)
    for column in range(-bell.reach, bell.reach):
        near, far = sorted((abs(column), abs(column + 1)))
        with mpmath.workprec(120):
            assert int(stacked[column + bell.reach]) * mpmath.mpf(bell.height) >= curve(
                near, spread
            )
            assert int(certain[column + bell.reach]) * mpmath.mpf(bell.height) <= curve(far, spread)


@pytest.mark.parametrize("spread", SPREADS)
def test_every_level_of_a_stack_occurs_once(spread):
    bell = cover(spread)
    left = columns(bell)
    certain = np.bincount(left[: bell.certain] + bell.reach, minlength=2 * bell.reach)
    for column in np.unique(left):
        levels = bell.level[left[bell.certain :] == column]
        assert levels.tolist() == [
            certain[column + bell.reach] + k + 0.5 for k in range(len(levels))
        ]


@pytest.mark.parametrize("spread", SPREADS)
def test_the_tail_is_below_its_strips(spread):
    bell = cover(spread)
    for strip in range(80):  # lemma 3 has all of them
        assert curve(bell.reach + 32 * strip, spread) <= mpmath.mpf(bell.height) * mpmath.mpf(
            2
        ) ** -(15 + strip)


@pytest.mark.parametrize("spread", SPREADS)
def test_few_points_are_looked_at_and_fewer_rejected(spread):
    bell = cover(spread)
    assert bell.certain / RECTANGLES > 0.965
    assert math.sqrt(2 * math.pi) * spread / bell.height / RECTANGLES > 0.98
