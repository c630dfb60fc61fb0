"""Many exact draws at once have the law of one, and none that is two thirds or half as wide again.

χ² tests accept the truth but with probability 1e-7."""

import math

import numpy as np
import pytest
from scipy.stats import chi2

from dpfy.errors import InvalidArgument
from dpfy.mechanisms.discrete_arrays import LARGEST_SCALE, below_array, rounded_laplace_numbers
from dpfy.noise import SecureStream

DRAWS = 40_000


def stream(key):
    return SecureStream(insecure_test_key=key)


def fits(drawn, scale):
    """Whether draws agree with a real Laplace number of this scale, rounded; tails together."""
    reach = math.ceil(4 * scale)
    edges = np.concatenate(([-math.inf], np.arange(-reach, reach) + 0.5, [math.inf]))
    tails = np.where(edges < 0, np.exp(-np.abs(edges) / scale) / 2, 1 - np.exp(-edges / scale) / 2)
    expected = np.diff(tails) * len(drawn)
    seen = np.histogram(drawn, np.clip(edges, -1e18, 1e18))[0]
    return chi2.sf(((seen - expected) ** 2 / expected).sum(), len(expected) - 1) > 1e-7


@pytest.mark.parametrize("scale", [1, 2, 3, 12])
def test_noise_has_its_scale_and_no_other(scale):
    drawn = rounded_laplace_numbers(scale, DRAWS, stream(5))
    with np.errstate(over="ignore"):
        assert fits(drawn, scale)
        assert not fits(drawn, scale * 2 / 3) and not fits(drawn, scale * 3 / 2)


def test_large_scales_have_no_holes_and_do_not_overflow():
    drawn = rounded_laplace_numbers(LARGEST_SCALE, 4000, stream(6))
    assert len(np.unique(drawn)) == 4000 and len(np.unique(drawn % 64)) == 64
    mean = np.abs(drawn).mean() / LARGEST_SCALE
    assert abs(mean - 1) < 5.4 / math.sqrt(4000)
    with pytest.raises(InvalidArgument, match=r"at most 2\^40"):
        rounded_laplace_numbers(2 * LARGEST_SCALE, 1, stream(6))
    with pytest.raises(InvalidArgument, match="scale=0"):
        rounded_laplace_numbers(0, 1, stream(6))


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 2**62])
def test_numbers_below_a_bound_are_uniform(bound):
    drawn = below_array(bound, DRAWS, stream(7))
    assert drawn.min() >= 0 and drawn.max() < bound
    cells = min(bound, 16)
    seen = np.bincount((drawn // -(-bound // cells)).astype(int), minlength=cells)
    if cells > 1:
        statistic = ((seen - DRAWS / cells) ** 2 / (DRAWS / cells)).sum()
        assert chi2.sf(statistic, cells - 1) > 1e-7


def test_none_is_an_empty_array():
    assert rounded_laplace_numbers(3, 0, stream(8)).shape == (0,)
