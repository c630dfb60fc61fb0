"""Limits of requests: how large, how many rows, how often."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from dpfy import _validate


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them in a minute, may ask.

    Args:
        body: The most bytes of a request.
        rows: The most inputs of a request.
        rate: The most requests a minute, over all workers.
        seconds: How long a request may take to arrive.

    Raises:
        InvalidArgument: If a number is out of its range.

    >>> Limits(rows=16).body
    1048576
    """

    body: int = 2**20
    rows: int = 64
    rate: float = 600.0
    seconds: float = 10.0

    def __post_init__(self) -> None:
        _validate.count("body", self.body)
        _validate.count("rows", self.rows)
        _validate.positive("rate", self.rate)
        _validate.positive("seconds", self.seconds)


class RateLimit:
    """A bucket of permissions that fills at a constant rate; each request takes one.

    Args:
        rate: The permissions a minute; as many fit into the bucket, and at least one.
        clock: The time in seconds.

    >>> now = [0.0]
    >>> limit = RateLimit(2.0, clock=lambda: now[0])
    >>> limit.admit(), limit.admit(), limit.admit()
    (True, True, False)
    >>> now[0] = 30.0
    >>> limit.admit(), limit.admit()
    (True, False)
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate / 60, clock
        self._most = self._there = max(1.0, rate)
        self._seen = clock()

    def admit(self) -> bool:
        """Take a permission, if there is one."""
        now = self._clock()
        self._there = min(self._most, self._there + (now - self._seen) * self._rate)
        self._seen = now
        if self._there < 1:
            return False
        self._there -= 1
        return True
