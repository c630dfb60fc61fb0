"""Private explainable boosting: an additive model of binned columns."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy.special import expit
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.binning import (
    Binning,
    Positions,
    cell_counts,
    counted_rows,
    declared_schema,
)
from dpfy.estimators.declarations import (
    Floats,
    check_table,
    classes_ground,
    label_positions,
    resolve_classes,
)
from dpfy.estimators.fitting import Fit, Planned, computed_bound, gaussian
from dpfy.estimators.plots import drawn_in_place
from dpfy.estimators.scores import ScoringClassifier
from dpfy.estimators.shapes import FeatureFunction, plot_functions
from dpfy.ledger import Ledger
from dpfy.ledger.grant import Booking
from dpfy.tabular.schema import Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Chosen by cross-validation on the training part of Adult, at ε of 0.1 and 1, and on 4000 of its
# rows; docs/how-to/estimators.md has the rule.
_FINE_BINS = 64
_HISTOGRAM = 0.2  # the part of the budget that counts take
_CLIP = 0.5  # the largest residual of a row
_SHRINKAGE = 3.0  # how much of the noise is added to the counts that sums are divided by
_TAIL = 0.5  # the part of the rounds, the last ones, whose functions are averaged


class ExplainableBoosting(ScoringClassifier):
    """Private explainable boosting machine for two classes: one function for each column.

    The numbers of rows in all declared bins are released once. Then each round goes through the
    columns: it groups the bins of a column at random into a few leaves, and releases the sum of the
    rows' residuals in each leaf as one Gaussian vector. A leaf adds its sum over its count to the
    function of the column. Counts are raised by three standard deviations of the sums' noise, so
    that noise alone moves no function far, whatever n and ε are. Functions are averaged over the
    last half of the rounds.

    After a fit, ``feature_functions_`` has the :class:`~dpfy.estimators.shapes.FeatureFunction` of
    each column by name, with the noise of each value; ``intercept_`` the log odds they are added
    to. They are the whole model.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one, of all functions and all that was released on the way
    (docs/proofs/estimators.md). One row moves the counts by at most √(columns + 1), and each of the
    rounds·columns vectors of sums by at most ½.

    *Assumes* that schema or bounds, and classes, are public.

    Args:
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names.
        bounds: The least and the largest value of plain numbers, or "observed".
        classes: The two labels, or "observed", which declares that those of ``y`` are public.
        rounds: The number of times that each column is boosted.
        learning_rate: What the mean residual of a leaf is multiplied by.
        leaves: The number of leaves of a column in a round, at least 2.
        max_bins: The largest number of bins of a column of numbers. Neighbouring bins with few
            rows are merged, by the noisy counts.
        random_state: The seed of the random leaves, which are public; never one of the noise.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    >>> x = np.random.default_rng(0).normal(size=(4000, 2))
    >>> model = ExplainableBoosting(1.0, bounds=(-3, 3), classes=[False, True])
    >>> model.fit(x, abs(x[:, 0]) > 1).score(x, abs(x[:, 0]) > 1) > 0.9
    True

    Reference: Nori, Caruana, Bu, Shen & Kulkarni 2021, Accuracy, interpretability, and differential
    privacy via explainable boosting.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        bounds: Any = None,
        classes: Any = None,
        rounds: int = 40,
        learning_rate: float = 1.0,
        leaves: int = 5,
        max_bins: int = 32,
        random_state: Any = None,
        ledger: Ledger | str | os.PathLike[str] | Booking | None = None,
        relation: str = "zero_out",
        records: int | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.classes = classes
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.leaves = leaves
        self.max_bins = max_bins
        self.random_state = random_state
        self.ledger = ledger
        self.relation = relation
        self.records = records
        self.insecure_test_key = insecure_test_key

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model privately.

        Args:
            X: The table, one row for each record.
            y: The labels; a row with a label outside of ``classes`` contributes nothing.

        Returns:
            The fitted estimator.

        Raises:
            InvalidArgument: If a declaration is missing or out of its range.
            BudgetExhausted: If the ledger does not admit the fit; no row was read.
        """
        self._check_parameters()
        features = self._features()
        table, labels = check_table(self, features, X, y, reset=True)
        classes = two_classes(resolve_classes(self.classes, labels))
        features.observe(table)
        binning = Binning(declared_schema(features, self.n_features_in_), _FINE_BINS)

        @cache
        def rows() -> ScoredRows:
            known = counted_rows(features, table)
            return ScoredRows.of(
                binning.positions(table), np.where(known, label_positions(labels, classes), -1)
            )

        columns, records = len(binning.sizes), self._public_records(len(labels))

        def plan(noise: float) -> list[Planned]:
            sums, counts = computed_bound(_CLIP, records, 0), math.sqrt(columns + 1)
            return [
                gaussian("histogram", computed_bound(counts, records, 0), noise, share=_HISTOGRAM),
                gaussian("residuals", sums, noise, self.rounds * columns, 1 - _HISTOGRAM),
            ]

        grounds = (features.ground, classes_ground(self.classes))
        with self._begin(len(labels), plan, grounds) as fit:
            noisy = fit.release(fit.planned[0], lambda: histogram(rows(), binning.sizes))
            model = _Additive.begin(noisy, binning, self.max_bins, _stddev(fit.planned[0]))
            self._boost(model, fit, rows)
        self.classes_ = classes
        self._public_map, self._binning, self._model = features, binning, model
        self.intercept_, self.feature_functions_ = model.functions(binning)
        self.n_iter_ = self.rounds
        return self._conclude(fit)

    def _check_parameters(self) -> None:
        _validate.count("rounds", self.rounds)
        _validate.positive("learning_rate", self.learning_rate)
        _validate.count("leaves", self.leaves, 2)
        _validate.count("max_bins", self.max_bins, 2)

    def _boost(self, model: "_Additive", fit: Fit, rows: Any) -> None:
        """Take all rounds; what is read of the rows is read by releases."""
        planned, random = fit.planned[1], check_random_state(self.random_state)
        noise = _stddev(planned)
        first = self.rounds - max(1, round(_TAIL * self.rounds))
        last = model.intercept, 0, np.zeros(model.sizes[0])
        for number in range(self.rounds):
            weight = (self.rounds - max(number, first)) / (self.rounds - first)
            for column, groups in enumerate(model.groups):
                ordered = model.ordered[column]
                leaves = random_leaves(len(model.values[column]), self.leaves, ordered, random)

                def compute(
                    column: int = column, cells: Positions = leaves[groups], move: Any = last
                ) -> Floats:
                    rows().move(*move)
                    return residual_sums(rows(), column, cells, _CLIP)

                sums = fit.release(planned, compute)
                counts = np.bincount(leaves, model.counts[column]) + _SHRINKAGE * noise
                gain: Floats = np.divide(self.learning_rate, counts)
                step = (sums * gain)[leaves]
                model.add(column, step, noise * gain[leaves], weight)
                last = 0.0, column, step[groups]

    def contributions(self, X: Any) -> Floats:
        """Return what each column adds to the log odds of each row, besides ``intercept_``.

        Args:
            X: The table.

        Returns:
            One row for each row of the table, one column for each column of it.
        """
        check_is_fitted(self)
        table = check_table(self, self._public_map, X, "no_validation", reset=False)
        positions = self._binning.positions(table)
        parts = [
            function.values[groups[cells]]
            for function, groups, cells in zip(
                self.feature_functions_.values(), self._model.groups, positions, strict=True
            )
        ]
        return np.stack(parts, axis=1)

    def decision_function(self, X: Any) -> Floats:
        """Return the log odds of the second class.

        Args:
            X: The table.

        Returns:
            One number for each row.
        """
        return self.contributions(X).sum(axis=1) + self.intercept_

    def plot(self, columns: Sequence[str] | None = None) -> "Figure":
        """Draw the functions of columns, with bands of two standard deviations of their noise.

        Args:
            columns: The names of the columns; by default the nine of largest importance.

        Returns:
            The figure of matplotlib; save it with its ``savefig``.

        Raises:
            InvalidArgument: If a name is none of the columns.
            MissingExtra: If matplotlib is not installed; it comes with the extra ``report``.
        """
        check_is_fitted(self)
        known = self.feature_functions_
        if columns is None:
            return plot_functions(sorted(known.values(), key=lambda each: -each.importance)[:9])
        lacking = [name for name in columns if name not in known]
        if lacking:
            raise InvalidArgument(
                f"Expected names of columns, got {lacking[0]!r}. There are {', '.join(known)}."
            )
        return plot_functions([known[name] for name in columns])

    def _drawn_in_place(self) -> str:
        return drawn_in_place(lambda path: self.plot().savefig(path))

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: there are two classes."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@dataclass
class ScoredRows:
    """Rows by bins, and their log odds under the functions so far: sensitive, and never released.

    Args:
        positions: The bin of each row in each column, column by column.
        targets: 1 for rows of the second class, else 0.
        weights: 1 for rows with one of the two labels, else 0.
        scores: The log odds of each row.
    """

    positions: Positions
    targets: Floats
    weights: Floats
    scores: Floats

    @classmethod
    def of(cls, positions: Positions, labels: Positions) -> Self:
        """Return rows with scores of zero."""
        weights = (labels >= 0).astype(np.float64)
        return cls(positions, (labels == 1).astype(np.float64), weights, np.zeros(len(labels)))

    def move(self, constant: float, column: int, table: Floats) -> None:
        """Add a released function of one column to the scores, row by row."""
        self.scores += constant + table[self.positions[column]]


@dataclass
class _Additive:
    """Functions of merged bins, as boosting builds them from released vectors alone."""

    intercept: float
    groups: list[Positions]  # the merged bin of each bin
    counts: list[Floats]
    ordered: list[bool]
    values: list[Floats] = field(default_factory=list)
    averages: list[Floats] = field(default_factory=list)
    variances: list[Floats] = field(default_factory=list)

    @classmethod
    def begin(cls, noisy: Floats, binning: Binning, max_bins: int, noise: float) -> Self:
        """Return functions that are zero, over bins merged by their noisy counts."""
        columns = np.split(noisy[1:], np.cumsum(binning.sizes)[:-1])
        total = max(float(np.mean([each.sum() for each in columns])), 1.0)
        rate = float(np.clip(noisy[0] / total, 0.01, 0.99))
        least = max(total / max_bins, _SHRINKAGE * noise)
        groups = [
            np.arange(len(each)) if cuts is None else merged(each, least)
            for each, cuts in zip(columns, binning.cuts, strict=True)
        ]
        counts = [
            np.maximum(np.bincount(group, each), 0.0)
            for group, each in zip(groups, columns, strict=True)
        ]
        zeros = [[np.zeros(len(each)) for each in counts] for _ in range(3)]
        ordered = [cuts is not None for cuts in binning.cuts]
        return cls(math.log(rate / (1 - rate)), groups, counts, ordered, *zeros)

    @property
    def sizes(self) -> list[int]:
        return [len(each) for each in self.groups]

    def add(self, column: int, step: Floats, spread: Floats, weight: float) -> None:
        """Add a step to a function, and the part of it that the average over rounds has."""
        self.values[column] += step
        self.averages[column] += weight * step
        self.variances[column] += (weight * spread) ** 2

    def functions(self, binning: Binning) -> tuple[float, dict[str, FeatureFunction]]:
        """Return the intercept, and functions whose mean over the rows is zero."""
        intercept, found = self.intercept, {}
        for number, column in enumerate(binning.schema):
            counts, groups, cuts = self.counts[number], self.groups[number], binning.cuts[number]
            mean = float(self.averages[number] @ counts / max(counts.sum(), 1.0))
            intercept += mean
            found[column.name] = FeatureFunction(
                column,
                None if cuts is None else cuts[np.diff(groups) > 0],
                self.averages[number] - mean,
                np.sqrt(self.variances[number]),
                counts,
            )
        return intercept, found


def histogram(rows: ScoredRows, sizes: Sequence[int]) -> Floats:
    """Return the number of rows of the second class, and that of rows in each bin.

    A row adds at most 1 to the first and to one bin of each column: an ℓ2 norm of √(columns + 1).
    """
    counts = [
        cell_counts(cells, size, rows.weights)
        for cells, size in zip(rows.positions, sizes, strict=True)
    ]
    return np.concatenate([[rows.targets.sum()], *counts])


def residual_sums(rows: ScoredRows, column: int, leaves: Positions, clip: float) -> Floats:
    """Return the sums of residuals, clipped to ±``clip``, of the rows in each leaf of a column.

    A row is in one leaf, and adds at most ``clip`` to its sum.
    """
    residuals = np.clip(rows.targets - expit(rows.scores), -clip, clip) * rows.weights
    return cell_counts(leaves[rows.positions[column]], int(leaves.max()) + 1, residuals)


def random_leaves(bins: int, leaves: int, ordered: bool, random: Any) -> Positions:
    """Return a random leaf for each bin: intervals of ordered bins, any sets of others."""
    if bins <= leaves:
        return np.arange(bins)
    if not ordered:
        return np.asarray(random.permutation(bins) % leaves)
    cuts = np.sort(random.choice(bins - 1, leaves - 1, replace=False))
    return np.searchsorted(cuts, np.arange(bins))


def merged(counts: Floats, least: float) -> Positions:
    """Return merged bins of neighbours, each with a count of at least ``least`` where it can be."""
    found, number, total = np.zeros(len(counts), dtype=np.int64), 0, 0.0
    for place, count in enumerate(counts):
        found[place] = number
        total += count
        if total >= least:
            number, total = number + 1, 0.0
    if total < least and number > 0:
        found[found == number] = number - 1
    return found


def two_classes(classes: Any) -> Any:
    """Return classes if there are two of them."""
    if len(classes) != 2:
        kind = "multiclass" if len(classes) > 2 else "one class"
        raise InvalidArgument(
            "Only binary classification is supported. The type of the target is "
            f"{kind}. Declare two labels, as classes=[0, 1]."
        )
    return classes


def _stddev(planned: Planned) -> float:
    return float(planned.mechanism.stddev)  # type: ignore[attr-defined]
