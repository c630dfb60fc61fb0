"""The lattice depends on the declared noise alone, and sums on it are rounded once, exactly."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.noise.lattice import add_on_lattice, lattice_step, round_to_lattice, steps_per_stddev

SCALES = st.floats(2.0**-900, 2.0**900)


@given(stddev=SCALES)
def test_a_step_is_a_power_of_two_far_below_the_noise(stddev):
    step = lattice_step(stddev)
    assert math.frexp(step)[0] == 0.5
    assert 2**28 <= Fraction(stddev) / Fraction(step) < 2**29
    assert Fraction(steps_per_stddev(stddev, step)) == Fraction(stddev) / Fraction(step)


@given(
    values=st.lists(st.floats(-(2.0**20), 2.0**20), min_size=1),
    noise=st.lists(st.integers(-(2**40), 2**40), min_size=1),
    exponent=st.integers(-20, 4),
)
def test_values_and_their_sums_with_noise_are_rounded_to_the_nearest_step(values, noise, exponent):
    grid, unit = 2.0**exponent, 2.0 ** (exponent - 10)
    count = min(len(values), len(noise))
    given_ = torch.tensor(values[:count], dtype=torch.float64)
    middles = torch.tensor([each + 0.5 for each in noise[:count]], dtype=torch.float64)
    rounded = round_to_lattice(given_.clone(), grid)
    noisy = add_on_lattice(given_.clone(), middles.clone(), unit, grid)
    for value, middle, found, total in zip(
        given_.tolist(), middles.tolist(), rounded.tolist(), noisy.tolist(), strict=True
    ):
        assert found == round(Fraction(value) / Fraction(grid)) * grid
        assert total == found + round(Fraction(middle) * Fraction(unit) / Fraction(grid)) * grid
    again = add_on_lattice(given_.numpy().copy(), middles.numpy().copy(), unit, grid)
    assert np.array_equal(again, noisy.numpy())


@pytest.mark.parametrize("grid", [0.3, -1.0, 0.0, math.nan])
def test_a_step_that_is_no_power_of_two_is_refused(grid):
    with pytest.raises(InvalidArgument, match="grid"):
        round_to_lattice(torch.zeros(1, dtype=torch.float64), grid)


def test_a_step_that_is_coarser_or_finer_than_proven_is_refused():
    for grid in (2.0**-33, 2.0**101):
        with pytest.raises(InvalidArgument, match="lattice_step"):
            steps_per_stddev(1.0, grid)
