"""Learning rates over time, as factors of the first."""

import math
from collections.abc import Callable

# Of the share of the plan that is behind: a step that was lost shortens training and leaves the
# schedule as it was.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
}


def factors(schedule: str, steps: int) -> tuple[float, ...]:
    """Return the factor of each of so many steps.

    >>> factors("linear", 4)
    (1.0, 0.75, 0.5, 0.25)
    """
    return tuple(SCHEDULES[schedule](step / steps) for step in range(steps))
