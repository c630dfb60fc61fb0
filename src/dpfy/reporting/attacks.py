"""Bounds on membership inference, belief and reconstruction, from the trade-off curve."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from dpfy.accounting import Guarantee
from dpfy.accounting.conversions import (
    TradeoffCurve,
    dominating_mu,
    membership_advantage,
    tpr_at_fpr,
    tradeoff_curve,
)
from dpfy.reporting.numbers import finite

FALSE_ALARM = 0.01
"""The false positive rate at which accusations are judged."""

_PRIORS = (0.01, 0.1, 0.5)
_BASELINES = (1e-4, 1e-3, 1e-2, 0.1)
_RATES = tuple(round(0.02 * number, 2) for number in range(51))


@dataclass(frozen=True)
class Belief:
    """Bounds for an attacker who believed with probability ``prior`` that a unit was in.

    Args:
        prior: the probability before seeing the release.
        right: the largest probability of a right decision, 1 − p·(1 − δ(ε)) at ε = log((1 − p)/p).
        accused_rightly: the largest fraction of right accusations, at a false positive rate of 1 %.
    """

    prior: float
    right: float
    accused_rightly: float


@dataclass(frozen=True)
class Reconstruction:
    """A bound on the success of reconstructing a record.

    Args:
        baseline: the probability of success by a lucky guess without the release.
        success: the largest probability of success with the release.
    """

    baseline: float
    success: float


@dataclass(frozen=True)
class Attacks:
    """Bounds for any attacker who sees every released value and knows all other data.

    *Formal guarantee*: each number follows from the certified trade-off curve:
    docs/proofs/conversions.md.
    """

    advantage: float
    true_positives: float
    mu: float
    mu_floor: float
    curve: TradeoffCurve
    beliefs: tuple[Belief, ...]
    reconstruction: tuple[Reconstruction, ...]

    @classmethod
    def of(cls, guarantee: Guarantee) -> Self:
        """Return the bounds that a guarantee implies."""
        found = tpr_at_fpr(guarantee, FALSE_ALARM)
        gaussian = dominating_mu(guarantee)
        return cls(
            advantage=membership_advantage(guarantee),
            true_positives=found,
            mu=gaussian.mu,
            mu_floor=gaussian.floor,
            curve=tradeoff_curve(guarantee, _RATES),
            beliefs=tuple(
                Belief(prior, _right(guarantee, prior), _accused_rightly(prior, found))
                for prior in _PRIORS
            ),
            reconstruction=tuple(
                Reconstruction(base, tpr_at_fpr(guarantee, base)) for base in _BASELINES
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the bounds as plain JSON values."""
        return {
            **asdict(self),
            "mu": finite(self.mu),
            "curve": {"fpr": list(self.curve.fpr), "fnr": list(self.curve.fnr)},
            "beliefs": [asdict(each) for each in self.beliefs],
            "reconstruction": [asdict(each) for each in self.reconstruction],
        }


def _right(guarantee: Guarantee, prior: float) -> float:
    """Return how often the best decision is right; without the release it is 1 − ``prior``."""
    return 1 - prior * (1 - guarantee.delta(math.log((1 - prior) / prior)).upper)


def _accused_rightly(prior: float, true_positives: float) -> float:
    accused = prior * true_positives
    return accused / (accused + (1 - prior) * FALSE_ALARM)
