"""Lower bounds on the ε and μ of a mechanism from the successes of an attacker.

A lower bound here is a statistical statement: with probability at least ``confidence`` over the
attack it does not exceed what the mechanism really has. Other functions tell whether an attack
refutes a claim. The proofs are in ``docs/proofs/auditing.md``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from dpfy import _validate
from dpfy.accounting import Guarantee
from dpfy.accounting.conversions import TradeoffCurve, tradeoff_curve
from dpfy.accounting.pld import closed_forms
from dpfy.errors import InvalidArgument

Inverse = Callable[[float], float]
"""From the probability of an event on one data set to the least that it has on a neighbour."""

_LARGEST_EPSILON, _LARGEST_MU = 60.0, 40.0
_TURNS = 50  # steps of a bisection


@dataclass(frozen=True)
class Trials:
    """The errors of a test that says whether a canary was included.

    Args:
        absent: the number of trials without the canary.
        false_positives: how many of them the test called "in".
        present: the number of trials with the canary.
        false_negatives: how many of them the test called "out".

    Raises:
        InvalidArgument: if there are more errors than trials.
    """

    absent: int
    false_positives: int
    present: int
    false_negatives: int

    def __post_init__(self) -> None:
        for errors, total in (("false_positives", "absent"), ("false_negatives", "present")):
            _validate.count(total, getattr(self, total))
            if not 0 <= getattr(self, errors) <= getattr(self, total):
                raise InvalidArgument(
                    f"Expected {errors}={getattr(self, errors)!r} between 0 and "
                    f"{total}={getattr(self, total)!r}."
                )

    def rates(self, confidence: float) -> tuple[float, float]:
        """Return upper bounds on the false positive and false negative rates that hold jointly.

        Each is exact (Clopper & Pearson 1934), with half of the failure probability.
        """
        level = 1 - (1 - _confidence(confidence)) / 2
        return (
            _at_most(self.false_positives, self.absent, level),
            _at_most(self.false_negatives, self.present, level),
        )


@dataclass(frozen=True)
class Guesses:
    """Guesses about canaries that were each included with probability ½.

    The number of guesses is fixed before the attack; which canaries are guessed may depend on
    everything that was released.

    Args:
        canaries: the number of canaries.
        made: the number of guesses, at most ``canaries``.
        correct: the number of correct guesses.

    Raises:
        InvalidArgument: if there are more guesses than canaries, or more correct guesses than
            guesses.
    """

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        _validate.count("canaries", self.canaries)
        if not 0 < self.made <= self.canaries or not 0 <= self.correct <= self.made:
            raise InvalidArgument(
                f"Expected correct={self.correct!r} of made={self.made!r} guesses about "
                f"canaries={self.canaries!r}: no more of the one than of the next."
            )


def epsilon_from_trials(trials: Trials, delta: float, confidence: float = 0.95) -> float:
    """Return an ε below which the mechanism cannot be (ε, ``delta``)-DP, by the errors of a test.

    Args:
        trials: the errors of the test.
        delta: the δ, in [0, 1).
        confidence: the confidence of the bound, in (0, 1).

    Returns:
        The lower bound on ε, at least 0.

    *Formal guarantee*: with probability at least ``confidence`` no (ε, δ) with a smaller ε holds
    for the two data sets.

    *Assumes*: independent runs, and a test that was fixed before the trials.

    Reference: Kairouz, Oh & Viswanath 2015, Theorem 2.1: FPR + e^ε·FNR ≥ 1 − δ, and the same
    exchanged.

    >>> round(epsilon_from_trials(Trials(1000, 0, 1000, 0), delta=0.0), 2)
    5.6
    """
    first, second = trials.rates(confidence)
    best = 0.0
    for one, other in ((first, second), (second, first)):
        if one > 0 and 1 - delta - other > 0:
            best = max(best, math.log((1 - delta - other) / one))
    return best


def mu_from_trials(trials: Trials, confidence: float = 0.95) -> float:
    """Return a μ below which the mechanism cannot be μ-GDP, by the errors of a test.

    Args:
        trials: the errors of the test.
        confidence: the confidence of the bound, in (0, 1).

    Returns:
        The lower bound on μ, at least 0.

    *Formal guarantee*: with probability at least ``confidence`` no smaller μ holds for the two data
    sets: a μ-GDP mechanism has Φ⁻¹(1 − FPR) − Φ⁻¹(FNR) ≤ μ for every test (Dong, Roth & Su 2022).

    >>> 0.8 < mu_from_trials(Trials(10_000, 1587, 10_000, 5000)) < 1.0
    True
    """
    false_positive, false_negative = trials.rates(confidence)
    return max(0.0, float(ndtri(1 - false_positive) - ndtri(false_negative)))


def confidence_band(
    curve: TradeoffCurve, absent: int, present: int, confidence: float = 0.95
) -> tuple[TradeoffCurve, TradeoffCurve]:
    """Return curves below and above the error rates that an attack has in the long run.

    Args:
        curve: the error rates that the attack had, for thresholds from the highest to the lowest.
        absent: the number of canaries that were not included.
        present: the number of canaries that were.
        confidence: the confidence of the band, in (0, 1).

    Returns:
        The lower and the upper curve, at the false positive rates of ``curve``.

    *Formal guarantee*: with probability at least ``confidence`` the true curve, at all false
    positive rates at once, is between the two.

    *Assumes*: independent scores, equally distributed for all canaries that were included, and for
    all that were not.

    Reference: Massart 1990, Corollary 1, for each of the two error rates, with half of the failure
    probability.

    >>> lower, upper = confidence_band(TradeoffCurve((0.0, 0.5, 1.0), (1.0, 0.5, 0.0)), 800, 800)
    >>> lower.fnr[1] < 0.5 < upper.fnr[1]
    True
    """
    fails = (1 - _confidence(confidence)) / 2
    across, along = (math.sqrt(math.log(2 / fails) / (2 * count)) for count in (absent, present))
    fpr, fnr = np.asarray(curve.fpr), np.asarray(curve.fnr)
    # A curve that is known at some thresholds only: the next one is taken, away from the middle.
    right = np.searchsorted(fpr, fpr + across, side="right")
    left = np.searchsorted(fpr, fpr - across, side="left") - 1
    lower = np.where(right < len(fpr), fnr[np.minimum(right, len(fpr) - 1)] - along, 0.0)
    upper = np.where(left >= 0, fnr[np.maximum(left, 0)] + along, 1.0)
    return (
        TradeoffCurve(curve.fpr, tuple(np.clip(lower, 0, 1).tolist())),
        TradeoffCurve(curve.fpr, tuple(np.clip(upper, 0, 1).tolist())),
    )


def trials_refute(trials: Trials, guarantee: Guarantee, confidence: float = 1 - 1e-6) -> bool:
    """Tell whether a test made fewer errors than ``guarantee`` allows any test.

    Args:
        trials: the errors of the test.
        guarantee: the guarantee in question.
        confidence: one minus the probability of a false alarm.

    Returns:
        True if the guarantee is refuted.

    *Formal guarantee*: the guarantee is refuted wrongly with probability at most 1 −
    ``confidence``.
    """
    false_positive, false_negative = trials.rates(confidence)
    return false_negative < tradeoff_curve(guarantee, [false_positive]).fnr[0]


def one_run_epsilon(guesses: Guesses, delta: float, confidence: float = 0.95) -> float:
    """Return an ε below which the mechanism cannot be (ε, ``delta``)-DP, by guesses about one run.

    Args:
        guesses: the guesses and how many of them were correct.
        delta: the δ, in [0, 1).
        confidence: the confidence of the bound, in (0, 1).

    Returns:
        The lower bound on ε, at least 0.

    Raises:
        InvalidArgument: if ``delta`` or ``confidence`` is outside its range.

    *Formal guarantee*: with probability at least ``confidence`` no smaller ε holds for adding or
    removing a record.

    *Assumes*: each canary was in or out by its own fair coin.

    Reference: Steinke, Nasr & Jagielski 2023, Theorem 5.2.

    >>> round(one_run_epsilon(Guesses(1000, 100, 100), delta=1e-5), 2)
    3.47
    """
    delta = _validate.real("delta", delta, 0, 1, open_high=True)
    fails = 1 - _confidence(confidence)
    return _largest(
        lambda epsilon: steinke_p_value(guesses, epsilon, delta) < fails, _LARGEST_EPSILON
    )


def steinke_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of at least v correct guesses under (ε, δ)-DP.

    v is ``guesses.correct`` and m is ``guesses.canaries``. With W ~ Binomial(made, e^ε/(1 + e^ε))
    the bound is Pr[W ≥ v] + 2mδ·max_i Pr[v − i ≤ W < v]/i.
    """
    right = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(guesses.correct - 1, guesses.made, right))
    if delta == 0 or guesses.correct == 0:
        return min(1.0, tail)
    below = np.cumsum(binom.pmf(np.arange(guesses.correct - 1, -1, -1), guesses.made, right))
    steepest = float(np.max(below / np.arange(1, guesses.correct + 1)))
    return min(1.0, tail + 2 * guesses.canaries * delta * steepest)


