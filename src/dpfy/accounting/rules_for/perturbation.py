"""Objective perturbation: the loss of a perturbed minimiser, from a sum of Gaussian profiles.

The loss is at most a constant, which the Hessian of one record is worth, plus the largest of a few
Gaussian losses and 0. The proof is in ``docs/proofs/perturbation.md``.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpfy.accounting.loss_distributions import Array, LossDistribution, Masses, Table
from dpfy.accounting.pld import closed_forms
from dpfy.accounting.special import log_ndtr, logsumexp
from dpfy.ledger.perturbation import ObjectivePerturbation

_UP = 1 + 1e-12
_POINTS = 800  # of the profile: δ to a few ten thousandths
_RARE = 1e-18  # δ beyond which no profile is looked at
_LARGEST = 300.0  # e^ε must stay a number
_LAST_ORDER = 1e4  # beyond it, the largest Gaussian is all that counts


@dataclass(frozen=True)
class PerturbedMinimum(LossDistribution):
    """The loss of objective perturbation: δ(ε) = Σ δ_μ(max(ε − gap, 0)), with Gaussian δ_μ.

    Args:
        gap: The constant by which the Hessian of one record raises the loss.
        mus: Distances of two Gaussian means over the noise, the largest first.
    """

    gap: float
    mus: tuple[float, ...]

    @property
    def spread(self) -> float:
        """About √Var of the loss."""
        return math.hypot(self.gap, self.mus[0])

    @cached_property
    def zcdp(self) -> float:
        """A ρ from divergences at finitely many orders, since they rise with the order."""
        orders = np.geomspace(1.0, _LAST_ORDER, 1000)
        known = float(np.max(self.divergence(orders[1:], 1.0) / orders[:-1]))
        beyond = (self.gap + math.log1p(len(self.mus))) / _LAST_ORDER + self.mus[0] ** 2 / 2
        return max(known, beyond) * _UP

    def span(self, log_tail: float) -> tuple[float, float]:
        """Return the losses beyond which at most e^log_tail of P or of Q lies."""
        return self._table.span(log_tail)

    def masses(self, cuts: Array) -> Masses:
        """Return the masses of the cells between ``cuts``."""
        return self._table.masses(cuts)

    def divergence(self, orders: Array, rate: float) -> Array:
        """Return gap + log(1 + Σ E(e^{(order − 1)·loss} − 1)₊)/(order − 1), on all records."""
        tilt, mu = orders - 1, np.array(self.mus)[:, None]
        grown = tilt * orders * mu**2 / 2 + log_ndtr((tilt + 0.5) * mu)
        # log Σ (e^grown − Φ(μ/2)), in which every term is positive
        terms = grown + np.log(-np.expm1(np.minimum(log_ndtr(mu / 2) - grown, -1e-300)))
        moment = np.logaddexp(0.0, logsumexp(terms, axis=0))
        found: Array = (self.gap + (moment + 1e-14) / tilt) * _UP
        return found

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ(ε), for ε ≥ 0.

        Before the gap it is a total variation, which setting a row to zero has in both directions,
        and the Hessian raises the loss in one of them only.
        """
        past = max(epsilon - self.gap, 0.0)
        return math.fsum(closed_forms.delta_interval(mu, past).upper for mu in self.mus) * _UP

    @cached_property
    def _table(self) -> Table:
        rare = max(closed_forms.epsilon(mu, _RARE).upper for mu in self.mus)
        last = min(self.gap + rare, _LARGEST)
        epsilons = np.unique(np.concatenate((np.linspace(0, last, _POINTS), [min(self.gap, last)])))
        return Table.from_profile(epsilons, np.array([self.delta(float(at)) for at in epsilons]))


def perturbed_minimum(query: ObjectivePerturbation, *, replaced: bool = False) -> PerturbedMinimum:
    """Return the loss of objective perturbation when a record is absent, or replaced.

    The noise of the output is one more Gaussian sum, which adds its μ² to each.

    Args:
        query: What was minimised, with a positive bound and positive noise.
        replaced: Whether one record is replaced by another.

    Returns:
        The loss distribution.
    """
    mu = query.lipschitz / query.stddev
    each = (2 * mu, mu, mu, 0.0) if replaced else (mu, 0.0)
    gap = math.log1p(query.smoothness / query.regularisation)
    return PerturbedMinimum(
        gap * _UP, tuple(math.hypot(one, 1 / query.output_multiplier) * _UP for one in each)
    )
