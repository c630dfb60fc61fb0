"""Rules of one-shot queries: how each becomes a dominating pair.

One pair is for adding or removing a record, and one for replacing it. The proofs, and what each
bound rests on, are in ``docs/proofs/one-shot.md``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from dpfy.accounting.dominating_pairs import Pair, Pairs, of_distribution
from dpfy.accounting.loss_distributions import (
    Array,
    DiscreteGaussian,
    LossDistribution,
    Range,
    Table,
    response,
)
from dpfy.accounting.pld import one_step
from dpfy.accounting.pld.closed_forms import amplified
from dpfy.accounting.rdp_from_atoms import bounded, mirrored
from dpfy.accounting.rules_for.discrete_gaussian_vector import DiscreteGaussianVector
from dpfy.accounting.rules_for.perturbation import perturbed_minimum
from dpfy.ledger.events import LaplaceSum, Poisson, Policy, RecordedQuery
from dpfy.ledger.one_shot import (
    AboveThreshold,
    Bounded,
    DiscreteGaussianSum,
    ExponentialChoice,
    LabelAnswer,
    ListedChoice,
    NoisyMax,
    RandomizedAnswer,
)
from dpfy.ledger.perturbation import ObjectivePerturbation
from dpfy.types import Relation

QUERIES: tuple[type[RecordedQuery], ...] = (
    ExponentialChoice,
    ListedChoice,
    NoisyMax,
    AboveThreshold,
    RandomizedAnswer,
    LabelAnswer,
    DiscreteGaussianSum,
    ObjectivePerturbation,
)
_UP = 1 + 1e-12
_POINTS = 600  # of a profile
_RARE, _LARGEST = 1e-18, 300.0  # where it ends: e^ε must stay a number
_FREE = Pair(1.0, math.inf)
_NOTHING, _EVERYTHING = Table((0.0,), (1.0,)), Table((), (), infinite=1.0, missing=1.0)


@dataclass(frozen=True)
class OneShot:
    """A rule that turns a query on a Poisson sample into a pair.

    Args:
        pair: The pair of a policy and a query.
        reference: Why it dominates the query.
        exact: Whether some data sets have just this profile.
        attained: Pairs that some data sets have, where the pair itself does not know.
    """

    pair: Callable[[Policy, Any], Pair]
    reference: str
    exact: bool = False
    attained: Callable[[Policy, Any], Pairs] | None = None


def pure(loss: float) -> LossDistribution:
    """Return the loss of randomised response, which dominates every ``loss``-DP mechanism.

    >>> pure(0.5).largest
    0.5
    """
    return response(loss) if loss < math.inf else _EVERYTHING


def ranged(loss: float) -> LossDistribution:
    """Return the loss that dominates every mechanism whose losses span at most ``loss``."""
    return (Range(loss) if loss > 0 else _NOTHING) if loss < math.inf else _EVERYTHING


def _absent(
    distribution_of: Callable[[float], LossDistribution],
) -> Callable[[Policy, RecordedQuery], Pair]:
    def pair(policy: Policy, query: RecordedQuery) -> Pair:
        assert isinstance(query, Bounded)
        return of_distribution(distribution_of(query.largest_loss), policy.rate)

    return pair


def _replaced(
    distribution_of: Callable[[float], LossDistribution],
) -> Callable[[Policy, RecordedQuery], Pair]:
    """Return the pair of removing one record, then adding another.

    Losses and ranges add up; on a sample, only losses are known to.
    """

    def pair(policy: Policy, query: RecordedQuery) -> Pair:
        assert isinstance(query, Bounded)
        loss = query.largest_loss
        return of_distribution(
            distribution_of(2 * loss) if policy.rate == 1 else pure(_twice(policy.rate, loss))
        )

    return pair


def _two_candidates(times: int) -> Callable[[Policy, RecordedQuery], Pairs]:
    """Return what noisy max attains between two candidates that change places.

    One of them is as far ahead before as the other one is afterwards. With Laplace noise the worse
    of them is chosen with probability ½e^−gap·(1 + gap/2), with exponential noise less often, and
    the event does not say which ran. Nothing is known for a sample in which a record is replaced.
    """

    def pairs(policy: Policy, query: RecordedQuery) -> Pairs:
        assert isinstance(query, NoisyMax)
        gap = times * query.largest_loss / 2
        if times > 1 and policy.rate < 1:
            return ()
        odds = (
            math.log1p((2 * math.expm1(gap) - gap) / (1 + gap / 2))
            if gap < 300
            else gap - math.log1p(gap / 2)
        )
        return (
            (
                of_distribution(
                    response(odds / _UP) if gap < math.inf else _EVERYTHING, policy.rate
                ),
                1,
            ),
        )

    return pairs


def _nothing(policy: Policy, query: RecordedQuery) -> Pairs:
    return ()


def _if_all(pair: Callable[[Policy, Any], Pair]) -> Callable[[Policy, Any], Pairs]:
    """Return the pair as attained on all records; nothing is known for a sample."""
    return lambda policy, query: ((pair(policy, query), 1),) if policy.rate == 1 else ()


def _response(policy: Policy, query: RecordedQuery) -> Pair:
    assert isinstance(query, RandomizedAnswer)
    distribution = response(query.largest_loss, query.unmoved) if query.truth < 1 else _EVERYTHING
    return of_distribution(distribution, policy.rate)


def _response_replaced(policy: Policy, query: RecordedQuery) -> Pair:
    if policy.rate == 1:
        return _response(policy, query)
    assert isinstance(query, RandomizedAnswer)
    return of_distribution(pure(_twice(policy.rate, query.largest_loss)))


def _label_replaced(policy: Policy, query: RecordedQuery) -> Pair:
    """Return the pair of the declared ε, which is about another value of the same record."""
    assert isinstance(query, LabelAnswer)
    loss = query.largest_loss
    return of_distribution(pure(loss if policy.rate == 1 else _twice(policy.rate, loss)))


def _laplace_replaced(policy: Policy, noise_multiplier: float) -> Pair:
    if policy.rate == 1:
        return Pair(1.0, noise_multiplier / 2, "absent", "laplace")
    return of_distribution(
        pure(_twice(policy.rate, 1 / noise_multiplier if noise_multiplier else math.inf))
    )


def _discrete(policy: Policy, query: RecordedQuery, records: int = 1) -> Pair:
    """Return the pair of a discrete Gaussian sum.

    One record consists of integers, so its squared length is an integer too, at most the square of
    the bound. Two that replace each other are at most twice as far apart.
    """
    assert isinstance(query, DiscreteGaussianSum)
    squared = math.floor(
        Fraction(query.l2_bound) ** 2 * Fraction(_UP)
    )  # √3 as a float is less than that
    alone = records * math.isqrt(squared)
    if squared == 0 or query.stddev == 0:
        return of_distribution(_EVERYTHING if squared else _NOTHING, policy.rate)
    if query.coordinates == 1 or records**2 * squared == 1:
        return of_distribution(DiscreteGaussian(alone, query.stddev), policy.rate)
    return of_distribution(
        DiscreteGaussianVector(records**2 * squared, query.stddev, query.coordinates, alone),
        policy.rate,
    )


def _discrete_replaced(policy: Policy, query: RecordedQuery) -> Pair:
    """Return the pair on all records, which is the worst; nothing less is claimed for a sample.

    Two samples are the same unless the record is drawn.
    """
    return _discrete(Poisson(1.0) if policy.rate > 0 else policy, query, records=2)


def _minimum(policy: Policy, query: RecordedQuery, *, replaced: bool = False) -> Pair:
    """Return the pair of objective perturbation; without noise on b or the output, of no noise."""
    assert isinstance(query, ObjectivePerturbation)
    if query.lipschitz == 0 or query.stddev == 0 or query.output_multiplier == 0:
        return of_distribution(_EVERYTHING if query.lipschitz else _NOTHING, policy.rate)
    return of_distribution(perturbed_minimum(query, replaced=replaced), policy.rate)


def _minimum_replaced(policy: Policy, query: RecordedQuery) -> Pair:
    """Return the pair on all records; nothing less is claimed for a sample."""
    return _minimum(Poisson(1.0) if policy.rate > 0 else policy, query, replaced=True)


def _sum_of_gradients(policy: Policy, query: RecordedQuery) -> Pair:
    """Return the Gaussian pair that is approached where other records leave all slopes at 1."""
    assert isinstance(query, ObjectivePerturbation)
    noise = query.stddev / query.lipschitz * _UP if query.lipschitz else math.inf
    return Pair(policy.rate, noise)


@dataclass(frozen=True)
class _Exchanged(Table):
    """The table of a query on a sample of a fixed size.

    In zCDP a sample is not rewarded. The table ends where profiles are no longer looked at; Rényi
    curves do not.

    Args:
        pair: The pair of the query on all records.
        share: The share of records that is in a sample.
    """

    pair: Pair = _FREE
    share: float = 1.0

    @property
    def spread(self) -> float:
        """About √Var of the loss where losses are small."""
        return min(
            super().spread, 1 / self.pair.noise_multiplier
        )  # also where the table knows no protection

    @property
    def zcdp(self) -> float:
        """The ρ of the query on all records, or of the table."""
        whole = (
            self.pair.mu**2 / 2 if self.pair.distribution is None else self.pair.distribution.zcdp
        )
        return min(whole, super().zcdp)

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return the divergences of the table, or of the sampled pair where they are less."""
        sampled = bounded(replace(self.pair, rate=self.share), tuple(orders.tolist()))
        table = super().divergence(orders, rate)
        assert table is not None
        return np.minimum(table, mirrored(sampled, orders))


