"""Rules of events that hold others: composed runs, private selection, runs on disjoint parts.

Proofs: ``docs/proofs/scopes.md`` and ``docs/proofs/private-selection.md``.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations

import numpy as np

from dpfy.accounting import rdp
from dpfy.accounting.dominating_pairs import Pairs, of_distribution
from dpfy.accounting.loss_distributions import Array, LossDistribution, Table, response
from dpfy.accounting.pld import accountant as pld
from dpfy.accounting.pld.compose import Curve, curve
from dpfy.accounting.rules import EVENT_RULES, EventRule
from dpfy.accounting.rules_for.selection import RunProfile, SelectionProfile, renyi_curve
from dpfy.accounting.to_pairs import Canonical, canonical
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import Event, Repeated
from dpfy.ledger.selection import Selected, Trials
from dpfy.types import Relation

_POINTS = 385  # at which a profile is asked for
_RUNG = 1.5  # ratio of the values of ε for which runs are composed
_FLOOR = 1e-15  # δ beyond which no profile is looked at
_LARGEST = 300.0  # e^ε must stay a number
_COARSE = 3e-3  # accuracy in ε of profiles that are compared
_OTHERS: Array = np.concatenate((1 + np.geomspace(1e-2, 1, 20), np.geomspace(2.05, 4096, 150)))
_EVERYTHING: Pairs = ((of_distribution(Table((), (), infinite=1.0, missing=1.0)), 1),)


@dataclass(frozen=True)
class Dominating(Table):
    """A dominating table that no known mechanism attains, so it implies no lower bound."""

    @property
    def attained(self) -> LossDistribution | None:
        """A mechanism that reveals nothing: none is known to cost as much as the table."""
        return response(0.0)


@dataclass(frozen=True)
class LargestCurve(LossDistribution):
    """The largest Rényi divergence of several runs, at each order.

    Args:
        runs: The pairs of each run.
    """

    runs: tuple[Pairs, ...]

    @property
    def spread(self) -> float:
        """1, because a pair needs a number: nothing is known about small losses."""
        return 1.0

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return the divergences of the worse direction; sampling is not rewarded."""
        return np.asarray(np.max([_curve(run, orders) for run in self.runs], axis=0))


@dataclass(frozen=True)
class SelectionCurve(LossDistribution):
    """The Rényi curve of repeat-and-select, from that of one run.

    Args:
        pairs: The pairs of one run.
        trials: The distribution of the number of runs.
        spare: The mass of one run that has no curve.
    """

    pairs: Pairs
    trials: Trials
    spare: float = 0.0

    @property
    def spread(self) -> float:
        """1, because a pair needs a number: nothing is known about small losses."""
        return 1.0

    def divergence(self, orders: Array, rate: float) -> Array | None:
        """Return the divergences of the worse direction (Papernot & Steinke 2022).

        Sampling is not rewarded.
        """
        every = np.concatenate((orders, _OTHERS))
        found = renyi_curve(
            self.trials,
            every,
            _curve(self.pairs, every),
            lambda epsilon: rdp.delta_upper(self.pairs, epsilon).value,
            spare=self.spare,
        )
        return np.asarray(found[: len(orders)] * (1 + 1e-12))


def _curve(pairs: Pairs, orders: Array) -> Array:
    """Return the Rényi curve of a run."""
    return np.array(
        [
            math.fsum(times * rdp.renyi_divergence(pair, float(order)) for pair, times in pairs)
            for order in orders
        ]
    )


def run_profile(found: Canonical, floor: float = _FLOOR) -> RunProfile | None:
    """Bound δ(ε) of a run in both directions, down to ``floor``; None if it is not protected."""
    if found.non_private or found.unprotected > 0:
        return None
    last = min(pld.epsilon_upper(found.pairs, floor).value, _LARGEST)
    epsilons = np.linspace(0, max(last, 1e-3), _POINTS)
    sides = np.array([_directions(found.pairs, float(value)) for value in epsilons]).T
    extra = found.numerical_delta + (1 + np.exp(epsilons)) * found.failure
    return RunProfile(epsilons, *(sides + extra))


def _directions(pairs: Pairs, epsilon: float) -> tuple[float, float]:
    """Bound δ(ε) in both directions; return the worse one twice where they are not told apart."""
    rung = 0.02 * _RUNG ** max(0, math.ceil(math.log(max(epsilon, 1e-9) / 0.02) / math.log(_RUNG)))
    found = _kept(pairs, rung)
    if found is None:
        worse = pld.delta_upper(pairs, epsilon).value
        return worse, worse
    return found.bounds.delta_above(epsilon), (found.reverse or found.bounds).delta_above(epsilon)


