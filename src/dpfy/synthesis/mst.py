"""MST: one-way marginals, a tree of two-way marginals by private choices, all from a fixed list."""

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dpfy.accounting.calibrate import calibrate_envelope
from dpfy.ledger.events import Envelope, Repeated
from dpfy.synthesis.cells import Pair
from dpfy.synthesis.measurements import STEP
from dpfy.synthesis.releases import RELATION
from dpfy.synthesis.tree_model import TreeModel, all_pairs, independent
from dpfy.synthesis.work import Work, marginals
from dpfy.types import Budget

if TYPE_CHECKING:
    from dpfy.mechanisms.one_shot import ExponentialMechanism, Gaussian

ONE_WAY, CHOICE, TREE, TARGET = 0.3, 0.1, 0.6, 0.6
"""Shares of the budget: of columns, of choices, of the tree, and of pairs with a target column.

They are made to add up to 1 over the parts that there are.
"""
ITERATIONS = 2000


@dataclass(frozen=True)
class Mst:
    """What MST releases, from a list that is fixed in advance.

    First the counts of every column; with a target, then its two-way marginals with all others;
    then as many private choices as the tree over the other columns has edges, each of the pair that
    is furthest from what its two columns alone tell, among those that join two parts of the tree;
    then the two-way marginals of the edges.

    *Formal guarantee*: at noise multiplier z, vectors of a share s cost one Gaussian sum of
    multiplier z/√s each, and each of m choices of a share s is ε₀-differentially private and
    ε₀²/8-zCDP with ε₀ = 2·√(s/m)/z. PLD composes the list (docs/proofs/synthesis.md, Theorem 1).

    Args:
        columns: The number of columns, at least 1.
        target: The number of the target column, or None.
        noise_multiplier: The noise multiplier z of all releases together, above 0.

    Reference: McKenna, Miklau & Sheldon 2021 (MST), which has shares of a third, composes by zCDP,
    and knows no target.
    """

    columns: int
    target: int | None
    noise_multiplier: float

    @classmethod
    def calibrated(cls, columns: int, target: int | None, budget: Budget) -> "Mst":
        """Return the releases with the least noise that fits into a budget.

        Args:
            columns: The number of columns.
            target: The number of the target column, or None.
            budget: The ε and δ of all releases.

        Returns:
            The releases.
        """
        noise = calibrate_envelope(
            lambda noise: cls(columns, target, noise).envelope,
            epsilon=budget.epsilon,
            delta=budget.delta,
            relation=RELATION,
        )
        return cls(columns, target, noise)

    @property
    def edges(self) -> int:
        """The number of edges of the tree over all columns but the target."""
        return self.columns - (self.target is not None) - 1

    @property
    def choices(self) -> int:
        """The number of choices: one for each edge, unless there is but one pair."""
        return self.edges if self.edges > 1 else 0

    @property
    def one_way(self) -> "Gaussian":
        """The release of the counts of every column."""
        return self._vector("one-way marginals", self.columns, ONE_WAY)

    @property
    def with_target(self) -> "Gaussian | None":
        """The release of the pairs with the target, if there are any."""
        if self.target is None or self.columns < 2:
            return None
        return self._vector("marginals with the target", self.columns - 1, TARGET)

    @property
    def tree(self) -> "Gaussian | None":
        """The release of the pairs of the tree, if there are any."""
        return self._vector("marginals of the tree", self.edges, TREE) if self.edges > 0 else None

    @property
    def choice(self) -> "ExponentialMechanism | None":
        """Each of the choices, if there are any."""
        from dpfy.mechanisms.one_shot import ExponentialMechanism

        if not self.choices:
            return None
        share = CHOICE / self._parts / self.choices
        epsilon = 2 * math.sqrt(share) / self.noise_multiplier
        return ExponentialMechanism.with_epsilon(epsilon, sensitivity=1.0, name="edge of the tree")

    @property
    def envelope(self) -> Envelope:
        """The list of events, in their order."""
        planned: list[tuple[Any, int]] = [
            (self.one_way, 1),
            (self.with_target, 1),
            (self.choice, self.choices),
            (self.tree, 1),
        ]
        return tuple(Repeated(each.event, times) for each, times in planned if each is not None)

    @property
    def _parts(self) -> float:
        return (
            ONE_WAY
            + TARGET * (self.target is not None and self.columns > 1)
            + CHOICE * (self.choices > 0)
            + TREE * (self.edges > 0)
        )

    def _vector(self, name: str, count: int, share: float) -> "Gaussian":
        stddev = self.noise_multiplier * math.sqrt(count * self._parts / share)
        return marginals(name, count, stddev)

    def run(self, work: Work) -> TreeModel:
        """Make the releases, and return the distribution that is estimated from them.

        Args:
            work: The table, of which nothing was released.

        Returns:
            The distribution, of groups of cells.
        """
        work.measure_columns(self.one_way, merge=True)
        if self.with_target is not None:
            pairs = [
                _pair(each, self.target) for each in range(self.columns) if each != self.target
            ]
            work.measure(pairs, self.with_target)
        edges = self._edges(work)
        if self.tree is not None:
            work.measure(edges, self.tree)
        work.tell("estimate", 0, 1)
        model = work.estimator.estimate(work.observed(), ITERATIONS)
        work.tell("estimate", 1, 1)
        return model

    def _edges(self, work: Work) -> list[Pair]:
        """Return the edges of the tree, each chosen among the pairs that join two parts of it."""
        candidates = [each for each in all_pairs(self.columns) if self.target not in each]
        choice = self.choice
        if choice is None:
            return candidates
        alone = independent([each.noisy for each in work.observed()[: self.columns]])
        scores: dict[Pair, float] = {}

        def read(pairs: list[Pair]) -> list[float]:
            if not scores:
                found = work.distances(candidates, alone)
                scores.update(zip(candidates, (each * STEP for each in found), strict=True))
            return [scores[each] for each in pairs]

        part = list(range(self.columns))
        edges: list[Pair] = []
        for number in range(self.choices):
            work.tell("choose pairs", number, self.choices)
            joining = [each for each in candidates if part[each[0]] != part[each[1]]]
            first, second = joining[work.releases.make(choice, partial(read, joining))]
            edges.append((first, second))
            part = [part[first] if each == part[second] else each for each in part]
        work.tell("choose pairs", self.choices, self.choices)
        return edges


def _pair(one: int, other: int | None) -> Pair:
    assert other is not None
    return (min(one, other), max(one, other))
