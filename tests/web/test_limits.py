"""Limits of requests."""

import pytest

from dpfy.errors import InvalidArgument
from dpfy.web.limits import Limits, RateLimit


@pytest.mark.parametrize("wrong", [{"body": 0}, {"rows": 0}, {"rate": 0.0}, {"seconds": -1.0}])
def test_limits_are_above_zero(wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Limits(**wrong)


def test_bucket_fills_at_the_rate_and_no_further():
    now = [0.0]
    limit = RateLimit(6.0, clock=lambda: now[0])
    assert [limit.admit() for _ in range(7)] == [True] * 6 + [False]
    now[0] = 10.0
    assert [limit.admit() for _ in range(2)] == [True, False]
    now[0] = 1e6
    assert [limit.admit() for _ in range(7)] == [True] * 6 + [False]


def test_less_than_one_a_minute_is_possible():
    now = [0.0]
    limit = RateLimit(0.5, clock=lambda: now[0])
    assert [limit.admit(), limit.admit()] == [True, False]
    now[0] = 119.0
    assert not limit.admit()
    now[0] = 121.0
    assert limit.admit()
