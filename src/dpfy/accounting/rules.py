"""The rule tables: which method may account which event under which relation, and by what theorem.

A rule is pure: it turns one step into its dominating pair and knows nothing about composition. What is not in the
table is refused, so the table is also the support matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dpfy.accounting.pairs import Noise, Pair
from dpfy.ledger.events import LaplaceSum, Poisson, Policy, Query, SumQuery
from dpfy.types import Relation

NOISES: dict[type[Query], Noise] = {SumQuery: "gaussian", LaplaceSum: "laplace"}
"""The noise of each kind of query."""


@dataclass(frozen=True)
class Rule:
    """How a policy with noise multiplier z becomes a pair, and why that is sound.

    z is the noise over the bound: of one query, or of the Gaussian sum to which all queries on a sample collapse.
    """

    pair: Callable[[Policy, float], Pair]
    reference: str


def _poisson_absent(policy: Policy, noise_multiplier: float) -> Pair:
    assert isinstance(policy, Poisson)
    return Pair(policy.rate, noise_multiplier, "absent")


def _poisson_opposed(policy: Policy, noise_multiplier: float) -> Pair:
    assert isinstance(policy, Poisson)
    return Pair(policy.rate, noise_multiplier, "opposed")


def _laplace_absent(policy: Policy, noise_multiplier: float) -> Pair:
    assert isinstance(policy, Poisson)
    return Pair(policy.rate, noise_multiplier, "absent", "laplace")


_REMOVED = "the record is in the sample with probability q, or is not there: the pair of Zhu, Dong & Wang 2022"
_MOMENTS = "Mironov, Talwar & Zhang 2019: removing a record has the larger Rényi divergence"
_ZEROED = "a record set to zero contributes what an absent one does, and Poisson sampling ignores the others; then "

RULES: dict[tuple[str, type[Policy], type[Query], str], Rule] = {
    ("pld", Poisson, SumQuery, Relation.ADD_OR_REMOVE_ONE): Rule(_poisson_absent, _REMOVED),
    ("pld", Poisson, SumQuery, Relation.ZERO_OUT): Rule(_poisson_absent, _ZEROED + _REMOVED),
    ("pld", Poisson, SumQuery, Relation.REPLACE_ONE): Rule(
        _poisson_opposed, "opposed points of the ball are the best for every test that tells two records apart, by the "
                          "lemma of Neyman and Pearson; pair: Lebeda, Regehr, Kamath & Steinke 2024"),
    ("pld", Poisson, LaplaceSum, Relation.ADD_OR_REMOVE_ONE): Rule(_laplace_absent, _REMOVED),
    ("pld", Poisson, LaplaceSum, Relation.ZERO_OUT): Rule(_laplace_absent, _ZEROED + _REMOVED),
    ("rdp", Poisson, SumQuery, Relation.ADD_OR_REMOVE_ONE): Rule(_poisson_absent, _MOMENTS),
    ("rdp", Poisson, SumQuery, Relation.ZERO_OUT): Rule(_poisson_absent, _ZEROED + _MOMENTS),
}
"""(method, sampler, kind of query, relation) → rule."""


@dataclass(frozen=True)
class Supported:
    """One cell of the support matrix."""

    method: str
    policy: str
    noise: str
    relation: str
    reference: str


def supported() -> tuple[Supported, ...]:
    """List what can be accounted.

    >>> sorted({(row.method, row.noise) for row in supported()})
    [('pld', 'gaussian'), ('pld', 'laplace'), ('rdp', 'gaussian')]
    """
    return tuple(Supported(method, policy.tag, NOISES[query], str(relation), rule.reference)
                 for (method, policy, query, relation), rule in RULES.items())
