"""Gradient descent is post-processing; its settings follow from public numbers alone."""

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.estimators.descent import Descent, descend
from dpfy.estimators.fitting import LARGEST_NORM


@pytest.mark.parametrize("curvature", [0.25, 0.5, 1.0])
def test_the_rule_never_swings(curvature):
    """The largest learning rate of the rule, on the steepest loss: descent must come to rest."""
    settings = Descent.rule(10**9, 10.0, curvature)
    assert settings.learning_rate * curvature == 3.0
    found = descend(lambda place: curvature * (place - 7.0), np.zeros(3), settings)
    assert found == pytest.approx([7.0] * 3, rel=1e-2)


def test_the_rule_learns_slowly_where_noise_is_large():
    assert Descent.rule(1000, 0.1, 0.25) == Descent(120, 0.125, 0.5)
    assert Descent.rule(0, 0.1, 0.25).learning_rate > 0
    own = Descent.rule(1000, 0.1, 0.25, steps=3, learning_rate=2.0, clip=1.5)
    assert own == Descent(3, 2.0, 1.5)


def test_the_last_half_of_the_steps_is_averaged():
    places = iter(range(1, 5))
    settings = Descent(4, 1.0, 1.0, momentum=0.0)
    found = descend(lambda place: place - next(places), np.zeros(1), settings)
    assert found == [3.5]


def test_parameters_stay_within_the_norm_that_rounding_rests_on():
    seen = []

    def gradient(place):
        seen.append(np.linalg.norm(place))
        return -np.full(4, 1e30)

    found = descend(gradient, np.zeros(4), Descent(3, 1.0, 1.0))
    assert max(seen) <= LARGEST_NORM * (1 + 1e-12) and np.linalg.norm(found) <= LARGEST_NORM + 1e-9


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"learning_rate": 0.0}, {"clip": 0.0}, {"momentum": 1.0}, {"tail": 0.0}],
)
def test_settings_out_of_their_range_are_refused(wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Descent(**{"steps": 1, "learning_rate": 1.0, "clip": 1.0, **wrong})
