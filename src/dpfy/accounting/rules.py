"""The rule tables: which method may account which event under which relation, and by what theorem.

A rule is pure: it turns one step into its dominating pair, or an event of another kind into
several, and knows nothing about composition. What is not in the tables is refused, so the tables
are also the support matrix.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpfy.accounting.dominating_pairs import Neighbours, Pair, Pairs
from dpfy.accounting.pld.closed_forms import more_than
from dpfy.accounting.rules_for import one_shot
from dpfy.accounting.rules_for.balls_in_bins import epoch
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    CyclicPoisson,
    Event,
    FixedSize,
    Importance,
    ImportanceSchedule,
    LaplaceSum,
    Poisson,
    Policy,
    RecordedQuery,
    Shuffled,
    SumQuery,
    TruncatedPoisson,
)
from dpfy.ledger.individual import FilteredPoisson
from dpfy.ledger.one_shot import DiscreteGaussianSum, ListedChoice
from dpfy.types import Relation

NOISES: dict[type[RecordedQuery], str] = {
    SumQuery: "gaussian",
    LaplaceSum: "laplace",
    **{query: query.tag for query in one_shot.QUERIES},
}
"""The noise of each kind of query, or what it is called."""


@dataclass(frozen=True)
class Rule:
    """A rule that turns one sampled step into a dominating pair, and why it is sound.

    Args:
        pair: The pair of a policy and a noise multiplier z, or a query that is no sum. z is the
            noise over the bound: of one query, or of the Gaussian sum to which all queries on a
            sample collapse.
        reference: Why the pair dominates the step.
        failure: Bound on the probability that the pair does not apply to a step; 0 by default.
        exact: Whether some neighbouring data sets have just this profile, failures aside, however
            often the step is repeated; True by default.
        beside: Pairs that are composed with the pair, if anything is asked; none by default.
        attained: For a rule that is not exact, pairs that some neighbouring data sets have, on
            which lower bounds rest; none by default.
    """

    pair: Callable[[Policy, Any], Pair]
    reference: str
    failure: Callable[[Policy], float] = lambda policy: 0.0
    exact: bool = True
    beside: Callable[[Policy], Pairs] = lambda policy: ()
    attained: Callable[[Policy, Any], Pairs] = lambda policy, noise: ()


@dataclass(frozen=True)
class EventRule:
    """A rule that turns an event other than a sampled step into pairs, and why it is sound.

    For RDP, a pair may hold a loss distribution that knows its divergences only.

    Args:
        pairs: The pairs of an event, whose composition dominates it unless there is a failure.
        reference: Why they dominate it.
        failure: Bound on the probability that they do not; 0 by default.
        exact: Whether some neighbouring data sets have just this profile; True by default.
        attained: For a rule that is not exact, pairs whose composition some neighbouring data sets
            have; none by default.
    """

    pairs: Callable[[Any], Pairs]
    reference: str
    failure: Callable[[Any], float] = lambda event: 0.0
    exact: bool = True
    attained: Callable[[Any], Pairs] = lambda event: ()


def _absent(policy: Policy, noise_multiplier: float) -> Pair:
    return Pair(policy.rate, noise_multiplier, "absent")


def _opposed(policy: Policy, noise_multiplier: float) -> Pair:
    return Pair(policy.rate, noise_multiplier, "opposed")


def _laplace_absent(policy: Policy, noise_multiplier: float) -> Pair:
    return Pair(policy.rate, noise_multiplier, "absent", "laplace")


def _exchanged(policy: Policy, noise_multiplier: float) -> Pair:
    assert isinstance(policy, FixedSize)
    rate = (
        policy.rate
        if policy.rate >= Fraction(policy.size, policy.records)
        else math.nextafter(policy.rate, 1.0)
    )
    return Pair(rate, noise_multiplier, "exchanged")


def _once_absent(policy: Policy, noise_multiplier: float) -> Pair:
    return Pair(1.0, noise_multiplier, "absent")


def _once_opposed(policy: Policy, noise_multiplier: float) -> Pair:
    return Pair(1.0, noise_multiplier, "opposed")


def _balls_in_bins(policy: Policy, noise_multiplier: float) -> Pair:
    assert isinstance(policy, BallsInBins)
    return epoch(policy.bins, noise_multiplier)


def _balls_in_bins_opposed(policy: Policy, noise_multiplier: float) -> Pair:
    assert isinstance(policy, BallsInBins)
    return epoch(policy.bins, noise_multiplier, "opposed")


def _alone(pair: Callable[[Policy, Any], Pair]) -> Callable[[Policy, Any], Pairs]:
    """Return the pair itself as what is attained."""
    return lambda policy, noise: ((pair(policy, noise), 1),)


def _in_place(policy: Policy, noise_multiplier: float) -> Pairs:
    """Return what is attained if all other records equal the new one, and oppose the old one."""
    return ((Pair(_share(policy), noise_multiplier / 2), 1),)


def _among_zeros(policy: Policy, noise_multiplier: float) -> Pairs:
    """Return what is attained if all other records are zero."""
    return ((Pair(_share(policy), noise_multiplier), 1),)


def _sum_among_zeros(policy: Policy, query: Any) -> Pairs:
    """Return what is attained by a sum if all other records are zero; nothing for other queries."""
    if isinstance(query, DiscreteGaussianSum):
        return (
            (
                one_shot.ONE_SHOT[DiscreteGaussianSum, Relation.ZERO_OUT].pair(
                    Poisson(_share(policy)), query
                ),
                1,
            ),
        )
    return (
        ((Pair(_share(policy), query, "absent", "laplace"), 1),) if isinstance(query, float) else ()
    )


def _share(policy: Policy) -> float:
    """Return the probability that a record is in a sample of a fixed size, never rounded up."""
    assert isinstance(policy, FixedSize)
    exact = policy.rate <= Fraction(policy.size, policy.records)
    return policy.rate if exact else math.nextafter(policy.rate, 0.0)


def _all_batches(neighbours: Neighbours) -> Callable[[Policy, Any], Pairs]:
    """Return the pair of the sum of all batches of an epoch, in which a record is for certain."""

    def pairs(policy: Policy, noise_multiplier: float) -> Pairs:
        return (
            (
                Pair(
                    1.0,
                    noise_multiplier * math.sqrt(policy.steps_per_event) * (1 + 1e-15),
                    neighbours,
                ),
                1,
            ),
        )

    return pairs


def _jitter(policy: Policy) -> Pairs:
    assert isinstance(policy, Importance)
    return ((Pair(1.0, math.nextafter(1 / policy.jitter, 0.0)), 1),)


def _among_all(pair: Callable[[Policy, Any], Pair]) -> Callable[[Policy, Any], Pair]:
    """Return the pair of a query in an epoch, in whose batches a record takes part once."""
    return lambda policy, query: pair(Poisson(1.0), query)


def _exchanged_query(pair: Callable[[Policy, Any], Pair]) -> Callable[[Policy, Any], Pair]:
    """Return the pair of a query on a sample of a fixed size, from that on all records."""
    return lambda policy, query: one_shot.exchanged(
        pair(Poisson(1.0), query), _exchanged(policy, 1.0).rate
    )


def _truncation(policy: Policy) -> float:
    """Return Pr[Binomial(records, rate) > capacity], rounded up by more than betainc errs."""
    assert isinstance(policy, TruncatedPoisson)
    if policy.capacity >= policy.records or policy.rate == 0:
        return 0.0
    return more_than(policy.capacity, policy.records, policy.rate) * (1 + 1e-8) + 1e-300


_REMOVED = (
    "the record is in the sample with probability q, or is not there: "
    "the pair of Zhu, Dong & Wang 2022"
)
_MOMENTS = "Mironov, Talwar & Zhang 2019: removing a record has the larger Rényi divergence"
_ZEROED = (
    "a record set to zero contributes what an absent one does, "
    "and Poisson sampling ignores the others; then "
)
_OPPOSED = (
    "opposed points of the ball are the best for every test that tells two records apart, by the "
    "lemma of Neyman and Pearson; pair: Lebeda, Regehr, Kamath & Steinke 2024"
)
_EXCHANGED = (
    "a sample with the record and one with another in its place are neighbours by replacement: "
    "Balle, Barthe & Gaboardi 2018, as a pair Dong, Roth & Su 2022, Theorem 4.2, and Zhu, Dong & "
    "Wang 2022"
)
_REPLACED_BY_ZERO = "a record set to zero is replaced; then "
_TRUNCATED = (
    "with the probability that any sample was cut, times 1 + e^ε, as a part of δ, samples are as "
    "if they were not: Chua et al. 2024 (Scalable DP-SGD); then "
)
_ONCE = (
    "every record takes part once in an epoch, in batches that do not depend on the records: "
    "one Gaussian sum"
)

_ONE_ANSWER = (
    "every record takes part once in an epoch, in batches that do not depend on the records: "
    "one answer; "
)

_BALLS = (
    "one batch of an epoch, drawn uniformly, holds the record: the pair of Chua et al. 2025, or "
    "one Gaussian sum where that is less"
)

_SET_TO_ZERO = "one record is set to zero, and that to the other, which is a group of two; then "

_ACCEPTED = (
    "acceptance is in proportion to a norm, and every divergence grows with its probability; one "
    "Gaussian sum for the coins of others: docs/proofs/dpis.md; then "
)

_LEFT_OUT = (
    "a record that has left is as one that is absent, and one that has not is drawn with this rate "
    "and clipped to at most the bound: docs/proofs/individual-filter.md; then "
)

_LAPLACE: dict[tuple[type[RecordedQuery], str], one_shot.OneShot] = {
    (LaplaceSum, Relation.ZERO_OUT): one_shot.OneShot(_laplace_absent, _REMOVED, exact=True)
}
_EPOCHS: tuple[type[Policy], ...] = (Shuffled, Cyclic, BallsInBins)
_EPOCH_PAIRS: tuple[tuple[Relation, Callable[[Policy, Any], Pair], Neighbours], ...] = (
    (Relation.ZERO_OUT, _once_absent, "absent"),
    (Relation.REPLACE_ONE, _once_opposed, "opposed"),
)

RULES: dict[tuple[str, type[Policy], type[RecordedQuery], str], Rule] = {
    ("pld", Poisson, SumQuery, Relation.ADD_OR_REMOVE_ONE): Rule(_absent, _REMOVED),
    ("pld", Poisson, SumQuery, Relation.ZERO_OUT): Rule(_absent, _ZEROED + _REMOVED),
    ("pld", Poisson, SumQuery, Relation.REPLACE_ONE): Rule(_opposed, _OPPOSED),
    ("pld", Poisson, LaplaceSum, Relation.ADD_OR_REMOVE_ONE): Rule(_laplace_absent, _REMOVED),
    ("pld", Poisson, LaplaceSum, Relation.ZERO_OUT): Rule(_laplace_absent, _ZEROED + _REMOVED),
    ("rdp", Poisson, SumQuery, Relation.ADD_OR_REMOVE_ONE): Rule(_absent, _MOMENTS),
    ("rdp", Poisson, SumQuery, Relation.ZERO_OUT): Rule(_absent, _ZEROED + _MOMENTS),
    ("pld", FixedSize, SumQuery, Relation.REPLACE_ONE): Rule(
        _exchanged, _EXCHANGED, exact=False, attained=_in_place
    ),
    ("pld", FixedSize, SumQuery, Relation.ZERO_OUT): Rule(
        _exchanged, _REPLACED_BY_ZERO + _EXCHANGED, exact=False, attained=_among_zeros
    ),
    ("pld", TruncatedPoisson, SumQuery, Relation.ZERO_OUT): Rule(
        _absent, _TRUNCATED + _REMOVED, _truncation
    ),
    ("pld", TruncatedPoisson, SumQuery, Relation.REPLACE_ONE): Rule(
        _opposed, _TRUNCATED + _OPPOSED, _truncation
    ),
    **{
        (method, policy, SumQuery, relation): Rule(
            pair, _ONCE, exact=policy is Cyclic, attained=_all_batches(neighbours)
        )
        for method in ("pld", "rdp")
        for policy in _EPOCHS
        for relation, pair, neighbours in _EPOCH_PAIRS
    },
    ("pld", BallsInBins, SumQuery, Relation.ZERO_OUT): Rule(
        _balls_in_bins, _BALLS, exact=False, attained=_all_batches("absent")
    ),
    ("pld", BallsInBins, SumQuery, Relation.REPLACE_ONE): Rule(
        _balls_in_bins_opposed, _SET_TO_ZERO + _BALLS, exact=False, attained=_all_batches("opposed")
    ),
    **{
        (method, Importance, SumQuery, relation): Rule(
            _absent, _ACCEPTED + words, exact=False, beside=_jitter, attained=_alone(_absent)
        )
        for method, words in (("pld", _REMOVED), ("rdp", _MOMENTS))
        for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
    },
    **{
        (method, FilteredPoisson, SumQuery, relation): Rule(_absent, _LEFT_OUT + words, exact=False)
        for method, words in (("pld", _REMOVED), ("rdp", _MOMENTS))
        for relation in (Relation.ADD_OR_REMOVE_ONE, Relation.ZERO_OUT)
    },
    **{
        ("rdp", Poisson, LaplaceSum, relation): Rule(_laplace_absent, words + _REMOVED)
        for relation, words in ((Relation.ADD_OR_REMOVE_ONE, ""), (Relation.ZERO_OUT, _ZEROED))
    },
    **{
        (method, Poisson, query, relation): Rule(
            shot.pair,
            words + shot.reference,
            exact=shot.exact,
            attained=shot.attained or _alone(shot.pair),
        )
        for (query, relation), shot in one_shot.ONE_SHOT.items()
        for method in ("pld", "rdp")
        for words in (_ZEROED if relation == Relation.ZERO_OUT else "",)
    },
    **{
        (method, policy, query, relation): Rule(
            _among_all(shot.pair),
            _ONE_ANSWER + shot.reference,
            exact=policy is Cyclic and shot.exact,
        )
        for (query, relation), shot in (_LAPLACE | one_shot.ONE_SHOT).items()
        if relation != Relation.ADD_OR_REMOVE_ONE
        for method in ("pld", "rdp")
        for policy in _EPOCHS
    },
    **{
        ("pld", TruncatedPoisson, query, relation): Rule(
            shot.pair,
            _TRUNCATED + shot.reference,
            _truncation,
            shot.exact,
            attained=shot.attained or _alone(shot.pair),
        )
        for (query, relation), shot in (_LAPLACE | one_shot.ONE_SHOT).items()
        if relation != Relation.ADD_OR_REMOVE_ONE
    },
    **{
        ("pld", FixedSize, query, relation): Rule(
            _exchanged_query(shot.pair),
            words + _EXCHANGED + "; on all records, " + shot.reference,
            exact=False,
            attained=_sum_among_zeros,
        )
        for (query, of), shot in one_shot.ONE_SHOT.items()
        if of == Relation.REPLACE_ONE
        for relation, words in ((Relation.REPLACE_ONE, ""), (Relation.ZERO_OUT, _REPLACED_BY_ZERO))
    },
}
"""(method, sampler, kind of query, relation) → rule."""

EVENT_RULES: dict[tuple[str, type[Event], str], EventRule] = {}
"""(method, kind of event, relation) → rule, for events other than sampled steps.

