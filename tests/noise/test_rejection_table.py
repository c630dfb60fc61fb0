import math

import mpmath
import numpy as np
import pytest

from dpfy.noise.rejection_table import RECTANGLES, rejection_table

SPREADS = [32.0, 32 * 1.3, 32 * 1.7, math.nextafter(64.0, 0.0)]


def curve(x, spread):
    with mpmath.workprec(120):
        return mpmath.exp(-((mpmath.mpf(x) / mpmath.mpf(spread)) ** 2) / 2)


def columns(table):
    """Return the left end of each rectangle's column."""
    return np.floor(table.middle * 2.0**-32).astype(int)


@pytest.mark.parametrize("spread", SPREADS)
def test_the_stacks_reach_above_the_curve_and_the_certain_ones_stay_below(spread):
    table = rejection_table(spread)
    assert len(table.middle) == RECTANGLES and len(table.level) == RECTANGLES - table.certain
    left = columns(table)
    assert bool((table.middle == (left + 0.5) * 2.0**32 + 0.5).all())
    stacked = np.bincount(left[:-1] + table.reach, minlength=2 * table.reach)  # without the tail
    certain = np.bincount(left[: table.certain] + table.reach, minlength=2 * table.reach)
    for column in range(-table.reach, table.reach):
        near, far = sorted((abs(column), abs(column + 1)))
        with mpmath.workprec(120):
            assert int(stacked[column + table.reach]) * mpmath.mpf(table.height) >= curve(
                near, spread
            )
            assert int(certain[column + table.reach]) * mpmath.mpf(table.height) <= curve(
                far, spread
            )


@pytest.mark.parametrize("spread", SPREADS)
def test_every_level_of_a_stack_occurs_once(spread):
    table = rejection_table(spread)
    left = columns(table)
    certain = np.bincount(left[: table.certain] + table.reach, minlength=2 * table.reach)
    for column in np.unique(left):
        levels = table.level[left[table.certain :] == column]
        assert levels.tolist() == [
            certain[column + table.reach] + k + 0.5 for k in range(len(levels))
        ]


@pytest.mark.parametrize("spread", SPREADS)
def test_the_tail_is_below_its_strips(spread):
    table = rejection_table(spread)
    for strip in range(80):  # lemma 3 has all of them
        assert curve(table.reach + 32 * strip, spread) <= mpmath.mpf(table.height) * mpmath.mpf(
            2
        ) ** -(15 + strip)


@pytest.mark.parametrize("spread", SPREADS)
def test_few_points_are_looked_at_and_fewer_rejected(spread):
    table = rejection_table(spread)
    assert table.certain / RECTANGLES > 0.965
    assert math.sqrt(2 * math.pi) * spread / table.height / RECTANGLES > 0.98
