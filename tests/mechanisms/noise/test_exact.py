import mpmath
import numpy as np
import pytest
from streams import ScriptedStream

from dpfy.mechanisms.noise import exact
from dpfy.mechanisms.noise.exact import Expansion, rounded_pair

SCALE = 2.0**28 * 1.7


def reference(u, v, scale):
    """Return the scaled pair at the reals ``u`` and ``v`` in 400 bits."""
    with mpmath.workprec(400):
        radius = mpmath.mpf(scale) * mpmath.sqrt(-2 * mpmath.log(u))
        return radius * mpmath.cospi(2 * v), radius * mpmath.sinpi(2 * v)


def nearest(pair):
    with mpmath.workprec(400):
        return tuple(int(mpmath.nint(value)) for value in pair)


def fraction(numerator, bits):
    with mpmath.workprec(400):
        return mpmath.mpf(numerator) / mpmath.mpf(2) ** bits


@pytest.mark.parametrize("digits", [20, 37, 58, 200])
def test_pi(digits):
    with mpmath.workdps(digits + 5):
        assert abs(mpmath.mpf(str(exact._pi(digits))) - mpmath.pi) < mpmath.mpf(10) ** (1 - digits)


def test_agrees_with_400_bits_at_random_and_at_the_edges():
    generator = np.random.default_rng(0)
    us = [*map(int, generator.integers(1, 2**63, 150)), 1, 2, 2**20, 2**23 + 1, 2**63 - 1, 2**63 - 2, 2**62]
    vs = [*map(int, generator.integers(-2**63, 2**63, 150)), 0, 1, -1, 2**62, -2**62, -2**63, 2**63 - 1]
    for u, v in zip(us, vs, strict=True):
        tail = [int(word) for word in generator.integers(0, 2**63, 12)]
        drawn = ScriptedStream(tail)
        pair = rounded_pair(Expansion(u, 63), Expansion(v, 64), SCALE, drawn)
        for word_u, word_v in zip(tail[::2], tail[1::2], strict=True):
            u, v = u << 64 | word_u, v << 64 | word_v
        assert pair == nearest(reference(fraction(u, 63 + 384), fraction(v, 64 + 384), SCALE))


@pytest.mark.parametrize("extension, expected", [(0, 1), (2**64 - 1, 0)])
def test_draws_more_bits_exactly_when_the_cell_straddles_a_boundary(extension, expected):
    with mpmath.workprec(400):  # at U = exp(-1/8) and V = 0 the radius is 1/2: a smaller U rounds up, a larger one down
        u = int(mpmath.floor(mpmath.exp(mpmath.mpf(-1) / 8) * 2**63))
    stream = ScriptedStream([extension, 0])
    assert rounded_pair(Expansion(u, 63), Expansion(0, 64), 1.0, stream) == (expected, 0)
    assert not stream.script


def test_no_bits_are_drawn_for_an_easy_case():
    assert rounded_pair(Expansion(2**62, 63), Expansion(2**60, 64), SCALE, ScriptedStream([])) == nearest(
        reference(fraction(1, 1), fraction(1, 4), SCALE))


def test_leading_zero_words_are_the_tail():
    first = rounded_pair(Expansion(0, 63), Expansion(0, 64), SCALE, ScriptedStream([0, 0, 1, 0, 5, 0]))
    assert first == nearest(reference(fraction((1 << 64) + 5, 63 + 192), fraction(0, 64), SCALE))
    assert first[0] > 15 * SCALE