The modules of :mod:`dpfy.accounting.rules_for` fill it.
"""

_OF_SIZE: dict[type[Policy], str] = {
    FixedSize: "which other records are drawn depends on how many there are",
    TruncatedPoisson: "which other records stay in a full batch depends on how many there are",
    Shuffled: "which batch the other records are in depends on how many there are",
    Cyclic: "which batch the other records are in depends on how many there are",
    CyclicPoisson: "which part the other records are in depends on how many there are",
    BallsInBins: "the policy declares how many there are",
}
_BY_NORM: tuple[type[Policy], ...] = (Importance, ImportanceSchedule)

REASONS: dict[tuple[type[Policy | RecordedQuery], str], str] = {
    (ListedChoice, Relation.ADD_OR_REMOVE_ONE): "scores rest on a list of people that neighbours "
    "share. Declare relation='zero_out' or 'replace_one'",
    **{
        (
            policy,
            Relation.ADD_OR_REMOVE_ONE,
        ): f"{why}, so the number of records must be public, and neighbours must have equally "
        "many. Declare relation='zero_out' or 'replace_one', or sample by Poisson"
        for policy, why in _OF_SIZE.items()
    },
    **{
        (
            policy,
            Relation.REPLACE_ONE,
        ): "the coins of two records that replace each other differ as well as their gradients. "
        "Declare relation='add_or_remove_one' or 'zero_out'"
        for policy in _BY_NORM
    },
    (
        FilteredPoisson,
        Relation.REPLACE_ONE,
    ): "a record that replaces another has other bounds, and leaves at another step. Declare "
    "relation='add_or_remove_one' or 'zero_out'",
}
"""(sampler or kind of query, relation) → why no method has a rule for it, and what to do."""


@dataclass(frozen=True)
class Supported:
    """One cell of the support matrix.

    Args:
        method: "pld" or "rdp".
        policy: The tag of the sampler; empty for an event that is no sampled step.
        noise: The noise; for an event that is no sampled step, its tag.
        relation: The neighbouring relation.
        reference: Why the rule is sound.
        exact: Whether some neighbouring data sets have just the profile of the rule.
    """

    method: str
    policy: str
    noise: str
    relation: str
    reference: str
    exact: bool


def supported() -> tuple[Supported, ...]:
    """List all combinations of method, sampler, noise and relation that can be accounted.

    Returns:
        One row for each rule.

    >>> sorted({row.method for row in supported() if row.noise == "laplace"})
    ['pld', 'rdp']
    """
    steps = tuple(
        Supported(method, policy.tag, NOISES[query], str(relation), rule.reference, rule.exact)
        for (method, policy, query, relation), rule in RULES.items()
    )
    return steps + tuple(
        Supported(method, "", event.tag, str(relation), rule.reference, rule.exact)
        for (method, event, relation), rule in EVENT_RULES.items()
    )
