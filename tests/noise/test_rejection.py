import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from scipy import stats
from streams import ScriptedStream

from dpfy.noise import SecureStream, rejection
from dpfy.noise.native.kernels import IN_NUMPY
from dpfy.noise.rejection_table import RECTANGLES, rejection_table

SPREAD = 32 * 1.7


def draw(count, kernels=IN_NUMPY, key=1, spread=SPREAD):
    """Return reals in columns."""
    return (
        kernels.draw(np.empty(count), spread, SecureStream(insecure_test_key=key).parts())
        * 2.0**-32
    )


def slope_score(drawn, spread=SPREAD):
    """Return by how many standard errors the mean place within a column, counted outwards, is off.

    The density falls by about one part in a hundred within a column; whoever takes it for constant
    is noticed."""
    outwards = np.abs(drawn)
    edges = np.arange(0, 40 * spread)
    inside = np.diff(stats.norm.cdf(edges, scale=spread))
    first_moment = spread**2 * -np.diff(
        stats.norm.pdf(edges, scale=spread)
    )  # of |x| over each column
    expected = 2 * float((first_moment - edges[:-1] * inside).sum())
    return ((outwards - np.floor(outwards)).mean() - expected) * math.sqrt(12 * len(drawn))


# --- the verdicts
# ------


def test_numpy_errs_by_less_than_2_to_the_minus_40():
    generator = np.random.default_rng(0)
    points = np.concatenate([generator.uniform(0, 18.6, 3000), 2.0 ** -np.arange(1, 60)])
    for point, value in zip(points, np.exp(-points), strict=True):
        with mpmath.workprec(200):
            assert (
                abs(mpmath.exp(-mpmath.mpf(float(point))) / mpmath.mpf(float(value)) - 1) < 2.0**-40
            )


@pytest.mark.parametrize("spread", [32.0, SPREAD, math.nextafter(64.0, 0.0)])
def test_more_digits_give_the_same_verdicts(monkeypatch, kernels, spread):
    fast = draw(20_000, kernels, spread=spread)
    monkeypatch.setattr(rejection, "MARGIN", 1e9)  # every uncertain point is judged in more digits
    assert (fast == draw(20_000, kernels, spread=spread)).all()


def test_points_at_the_curve_are_judged_in_more_digits():
    table, generator = rejection_table(SPREAD), np.random.default_rng(3)
    middle, level, height, expected = [], [], [], []
    for cell in map(int, generator.integers(-3 * 2**37, 3 * 2**37, 60)):
        with mpmath.workprec(
            300
        ):  # the real is the lower end of its cell; the point is beyond the reach of float64
            curve = mpmath.exp(-((mpmath.mpf(cell) / 2**32 / mpmath.mpf(SPREAD)) ** 2) / 2)
            off = int(generator.choice([-1, 1]))
            ordinate = curve * (1 + off * mpmath.mpf(2) ** -54) / mpmath.mpf(table.height)
            level.append(math.floor(ordinate) + 0.5)
            height.append(int(mpmath.floor((ordinate - level[-1]) * 2**64)))
        middle.append(cell + 0.5)
        expected.append(off > 0)
    stream = ScriptedStream([0] * 4000)
    rectangle = (np.arange(len(middle)) + table.certain).astype(
        np.uint16
    )  # which are at these levels, for once
    assert (
        rejection._above(
            np.array(middle),
            rectangle,
            np.array(height),
            replace(table, level=np.array(level)),
            stream,
        ).tolist()
        == expected
    )
    naive = (np.array(level) + np.array(height) * 2.0**-64) * table.height > np.exp(
        -0.5 * np.square(np.array(middle) / (SPREAD * 2.0**32))
    )
    assert naive.tolist() != expected
    assert len(stream.script) < 4000 - 100


# --- the law
# ------


def test_points_above_the_curve_are_rejected(monkeypatch):
    assert abs(slope_score(draw(1 << 23))) < 5.5
    monkeypatch.setattr(rejection, "_above", lambda point, *_: np.zeros(len(point), dtype=bool))
    assert abs(slope_score(draw(1 << 23))) > 8


def test_what_was_rejected_is_replaced_when_there_is_nothing_to_spare(monkeypatch):
    monkeypatch.setattr(rejection, "_spare", lambda count: 0)
    assert abs(slope_score(draw(1 << 22))) < 5.5


def test_as_many_are_rejected_as_lie_above_the_curve():
    table, count = rejection_table(SPREAD), 1 << 20
    rejected = rejection._draw(np.empty(count), table, SecureStream(insecure_test_key=5))
    rate = 1 - math.sqrt(2 * math.pi) * SPREAD / table.height / RECTANGLES
    assert stats.binomtest(len(rejected), count, rate).pvalue > 1e-6
    assert stats.binomtest(len(rejected), count, 1.1 * rate).pvalue < 1e-6


