"""Charts have finite places for all finite numbers, and names as text."""

import math
import re

from hypothesis import given, strategies as st

from dpfy.page.charts import Axis, Line, chart

NUMBERS = st.floats(-1e200, 1e200, allow_nan=False)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=6), st.booleans())
def test_every_place_is_finite_and_inside(points, log):
    drawn = chart("any", Axis("x", log), Axis("y", log), [Line("", sorted(points))])
    places = re.search(r'points="([^"]*)"', drawn)[1].split()
    for place in places:
        x, y = map(float, place.split(","))
        assert math.isfinite(x) and math.isfinite(y) and 0 <= x <= 520 and 0 <= y <= 280
    assert "nan" not in drawn and "inf" not in drawn.replace("info", "")


def test_larger_values_are_higher_and_later():
    drawn = chart("any", Axis("x"), Axis("y"), [Line("", [(0, 1.0), (5, 2.0), (9, 4.0)])])
    places = [
        tuple(map(float, p.split(","))) for p in re.search(r'points="([^"]*)"', drawn)[1].split()
    ]
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert [y for _, y in places] == sorted((y for _, y in places), reverse=True)


def test_names_are_text():
    lines = [Line("<b>", [(0, 1), (1, 2)]), Line("c", [(0, 1), (1, 2)])]
    assert "<b>" not in chart("<b>", Axis("<b>"), Axis("<b>"), lines)


def test_one_point_is_no_line():
    assert "Nothing to draw" in chart("any", Axis("x"), Axis("y"), [Line("", [(0, 1.0)])])


def test_a_long_line_keeps_its_last_point():
    points = [(float(step), 1.0 + step) for step in range(10_001)]
    drawn = chart("any", Axis("x"), Axis("y"), [Line("", points)])
    places = re.search(r'points="([^"]*)"', drawn)[1].split()
    last = chart("any", Axis("x"), Axis("y"), [Line("", [points[0], points[-1]])])
    assert len(places) < 700 and places[-1] in last
