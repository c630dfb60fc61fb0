import mpmath
import numpy as np
import pytest
from streams import ScriptedStream

from dpfy.noise.exact_comparison import Expansion, is_below

SPREAD, HEIGHT = 32 * 1.7, 0.0021


def margin(x, y, spread=SPREAD, height=HEIGHT):
    """Return how far the point is below the curve, in 400 bits, for exact fractions (numerator,
    bits).
    """
    with mpmath.workprec(400):
        x, y = (mpmath.mpf(numerator) / mpmath.mpf(2) ** bits for numerator, bits in (x, y))
        return mpmath.exp(-((x / mpmath.mpf(spread)) ** 2) / 2) - y * mpmath.mpf(height)


def beside_the_curve(x, distance, bits=64):
    """Return the numerator of an ordinate that far above the curve at the fraction ``x``."""
    with mpmath.workprec(400):
        return int(mpmath.floor((margin(x, (0, 1)) + distance) / mpmath.mpf(HEIGHT) * 2**bits))


@pytest.mark.parametrize("distance", [0, 2.0**-45, -(2.0**-45), 2.0**-70, -(2.0**-70), 0.1, -0.1])
def test_agrees_with_400_bits_at_random_points_beside_the_curve(distance):
    generator = np.random.default_rng(0)
    for x in map(int, generator.integers(-5 * 2**37, 5 * 2**37, 25)):
        tail = [int(word) for word in generator.integers(0, 2**63, 10)]
        y = max(0, beside_the_curve((x, 32), distance))
        verdict = is_below(Expansion(x, 32), Expansion(y, 64), SPREAD, HEIGHT, ScriptedStream(tail))
        for word_x, word_y in zip(tail[::2], tail[1::2], strict=True):
            x, y = x << 64 | word_x, y << 64 | word_y
        assert verdict == (margin((x, 32 + 320), (y, 64 + 320)) > 0)


@pytest.mark.parametrize("extension, expected", [(0, True), (2**64 - 1, False)])
def test_draws_more_bits_exactly_when_the_cell_straddles_the_curve(extension, expected):
    y = beside_the_curve((40, 0), 0, bits=80)
    stream = ScriptedStream([0, extension])
    x = Expansion(40 << 64, 64)
    assert is_below(x, Expansion(y, 80), SPREAD, HEIGHT, stream) is expected
    assert not stream.script and x.bits == 128


def test_no_bits_are_drawn_for_an_easy_case():
    assert is_below(
        Expansion(3 << 32, 32), Expansion(1 << 64, 64), SPREAD, HEIGHT, ScriptedStream([])
    )
    assert not is_below(
        Expansion(-300 << 32, 32), Expansion(1 << 64, 64), SPREAD, HEIGHT, ScriptedStream([])
    )


def test_the_far_tail_is_refined_until_it_is_decided():
    curve = int(
        mpmath.exp(-((1000 / SPREAD) ** 2) / 2) / HEIGHT * mpmath.mpf(2) ** 300
    )  # at 18 standard deviations
    for numerator, expected in ((curve * 9 // 10, True), (curve * 11 // 10, False)):
        x, y, stream = Expansion(1000, 0), Expansion(numerator, 300), ScriptedStream([0] * 20)
        assert is_below(x, y, SPREAD, HEIGHT, stream) is expected


def test_negative_places_extend_upwards():
    x = Expansion(-1, 0)  # the reals of [-1, 0]
    x.extend(ScriptedStream([2**63]))
    assert x.numerator / 2**x.bits == -0.5