def one_run_mu(guesses: Guesses, confidence: float = 0.95) -> float:
    """Return a μ below which the mechanism cannot be μ-GDP, by guesses about one run.

    Args:
        guesses: the guesses and how many of them were correct.
        confidence: the confidence of the bound, in (0, 1).

    Returns:
        The lower bound on μ, at least 0.

    *Formal guarantee*: with probability at least ``confidence`` no smaller μ holds for adding or
    removing a record.

    *Assumes*: as :func:`one_run_epsilon`.

    Reference: Mahloujifar, Melis & Chaudhuri 2024; proof for any number of guesses:
    docs/proofs/auditing.md.

    >>> round(one_run_mu(Guesses(1000, 200, 185)), 2)
    0.79
    """
    fails = 1 - _confidence(confidence)
    return _largest(lambda mu: guesses_refute(guesses, gaussian_inverse(mu), fails), _LARGEST_MU)


def guesses_refute(guesses: Guesses, inverse: Inverse, false_alarm: float) -> bool:
    """Tell whether the guesses refute a trade-off curve.

    They do if at least this number of correct guesses has a probability below ``false_alarm`` under
    the curve. If at least v correct guesses had the probability ``false_alarm``, then fewer correct
    guesses would have some probability as well; the recursion adds up the least of it, and refutes
    the curve if the total exceeds one.

    Args:
        guesses: the guesses and how many of them were correct.
        inverse: maps the probability of an event on one data set to the least probability that the
            curve leaves it on a neighbour.
        false_alarm: the probability with which a true curve is refuted.

    Returns:
        True if the curve is refuted.
    """
    made, fewest = guesses.made, guesses.correct
    # The least E[correct guesses; at least i are correct] / canaries.
    right = false_alarm * fewest / guesses.canaries
    wrong = false_alarm * (made - fewest) / guesses.canaries
    whole = made / guesses.canaries
    for count in range(fewest - 1, -1, -1):
        least = max(wrong, inverse(right))
        right += count / (made - count) * (least - wrong)
        wrong = least
        if right + wrong > whole * (1 + 1e-9):
            return True
    return False


