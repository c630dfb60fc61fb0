"""How many private predictions a budget buys, what they are worth, and when training is cheaper."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfy import _validate
from dpfy.accounting import GaussianFilter, account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.plans.prediction import PredictionPlan

_UP = 1 + 1e-9  # of a noise that is to buy a number of answers: more than rounding takes


@dataclass(frozen=True)
class Predictions:
    """What a budget buys in predictions, before anything is spent.

    Args:
        plan: The plan.
        answers: The number of inputs that it answers.
        epsilon: The ε of just these answers at the plan's δ; the whole budget is what is claimed.
        right_at_best: With what probability an answer is right on which all teachers agree; None
            for a regression.
        error: The standard deviation of an answer of a regression by noise; None for classes.
        training_cheaper_from: The number of answers from which on private training costs less;
            None if the ε of training was not given.
    """

    plan: PredictionPlan
    answers: int
    epsilon: float
    right_at_best: float | None
    error: float | None
    training_cheaper_from: int | None

    def to_json(self) -> dict[str, Any]:
        """Return what was found as plain JSON values."""
        return {
            "answers": self.answers,
            "epsilon": self.epsilon,
            "delta": self.plan.delta,
            "noise": self.plan.noise,
            "right_at_best": self.right_at_best,
            "error": self.error,
            "training_cheaper_from": self.training_cheaper_from,
        }


def predictions(
    *,
    parts: int,
    epsilon: float,
    delta: float,
    noise: float | None = None,
    answers: int | None = None,
    classes: int | None = None,
    bounds: tuple[float, float] | None = None,
    threshold: float | None = None,
    check_noise: float | None = None,
    trained_epsilon: float | None = None,
) -> Predictions:
    """Say how many answers a noise buys, or which noise a number of answers needs.

    Training privately costs its ε once, whatever is then asked of the model; predictions cost ε
    each time. So there is a number of answers from which on training is cheaper.

    Args:
        parts: The number of teachers.
        epsilon: The ε of all answers together, above 0.
        delta: The δ of all answers together, in (0, 1).
        noise: The standard deviation of the noise, in votes; for regression, in units of the sum.
        answers: The number of inputs to answer, in place of ``noise``.
        classes: The number of classes; None for regression.
        bounds: The least and the largest prediction of a teacher that count, for regression.
        threshold: The votes that the most popular class needs.
        check_noise: The standard deviation of the noise of that comparison.
        trained_epsilon: The ε, at the same δ, at which a privately trained model is as good.

    Returns:
        What the budget buys, at full price: every comparison succeeds.

    Raises:
        InvalidArgument: If an argument is out of its range, or not one of noise and answers is
            given, or no noise buys the answers because their comparisons cost too much.

    Reference: van der Maaten & Hannun 2020, "The trade-offs of private prediction"; μ² adds up:
    docs/proofs/prediction.md, Theorem 3.

    >>> found = predictions(parts=250, epsilon=2.6, delta=1e-5, noise=40, classes=10,
    ...                     trained_epsilon=0.5)
    >>> found.answers, found.training_cheaper_from
    (321, 17)
    """
    if (noise is None) == (answers is None):
        raise InvalidArgument(f"Expected noise= or answers=, got {noise!r} and {answers!r}.")
    settings: dict[str, Any] = {
        "parts": parts,
        "epsilon": epsilon,
        "delta": delta,
        "classes": classes,
        "bounds": bounds,
        "threshold": threshold,
        "check_noise": check_noise,
    }
    if noise is None:
        noise = _noise_for(PredictionPlan(noise=1.0, **settings), answers)
    plan = PredictionPlan(noise=noise, **settings)
    bought = plan.answers if answers is None else answers
    cheaper = None
    if trained_epsilon is not None:
        _validate.positive("trained_epsilon", trained_epsilon)
        settings["epsilon"] = trained_epsilon
        cheaper = PredictionPlan(noise=noise, **settings).answers + 1
    return Predictions(
        plan=plan,
        answers=bought,
        epsilon=_epsilon_of(plan, bought),
        right_at_best=None if plan.classes is None else right_with_lead(parts, noise, plan.classes),
        error=None if plan.bounds is None else noise / parts,
        training_cheaper_from=cheaper,
    )


def right_with_lead(lead: float, noise: float, classes: int) -> float:
    """Return with what probability the class that leads is answered.

    Args:
        lead: The votes by which it leads each other class.
        noise: The standard deviation of the noise, in votes.
        classes: The number of classes, at least 2.

    Returns:
        E Φ(lead/noise + Z)^(classes − 1) for a standard Gaussian Z.

    Raises:
        InvalidArgument: If there are fewer than two classes, or the noise is not above zero.

    >>> round(right_with_lead(lead=0, noise=40, classes=10), 6)
    0.1
    """
    from scipy.special import ndtr

    _validate.count("classes", classes, minimum=2)
    _validate.positive("noise", noise)
    z = np.linspace(-12.0, 12.0, 4801)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(density * ndtr(lead / noise + z) ** (classes - 1)) * (z[1] - z[0]))


def _noise_for(plan: PredictionPlan, answers: int | None) -> float:
    """Return the least noise with which a budget buys so many answers."""
    count = _validate.count("answers", answers)
    (query,) = plan.answer.queries
    assert isinstance(query, SumQuery)
    check = 0.0 if plan.check_noise is None else 1 / plan.check_noise**2
    left = plan.filter.mu**2 / count - check
    if left <= 0:
        raise InvalidArgument(
            f"{count:,} comparisons with check_noise={plan.check_noise:g} alone exceed the budget. "
            "Use more of that noise, or ask for fewer answers."
        )
    return query.l2_bound / math.sqrt(left) * _UP


def _epsilon_of(plan: PredictionPlan, answers: int) -> float:
    """Return the ε of so many answers: that of one Gaussian sum."""
    guard = GaussianFilter(1.0).guard(plan.relation)
    guard.record(plan.price, answers)
    mu = math.sqrt(guard.used)
    one_sum = Sampled(Poisson(1.0), (SumQuery(1.0, 1 / mu),)) if mu else Sampled(Poisson(1.0), ())
    return account(one_sum).claim(plan.delta)