@lru_cache(maxsize=64)
def _kept(pairs: Pairs, epsilon: float) -> Curve | None:
    """Return the composed run, unless it is known in closed form."""
    rest, gauss = pld.split(pairs)
    if not rest or (gauss == 0 and len(rest) == 1 and rest[0][1] == 1):
        return None
    return curve(rest, gauss, epsilon, pld.ACCURACY / 4)


def _one(event: Event, method: str, relation: str) -> Canonical:
    return canonical((Repeated(event, 1),), method, relation)


def _protected(found: Canonical) -> Pairs:
    """Return the pairs of a run, or a pair without any protection if part of the run has none."""
    return _EVERYTHING if found.non_private else found.pairs


def _composed(method: str, relation: str, event: Composed) -> Pairs:
    return _protected(canonical(event.envelope, method, relation))


@lru_cache(maxsize=64)
def _selected_pld(relation: str, event: Selected) -> Pairs:
    """Return the table of the larger of both directions' profiles."""
    found = _one(event.run, "pld", relation)
    if not (found.pairs or found.numerical_delta or found.failure or found.non_private):
        return ()
    run = run_profile(found, _FLOOR / max(event.trials.mean, 1.0))
    if run is None:
        return _EVERYTHING
    sides = [
        SelectionProfile(side, event.trials)
        for side in ((run,) if run.symmetric else (run, run.reversed))
    ]
    last = min(max(side.epsilon(10 * _FLOOR) for side in sides), _LARGEST)
    epsilons = np.linspace(0, max(last, 1e-3), 2 * _POINTS)
    return _table(
        epsilons, np.array([max(side.delta(float(value)) for side in sides) for value in epsilons])
    )


def _selected_rdp(relation: str, event: Selected) -> Pairs:
    run = _one(event.run, "rdp", relation)
    if run.non_private or run.unprotected > 0:
        return _EVERYTHING
    spare = run.numerical_delta + run.failure  # a run that is a selection has such a mass itself
    return (
        ((of_distribution(SelectionCurve(run.pairs, event.trials, spare)), 1),)
        if run.pairs or spare > 0
        else ()
    )


def _selected_apart(method: str, relation: str, event: Selected) -> float:
    """Return the mass that is set apart from the best run before it has a Rényi curve.

    A table includes it already.
    """
    if method == "pld":
        return 0.0
    run = _one(event.run, method, relation)
    return min(1.0, event.trials.mean * (run.numerical_delta + run.failure) * (1 + 1e-12))


def _parallel(method: str, relation: str, event: Parallel) -> Pairs:
    """Return the costliest part; or, if a replaced record can move, the costliest two.

    Then one of them loses a record, and the other gains one.
    """
    stays = [_protected(_one(part, method, relation)) for part in event.parts]
    if relation != Relation.REPLACE_ONE or not event.moves:
        return _worst(method, stays)
    gone = [_protected(_one(part, method, Relation.ADD_OR_REMOVE_ONE)) for part in event.parts]
    return _worst(
        method, [*stays, *(_two_curves(gone) if method == "rdp" else [_two_largest(gone)])]
    )


def _worst(method: str, alternatives: list[Pairs]) -> Pairs:
    """Return pairs that dominate each of several runs.

    A run is dominated by another one that has all of its pairs.
    """
    kinds = sorted(
        {
            run
            for run in alternatives
            if not any(Counter(dict(run)) < Counter(dict(other)) for other in alternatives)
        }
    )
    if len(kinds) == 1 or _EVERYTHING in kinds:
        return kinds[0] if len(kinds) == 1 else _EVERYTHING
    if method == "rdp":
        return ((of_distribution(LargestCurve(tuple(kinds))), 1),)
    epsilons, profiles = _profiles(kinds)
    return _table(epsilons, profiles.max(axis=0))


def _two_curves(parts: list[Pairs]) -> list[Pairs]:
    """Compose every two of the parts: Rényi divergences in the worse direction add up."""
    twice = [part for part, often in Counter(parts).items() for _ in range(min(often, 2))]
    return [(*first, *second) for first, second in combinations(twice, 2)] if parts[1:] else parts