@lru_cache(maxsize=256)
def exchanged(pair: Pair, share: float) -> Pair:
    """Return the pair of a query on a sample of a fixed size.

    ``pair`` is that of the query on all records, one of which is replaced. A record is in a
    ``share`` of all samples; otherwise another record takes its place. So δ′(ε′) = share·δ(ε) with
    e^ε′ = 1 + share·(e^ε − 1), both ways.
    """
    if share == 1 or not 0 < pair.noise_multiplier < math.inf:
        return replace(pair, rate=share) if pair.noise_multiplier == 0 else pair
    last = min(one_step.epsilon(pair, _RARE).upper, one_step.pure_epsilon(pair), _LARGEST)
    atoms = pair.distribution.atoms() if pair.distribution is not None else np.empty(0)
    epsilons = np.unique(
        np.concatenate((np.linspace(0.0, last, _POINTS), atoms[(atoms > 0) & (atoms < last)]))
    )
    deltas = np.array([one_step.delta(pair, float(at)).upper for at in epsilons]) * share * _UP
    table = Table.from_profile(np.log1p(share * np.expm1(epsilons)) * _UP, deltas)
    return of_distribution(
        _Exchanged(table.loss, table.mass, table.infinite, table.missing, pair=pair, share=share)
    )


def _twice(rate: float, loss: float) -> float:
    """Return the loss of removing and adding a record on samples of this rate, rounded up."""
    return 2 * amplified(rate, loss) * _UP if loss < math.inf else math.inf


