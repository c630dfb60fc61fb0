"""Targets: where an answer lies on the profile, and how precise it must be."""

import inspect
import math

import pytest

from dpfy.accounting.pld.target import (
    Bracket,
    DeltaAt,
    EpsilonAt,
    Location,
    Target,
    excess,
    moved,
)

HERE = Location(tilt=8.0, epsilon=2.0, log_delta=math.log(1e-5), ceiling=2.0)


def test_a_target_has_few_methods_and_two_kinds():
    methods = [name for name, _ in inspect.getmembers(Target, inspect.isfunction)]
    assert len(methods) <= 5
    assert set(Target.__subclasses__()) == {EpsilonAt, DeltaAt}


def test_the_point_of_an_answer_has_the_given_coordinate():
    assert EpsilonAt(1e-5).point(2.0) == (2.0, 1e-5)
    assert DeltaAt(2.0).point(1e-5) == (2.0, 1e-5)


@pytest.mark.parametrize("accuracy", [1e-3, 1e-5])
def test_a_bracket_as_wide_as_allowed_has_no_excess(accuracy):
    narrow = Bracket(2.0 * (1 - accuracy), 2.0)
    assert excess(EpsilonAt(1e-5), narrow, HERE, accuracy) == pytest.approx(1)
    tiny = Bracket(1e-4, 1e-4 + accuracy * EpsilonAt.least)  # below it, widths are absolute
    assert excess(EpsilonAt(1e-5), tiny, HERE, accuracy) == pytest.approx(1, rel=0.2)
    ratio = math.exp(accuracy * HERE.tilt * 2.0)
    assert excess(DeltaAt(2.0), Bracket(1e-5 / ratio, 1e-5), HERE, accuracy) == pytest.approx(1)
    assert excess(DeltaAt(0.0), Bracket(0.1 * math.exp(-accuracy), 0.1), HERE, accuracy) == (
        pytest.approx(1)
    )


def test_excess_of_brackets_without_a_finite_width():
    assert excess(EpsilonAt(1e-5), Bracket(0.0, math.inf), HERE, 1e-3) > 1e3
    assert excess(DeltaAt(2.0), Bracket(0.0, 1e-5), HERE, 1e-3) > 1e3
    assert excess(DeltaAt(2.0), Bracket(0.0, 0.0), HERE, 1e-3) == 0
    assert excess(EpsilonAt(1e-5), Bracket(0.0, 0.0), HERE, 1e-3) == 0


def test_a_location_follows_the_upper_bound_and_keeps_what_is_given():
    assert moved(EpsilonAt(1e-5), Bracket(1.0, 1.5), HERE) == HERE._replace(
        epsilon=1.5, ceiling=1.5
    )
    assert moved(EpsilonAt(1e-5), Bracket(0.0, math.inf), HERE).ceiling == 2 * HERE.ceiling
    assert moved(DeltaAt(2.0), Bracket(0.0, 1e-6), HERE) == HERE._replace(log_delta=math.log(1e-6))
    assert moved(DeltaAt(2.0), Bracket(0.0, 0.0), HERE) == HERE
    assert moved(DeltaAt(2.0), Bracket(0.0, 1e-300), HERE).log_delta == -630