def _two_largest(parts: list[Pairs]) -> Pairs:
    """Return tables that dominate any two parts, of which one loses and one gains a record."""
    if _EVERYTHING in parts:
        return _EVERYTHING
    if len(set(parts)) == 1 and all(pair.symmetric for pair, _ in parts[0]):
        return tuple((pair, min(len(parts), 2) * times) for pair, times in parts[0])
    epsilons, profiles = _profiles(parts)
    largest = profiles.max(axis=0)
    place = int(np.argmax(profiles[:, 0]))
    if not np.array_equal(profiles[place], largest):  # none is the costliest at every ε
        return _table(epsilons, largest, 2 if len(parts) > 1 else 1)
    return _table(epsilons, largest) + (
        _table(epsilons, np.delete(profiles, place, axis=0).max(axis=0)) if len(parts) > 1 else ()
    )


def _profiles(runs: list[Pairs]) -> tuple[Array, Array]:
    """Bound δ(ε) of each run in the worse direction, on one grid."""
    last = max(min(pld.epsilon_upper(run, _FLOOR).value if run else 0.0, _LARGEST) for run in runs)
    epsilons = np.linspace(0, max(last, 1e-3), _POINTS // 2)
    return epsilons, np.array(
        [
            [
                pld.delta_upper(run, float(value), _COARSE).value if run else 0.0
                for value in epsilons
            ]
            for run in runs
        ]
    )


def _table(epsilons: Array, deltas: Array, times: int = 1) -> Pairs:
    """Return a symmetric table with at least this profile, of which some points may be useless.

    (ε′, δ′)-DP alone implies δ(ε) ≤ δ′ + (1 − δ′)·(e^ε′ − e^ε)/(1 + e^ε′) at every ε ≤ ε′ (Kairouz,
    Oh & Viswanath 2015, Theorem 2.1).
    """
    odds = np.exp(epsilons)
    implied = deltas + (1 - deltas) * np.maximum(odds - odds[:, None], 0.0) / (1 + odds)
    deltas = np.where(odds >= odds[:, None], implied, 1.0).min(axis=1) * (1 + 1e-12)
    table = Table.from_profile(epsilons, deltas)
    return (
        (of_distribution(Dominating(table.loss, table.mass, table.infinite, table.missing)), times),
    )


def _attained(method: str, relation: str, event: Event) -> Pairs:
    """Return what some data sets attain in a run, or in the part that seems to be the costliest."""
    if isinstance(event, Composed):
        return canonical(event.envelope, method, relation).attained
    assert isinstance(event, Parallel)
    parts = [_one(part, method, relation).attained for part in event.parts]
    return max(
        parts,
        key=lambda part: math.fsum(times * (pair.rate * pair.mu) ** 2 for pair, times in part),
    )


def _failures(method: str, relation: str, event: Event) -> float:
    """Return the probability of a failure in any run that one record can be in."""
    if isinstance(event, Composed):
        return canonical(event.envelope, method, relation).failure
    assert isinstance(event, Parallel)
    return math.fsum(sorted(_one(part, method, relation).failure for part in event.parts)[-2:])


_IN_A_ROW = "the pairs of the events, composed"
_ONE_PART = (
    "one record is in one part, or, if it is replaced and moves, in two: McSherry 2009; "
    "docs/proofs/scopes.md"
)
_BEST: dict[str, tuple[Callable[[str, Selected], Pairs], str]] = {
    "pld": (
        _selected_pld,
        "how far the place of an output in the order of scores shifts its loss: "
        "docs/proofs/private-selection.md, Theorem 1",
    ),
    "rdp": (
        _selected_rdp,
        "Papernot & Steinke 2022, Theorems 2 and 6; with what arithmetic adds: "
        "docs/proofs/private-selection.md, Theorem 4",
    ),
}

for _method in ("pld", "rdp"):
    for _relation in Relation:
        EVENT_RULES[_method, Composed, _relation] = EventRule(
            partial(_composed, _method, _relation),
            _IN_A_ROW,
            partial(_failures, _method, _relation),
            exact=False,
            attained=partial(_attained, _method, _relation),
        )
        EVENT_RULES[_method, Parallel, _relation] = EventRule(
            partial(_parallel, _method, _relation),
            _ONE_PART,
            partial(_failures, _method, _relation),
            exact=False,
            attained=partial(_attained, _method, _relation),
        )
        EVENT_RULES[_method, Selected, _relation] = EventRule(
            partial(_BEST[_method][0], _relation),
            _BEST[_method][1],
            partial(_selected_apart, _method, _relation),
            exact=False,
        )