_PURE = ", which randomised response dominates: Kairouz, Oh & Viswanath 2015"
_RANGE = (
    "losses for two neighbours span at most 2Δ/b, monotone Δ/b: Durfee & Rogers 2019; PLD takes "
    "the envelope of all such pairs, RDP the worst at each order"
)
_LISTED = "neighbours have the same public list of people: docs/proofs/personalised.md; then "
_MAX = (
    "ε = 2Δ/b, monotone Δ/b: Dwork & Roth 2014, Claim 3.9, "
    "and Ding et al. 2021 for exponential noise"
)
_THRESHOLD = (
    "ε = Δ/b₁ + 2Δ/b₂, monotone Δ/b₁ + Δ/b₂: Lyu, Su & Li 2017, "
    "Theorems 4 and 5, for one answer above"
)
_ANSWER = "the pair of randomised response between the answers"
_LABEL = "ε-DP for every value of a record: docs/proofs/labels.md" + _PURE
_DISCRETE = (
    "one number: the pair at the largest shift, since the noise is log-concave; several: the least "
    "of zCDP, Canonne, Kamath & Steinke 2020, Theorem 14, of a Gaussian that is rounded at random, "
    "and of all ways to divide a short length"
)
_MINIMUM = (
    "the Gaussian profile beyond log(1 + smoothness/regularisation), as slopes have one sign: "
    "docs/proofs/perturbation.md, after Redberg, Koskela & Wang 2023, Theorem 3.2"
)
_TWICE = "one record less and another one more: losses add up; then "