def gaussian_inverse(mu: float) -> Inverse:
    """Return the inverse of μ-GDP for :func:`guesses_refute`."""
    return lambda probability: float(ndtr(ndtri(probability) - mu))


def approximate_inverse(epsilon: float, delta: float) -> Inverse:
    """Return the inverse of (ε, δ)-DP for :func:`guesses_refute`."""
    return lambda probability: max(
        0.0,
        math.exp(-epsilon) * (probability - delta),
        1 - delta - math.exp(epsilon) * (1 - probability),
    )


def inverse_of(guarantee: Guarantee) -> Inverse:
    """Return the inverse of a ledger's guarantee for :func:`guesses_refute`.

    It rounds to the next lower point at which the curve is certified, so it never returns more than
    the curve demands.
    """
    grid = np.concatenate([[0.0], np.geomspace(1e-9, 1, 1500)])
    # The largest probability on the neighbour.
    reach = 1 - np.asarray(tradeoff_curve(guarantee, grid.tolist()).fnr)
    reach = np.maximum.accumulate(reach)

    def inverse(probability: float) -> float:
        place = int(np.searchsorted(reach, probability, side="left")) - 1
        return float(grid[place]) if place >= 0 else 0.0

    return inverse


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the ε at ``delta`` of a μ-GDP mechanism, rounded down."""
    return closed_forms.epsilon(mu, delta).lower if mu > 0 else 0.0


def _largest(refuted: Callable[[float], bool], most: float) -> float:
    """Return the largest value that is refuted; all values below it are refuted too."""
    low, high = 0.0, most
    if not refuted(low):
        return 0.0
    for _ in range(_TURNS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _at_most(errors: int, total: int, level: float) -> float:
    return 1.0 if errors == total else float(beta.ppf(level, errors + 1, total - errors))


def _confidence(value: float) -> float:
    return _validate.real("confidence", value, 0, 1, open_low=True, open_high=True)
