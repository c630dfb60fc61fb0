"""The sensitivity has an allowance for all arithmetic, and the noise is exactly in proportion."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from dpfy.mechanisms import GaussianSum
from dpfy.noise import LatticeGaussian, SecureStream, lattice_step
from dpfy.noise.lattice import round_to_lattice


def noise(key=1):
    return LatticeGaussian(SecureStream(insecure_test_key=key))


@given(
    bound=st.floats(1e-20, 1e20),
    multiplier=st.floats(0, 1e3),
    dimension=st.integers(1, 10**9),
    co_batched=st.integers(0, 1000),
    roundings=st.integers(1, 4),
)
def test_the_sensitivity_has_every_allowance(bound, multiplier, dimension, co_batched, roundings):
    mechanism = GaussianSum(bound, multiplier, dimension, co_batched, 2.0**-23, roundings)
    allowance = mechanism.sensitivity - bound
    lattice = roundings * math.sqrt(dimension) * mechanism.grid
    rounding = bound * co_batched * 2.0**-23
    assert allowance == pytest.approx(lattice + rounding, rel=1e-3, abs=bound * 2.0**-20)
    assert mechanism.stddev == multiplier * mechanism.sensitivity
    assert mechanism.grid == lattice_step(bound * max(multiplier, 2.0**-4))


@pytest.mark.parametrize("least", [0.1, 0.001])
def test_a_record_of_a_small_bound_is_hidden_from_the_rounding_of_the_sum_too(least):
    """Others add up to just below the middle between two points, and a little moves every
    coordinate by a step: more than the small bound's share of what is enough for the bound itself.
    """
    dimension, multiplier = 10_000, 2.0**18
    wide, plain = (GaussianSum(1.0, multiplier, dimension, least=s) for s in (least, 1.0))
    others = torch.full((dimension,), wide.grid * 0.4999, dtype=torch.float64)
    own = torch.full((dimension,), least / 100, dtype=torch.float64)
    assert float(own.norm()) <= least * 1.0001
    before, after = (round_to_lattice(total, wide.grid) for total in (others.clone(), others + own))
    moved = float((after - before).norm())
    assert least * plain.sensitivity < moved <= least * wide.sensitivity
    assert wide.stddev >= multiplier / least * moved  # the ratio that the group's event records


def test_the_lattice_is_fixed_before_the_data_is_seen():
    """Neither the dimension nor the arithmetic moves it, and tiny noise does not refine it."""
    grids = {GaussianSum(1.0, 2.0, d, c).grid for d in (1, 10**6) for c in (0, 100)}
    assert grids == {lattice_step(2.0)}
    assert GaussianSum(1.0, 0.0, 1).grid == GaussianSum(1.0, 1e-9, 1).grid == lattice_step(2.0**-4)


def test_pieces_have_the_noise_of_one_vector():
    mechanism = GaussianSum(1.0, 3.0, 1500)
    whole = mechanism.release(torch.linspace(-1, 1, 1500, dtype=torch.float64), noise())
    sums = list(torch.linspace(-1, 1, 1500, dtype=torch.float64).split([400, 1100]))
    outs = [torch.empty(400), torch.empty(1100)]
    mechanism.release_pieces(sums, [1.0, 0.5], outs, noise())
    assert torch.equal(torch.cat(sums), whole)
    assert torch.equal(outs[1], (whole[400:] * 0.5).float())


@pytest.mark.parametrize(("wrong", "passes"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_that_of_the_multiplier(wrong, passes):
    count = 200_000
    mechanism = GaussianSum(0.5, 2.0 * wrong, count)
    released = mechanism.release(torch.zeros(count, dtype=torch.float64), noise())
    expected = 2.0 * mechanism.sensitivity
    assert (abs(released.std() / expected - 1) < 5 / math.sqrt(2 * count)) == passes
    assert bool((released / mechanism.grid == (released / mechanism.grid).round()).all())