_EVERY: tuple[tuple[type[RecordedQuery], Callable[[float], LossDistribution], str], ...] = (
    (ExponentialChoice, ranged, _RANGE),
    (ListedChoice, ranged, _LISTED + _RANGE),
    (NoisyMax, pure, _MAX + _PURE),
    (AboveThreshold, pure, _THRESHOLD + _PURE),
)
_ATTAINED: dict[tuple[type[RecordedQuery], int], Callable[[Policy, Any], Pairs]] = {
    (NoisyMax, 1): _two_candidates(1),
    (NoisyMax, 2): _two_candidates(2),
    (AboveThreshold, 1): _nothing,
    (AboveThreshold, 2): _nothing,
    (ExponentialChoice, 2): _if_all(_replaced(ranged)),
    (ListedChoice, 2): _if_all(_replaced(ranged)),
}

ONE_SHOT: dict[tuple[type[RecordedQuery], str], OneShot] = {
    **{
        (query, relation): OneShot(
            _absent(distribution_of), words, attained=_ATTAINED.get((query, 1))
        )
        for query, distribution_of, words in _EVERY
        for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
        if (query, relation) != (ListedChoice, Relation.ADD_OR_REMOVE_ONE)
    },
    **{
        (query, Relation.REPLACE_ONE): OneShot(
            _replaced(distribution_of), _TWICE + words, attained=_ATTAINED.get((query, 2))
        )
        for query, distribution_of, words in _EVERY
    },
    **{
        (RandomizedAnswer, relation): OneShot(_response, _ANSWER, exact=True)
        for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
    },
    (RandomizedAnswer, Relation.REPLACE_ONE): OneShot(
        _response_replaced,
        _ANSWER + "; of a sample, " + _TWICE + "ε-DP" + _PURE,
        attained=_if_all(_response),
    ),
    **{
        (LabelAnswer, relation): OneShot(_absent(pure), _LABEL, attained=_nothing)
        for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
    },
    (LabelAnswer, Relation.REPLACE_ONE): OneShot(
        _label_replaced, _LABEL + "; of a sample, losses add up", attained=_nothing
    ),
    **{
        (DiscreteGaussianSum, relation): OneShot(_discrete, _DISCRETE)
        for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
    },
    (DiscreteGaussianSum, Relation.REPLACE_ONE): OneShot(
        _discrete_replaced,
        _DISCRETE + "; a sample is not rewarded",
        attained=_if_all(_discrete_replaced),
    ),
    **{
        (ObjectivePerturbation, relation): OneShot(
            _minimum, _MINIMUM, attained=_if_all(_sum_of_gradients)
        )
        for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
    },
    (ObjectivePerturbation, Relation.REPLACE_ONE): OneShot(
        _minimum_replaced, _MINIMUM + "; a sample is not rewarded", attained=_nothing
    ),
    (LaplaceSum, Relation.REPLACE_ONE): OneShot(
        _laplace_replaced,
        "the pair at twice the shift; of a sample, " + _TWICE + "ε-DP" + _PURE,
        attained=_if_all(_laplace_replaced),
    ),
}
"""(kind of query, relation) → how its pair is made."""
