"""How many labels a budget buys by PATE, and through how much noise teachers have to be heard.

Tests: tests/planning/test_pate.py.
"""

import math
from dataclasses import dataclass
from typing import Any

from scipy.stats import norm

from dpfy import _validate
from dpfy.accounting import account
from dpfy.plans.pate import PatePlan
from dpfy.plans.pate_settings import pate_settings

SHARES = (1.0, 0.9, 0.5)
"""The shares of inputs with consensus for which labels are counted."""

_WRONG = 0.05  # of the labels, at the lead that is told


@dataclass(frozen=True)
class LabelForecast:
    """What a plan of PATE buys, before any record is read.

    Args:
        plan: The plan.
        labels: The number of labels, for each of :data:`SHARES`, if so many comparisons succeed.
        lead: The votes by which a class has to lead all others to be the label in 95 % of cases.
        gain: With groups, how many times as many labels as at the strictest group's ε.
    """

    plan: PatePlan
    labels: tuple[int, ...]
    lead: float
    gain: float | None

    @property
    def audible(self) -> bool:
        """Whether teachers that agree are heard through the noise."""
        return self.lead <= self.plan.parts

    def epsilon(self, delta: float) -> float:
        """Return the ε that may be claimed at ``delta`` for every record."""
        return account(self.plan).claim(delta)

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as plain JSON values."""
        return {
            "plan": self.plan.to_json(),
            "labels": [list(pair) for pair in zip(SHARES, self.labels, strict=True)],
            "lead": self.lead,
            "audible": self.audible,
            "gain": self.gain,
        }


def forecast_labels(**settings: Any) -> LabelForecast:
    """Say how many labels a budget buys by PATE, and how clear a majority has to be.

    Args:
        **settings: The arguments of :func:`dpfy.pate`.

    Returns:
        The forecast; nothing is spent and no record is read.

    Raises:
        InvalidArgument: If arguments contradict each other or are out of their range.

    >>> found = forecast_labels(classes=10, parts=250, epsilon=2.6, delta=1e-5)
    >>> found.labels, round(found.lead)
    ((310, 308, 299), 144)
    >>> few = forecast_labels(classes=10, parts=40, answer_noise=8, epsilon=3, delta=1e-5)
    >>> few.labels[0], few.audible
    (15, True)
    """
    defaults = {"parts": 250, "mechanism": "confident", "answer_noise": 40.0}
    return forecast_of(PatePlan(**pate_settings(**{**defaults, **settings})))


def forecast_of(plan: PatePlan) -> LabelForecast:
    """Say how many labels the limit of a plan buys, and how clear a majority has to be."""
    return LabelForecast(
        plan,
        tuple(plan.answers_at(share) for share in SHARES),
        lead_for(plan, _WRONG),
        None if plan.groups is None else plan.groups.gain,
    )


def lead_for(plan: PatePlan, wrong: float) -> float:
    """Return the lead at which a label is another class with probability of at most ``wrong``.

    By the sum over the other classes; the noise of two counts differs by √2 times that of one, or
    for Laplace noise of scale b by more than t with probability (2 + t/b)·e^(−t/b)/4.

    Args:
        plan: The plan.
        wrong: The probability, above 0 and at most a half.

    Returns:
        The lead, in votes.

    Raises:
        InvalidArgument: If the probability is out of its range.
    """
    each = _validate.real("wrong", wrong, 0, 0.5, open_low=True) / (plan.classes - 1)
    if plan.mechanism != "lnmax":
        return float(norm.isf(each)) * math.sqrt(2) * plan.answer_noise
    low, high = 0.0, 1.0
    while (2 + high) * math.exp(-high) / 4 > each:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (2 + middle) * math.exp(-middle) / 4 > each else (low, middle)
    return high * plan.answer_noise
