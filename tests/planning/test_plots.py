"""Contours as files: the same bytes every time, in the format of the ending."""

import pytest

from dpfy.errors import InvalidArgument
from dpfy.planning.contours import BatchCurve, Contour
from dpfy.planning.plots import check_ending, draw_batch_curves, draw_contours

CONTOUR = Contour(3.0, (0.01, 0.1, 1.0), (1.3, 3.5, 10.8))
CURVE = BatchCurve(1.0, (1e4, 1e5, 1e6), (1e-4, 2e-5, 1e-5), 1e5)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_contours_are_written_in_the_format_of_the_ending(tmp_path, ending):
    path = draw_contours(tmp_path / f"c.{ending}", [CONTOUR], delta=1e-5, epochs=60)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)


def test_a_drawing_has_its_labels_and_the_same_bytes_every_time(tmp_path):
    first, second = (
        draw_batch_curves(tmp_path / f"{name}.svg", [CURVE], delta=1e-7, records=10**7, steps=100)
        for name in "ab"
    )
    assert first.read_bytes() == second.read_bytes()
    text = first.read_text(encoding="utf-8")
    assert "batch size B" in text and "ε = 1" in text and "n·√(ε/T)" in text


def test_other_endings_are_refused():
    with pytest.raises(InvalidArgument, match=r"\.png, \.svg, \.pdf"):
        check_ending("contours.html")