@pytest.mark.parametrize("spread", [32.0, SPREAD, 63.0])
def test_the_histogram_is_gaussian(kernels, spread):
    drawn = draw(1 << 20, kernels, key=4, spread=spread)
    edges = np.concatenate([[-np.inf], np.linspace(-4, 4, 301) * spread, [np.inf]])
    expected = len(drawn) * np.diff(stats.norm.cdf(edges, scale=spread))
    assert stats.chisquare(np.histogram(drawn, edges)[0], expected).pvalue > 1e-6
    assert stats.chisquare(np.histogram(1.02 * drawn, edges)[0], expected).pvalue < 1e-6


@pytest.mark.parametrize(
    "count", [1, rejection.PART - 1, rejection.PART, rejection.PART + 1, 2 * rejection.PART + 500]
)
def test_every_part_has_the_stream_of_its_number(kernels, count):
    """Fails if parts share words, or if one is left out, or overlaps another."""
    parts, drawn = SecureStream(insecure_test_key=1).parts(), draw(count, kernels)
    begins = range(0, count, rejection.PART)
    expected = [
        rejection.draw_gaussians(min(rejection.PART, count - begin), SPREAD, parts.stream(number))
        for number, begin in enumerate(begins)
    ]
    assert np.array_equal(drawn, np.concatenate(expected) * 2.0**-32)
    assert len(np.unique(drawn)) == count  # a coincidence: 4e-3 of one value, and the key is fixed


# --- the tail
# ------


def tail(strip, x, y, negative=False):
    return rejection._draw_tail(
        rejection_table(SPREAD), ScriptedStream([*[1] * strip, 2 * negative, x, y, *[0] * 8])
    )


def test_the_tail_goes_on_beyond_9_standard_deviations():
    table = rejection_table(SPREAD)
    for strip in (0, 3, 9):
        for negative in (False, True):
            cell = ((table.reach + 32 * strip) << 32) + (2**63 >> 27)
            assert tail(strip, 2**63, 0, negative) == (-1 if negative else 1) * (cell + 0.5)
    assert tail(9, 2**63, 0) * 2.0**-32 > 9 * SPREAD


@pytest.mark.parametrize("strip", [0, 1, 4])
def test_points_of_the_tail_above_the_curve_are_rejected(strip):
    table, x = rejection_table(SPREAD), 2**61
    with mpmath.workprec(200):
        place = table.reach + 32 * strip + mpmath.mpf(x) / 2**59
        y = (
            mpmath.exp(-((place / mpmath.mpf(SPREAD)) ** 2) / 2)
            / table.height
            * 2 ** (15 + strip)
            * 2**64
        )
    assert tail(strip, x, int(y * 0.999)) is not None
    assert tail(strip, x, int(y * 1.001)) is None


def test_the_tail_has_the_law_and_the_share_of_a_gaussian_beyond_the_columns():
    table, stream, count = rejection_table(32.0), SecureStream(insecure_test_key=6), 8000
    drawn = [rejection._draw_tail(table, stream) for _ in range(count)]
    found = np.array([middle for middle in drawn if middle is not None]) * 2.0**-32 / 32.0
    beyond = stats.norm.sf(table.reach / 32.0)
    share = 2 * beyond * math.sqrt(2 * math.pi) * 32.0 / (table.height / 256)
    assert stats.binomtest(len(found), count, share).pvalue > 1e-6
    assert stats.binomtest(len(found), count, 2 / 3 * share).pvalue < 1e-6
    assert stats.binomtest(int((found > 0).sum()), len(found), 0.5).pvalue > 1e-6
    assert stats.kstest(np.abs(found), lambda z: 1 - stats.norm.sf(z) / beyond).pvalue > 1e-6


def test_the_last_rectangle_leads_to_the_tail(monkeypatch):
    monkeypatch.setattr(rejection, "_draw_tail", lambda *_: 123.5)
    for height, expected in (
        (2**63, True),
        (2**63 + 2**56 - 1, True),
        (2**63 + 2**56, False),
        (0, False),
    ):
        buffer, words = (
            np.zeros(1),
            [(RECTANGLES - 1) << 32, height],
        )  # four bytes of a place, two of a rectangle
        rejected = rejection._draw(buffer, rejection_table(SPREAD), ScriptedStream(words))
        assert (buffer[0] == 123.5, len(rejected) == 0) == (expected, expected)
