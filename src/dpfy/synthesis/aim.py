"""AIM: in each round the marginal is released that the model so far misses most, under a filter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpfy.accounting.filters import ZcdpFilter
from dpfy.synthesis.cells import Pair
from dpfy.synthesis.estimate import megabytes
from dpfy.synthesis.measurements import STEP
from dpfy.synthesis.tree_model import TreeModel, all_pairs
from dpfy.synthesis.work import Work, marginals
from dpfy.types import Budget

ROUNDS_PER_COLUMN = 16
CHOICE = 0.1
"""The share of each round that its choice takes."""

ITERATIONS, LAST_ITERATIONS = 1000, 2500
MEGABYTES = 1.0
"""The most that a model may take."""

_BIAS = math.sqrt(2 / math.pi)  # of |noise|, in standard deviations
_LEFT = 1 - 1e-9  # of the rest of the budget, for the rounding of what its last round costs
_LARGEST_SCORE = 2**52  # steps; scores are whole numbers that float64 holds


@dataclass(frozen=True)
class Aim:
    """What AIM releases: rounds that are chosen from earlier ones, under a filter.

    First the counts of every column. Then rounds of a private choice among all columns and pairs of
    columns that fit into a model of limited size, and the release of the marginal that is chosen.
    The score of a marginal is its weight times its distance from what the model expects, less what
    the noise of its release would add. A round that told little halves the noise of those after it,
    and the last one takes what is left.

    *Formal guarantee*: a :class:`~dpfy.accounting.filters.ZcdpFilter` admits every release, so that
    the whole is ρ-zCDP, however rounds were chosen (docs/proofs/synthesis.md, Theorem 2).

    Args:
        columns: The number of columns, at least 1.
        filter: The filter.

    Reference: McKenna, Mullins, Sheldon & Miklau 2022 (AIM), Algorithm 4.
    """

    columns: int
    filter: ZcdpFilter

    @classmethod
    def calibrated(cls, columns: int, budget: Budget) -> "Aim":
        """Return the releases under the largest filter that fits into a budget.

        Args:
            columns: The number of columns.
            budget: The ε and δ of all releases.

        Returns:
            The releases.
        """
        return cls(columns, ZcdpFilter.within(budget.epsilon, budget.delta))

    @property
    def weights(self) -> dict[Pair, int]:
        """The candidates, each with its weight: how many columns it shares with all pairs."""
        pairs = all_pairs(self.columns)
        ones: list[Pair] = [(each,) for each in range(self.columns)]
        return {
            each: max(sum(len({*each} & {*pair}) for pair in pairs), 1) for each in (*ones, *pairs)
        }

    def run(self, work: Work) -> TreeModel:
        """Make the releases, and return the distribution that is estimated from them.

        Args:
            work: The table, of which nothing was released.

        Returns:
            The distribution, of groups of cells.
        """
        noise = _Noise.of(self.filter.rho / (ROUNDS_PER_COLUMN * self.columns))
        one_way = marginals("one-way marginals", self.columns, noise.stddev)
        # much noise: most cells would not stand out, and later rounds could not tell them apart
        work.measure_columns(one_way, merge=False)
        spent, last = self.columns * 0.5 / noise.stddev**2, False
        model = work.estimator.estimate(work.observed(), ITERATIONS)
        while not last:
            work.tell("measure marginals", spent / self.filter.rho, 1.0)
            left = (self.filter.rho - spent) * _LEFT
            if left < 2 * noise.cost:
                noise, last = _Noise.of(left), True
            spent += noise.cost
            chosen = self._choose(work, spent / self.filter.rho, model, noise)
            work.measure([chosen], marginals("marginal", 1, noise.stddev), adaptive=True)
            before, iterations = model, LAST_ITERATIONS if last else ITERATIONS
            model = work.estimator.estimate(work.observed(), iterations)
            moved = abs(model.expected(chosen) - before.expected(chosen)).sum() * work.total
            if moved <= noise.bias(model.expected(chosen).size):
                noise = _Noise(noise.stddev / 2, noise.epsilon * 2)
        work.tell("measure marginals", 1.0, 1.0)
        return model

    def _fitting(self, work: Work, share: float) -> dict[Pair, int]:
        """Return the candidates with which the model stays within its share of the largest size."""
        known = [each.columns for each in work.measured]
        return {
            each: weight
            for each, weight in self.weights.items()
            if any({*each} <= {*other} for other in known)
            or megabytes(work.sizes, [*known, each]) <= MEGABYTES * share
        }

    def _choose(self, work: Work, share: float, model: TreeModel, noise: "_Noise") -> Pair:
        """Choose the marginal that the model misses most, privately."""
        from dpfy.mechanisms.one_shot import ExponentialMechanism

        weights = self._fitting(work, share)
        candidates, most = list(weights), max(weights.values())
        choice = ExponentialMechanism.with_epsilon(
            noise.epsilon, float(most), name="marginal to release"
        )
        sizes = [math.prod(work.sizes[k] for k in each) for each in candidates]
        biases = [round(noise.bias(each) / STEP) for each in sizes]

        def scores() -> list[float]:
            return weighed(work.distances(candidates, model), biases, list(weights.values()))

        return candidates[work.releases.make(choice, scores, adaptive=True)]


@dataclass(frozen=True)
class _Noise:
    """The noise of a round: of its marginal, and of the choice before it.

    Args:
        stddev: The standard deviation of the noise of each count.
        epsilon: The ε of the choice.
    """

    stddev: float
    epsilon: float

    @classmethod
    def of(cls, rho: float) -> "_Noise":
        """Return the noise of a round that costs ρ."""
        return cls(math.sqrt(0.5 / ((1 - CHOICE) * rho)), math.sqrt(8 * CHOICE * rho))

    @property
    def cost(self) -> float:
        """The zCDP of the round."""
        return 0.5 / self.stddev**2 + self.epsilon**2 / 8

    def bias(self, cells: int) -> float:
        """Return the ℓ1 norm that the noise of a marginal is expected to have."""
        return _BIAS * self.stddev * cells


def weighed(distances: Sequence[int], biases: Sequence[int], weights: Sequence[int]) -> list[float]:
    """Return the scores of marginals, from whole numbers alone.

    *Formal guarantee*: where a row moves each distance by at most 1/STEP steps, it moves the score
    of a marginal of weight w by at most w, as computed: steps are whole numbers, cut at ±2⁵², which
    brings no two further apart, and float64 holds them exactly.

    Args:
        distances: The distances of counts from the model, in steps.
        biases: What the noise of a release would add to each, in steps.
        weights: The weights.

    Returns:
        The scores.

    >>> weighed([3072, 1024], [1024, 1024], [2, 5])
    [4.0, 0.0]
    """
    return [
        max(min(weight * (far - bias), _LARGEST_SCORE), -_LARGEST_SCORE) * STEP
        for far, bias, weight in zip(distances, biases, weights, strict=True)
    ]
