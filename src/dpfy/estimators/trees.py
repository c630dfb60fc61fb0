"""Private random trees: a public random forest whose leaves are counted privately."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.binning import Binning, Positions, cell_counts, counted_rows, declared_schema
from dpfy.estimators.declarations import (
    Floats,
    check_table,
    classes_ground,
    label_positions,
    resolve_classes,
)
from dpfy.estimators.descent import Descent, descend
from dpfy.estimators.fitting import Fit, Planned, computed_bound, gaussian
from dpfy.estimators.logistic import gradient_sum
from dpfy.estimators.scores import ScoringClassifier
from dpfy.ledger import Ledger
from dpfy.ledger.grant import Booking
from dpfy.tabular.schema import Schema

# Chosen by cross-validation on the training part of Adult; docs/how-to/estimators.md has the rule.
_BINS = 16
_CALIBRATION = 0.1  # the part of the budget that the weight of the trees' scores takes
_LARGEST_SCORE = 3.0  # the largest norm of a row's centred scores
_FIRST_WEIGHT = 1.5  # of scores before they are weighed: an average of trees is too cautious
_LEAST_RATE = 0.002


class RandomTrees(ScoringClassifier):
    """Private classifier of randomly grown trees, with two or more classes.

    Trees are grown without looking at any row: each inner node asks for a random column, and
    whether a number is below a random cut or a category in a random half. The counts of classes in
    the leaves of all trees are released as one Gaussian vector. The rate of a class in a node is
    shrunk towards that of its parent, the more the less of the node's count stands out of the
    noise; a row's score is the average over trees of the logarithms of its leaves' rates. A tenth
    of the budget weighs these scores by a private logistic regression, since averages of trees are
    too cautious.

    After a fit, ``forest_`` has the public trees, ``leaf_scores_`` the centred logarithms of rates
    by tree, leaf and class, and ``weights_`` the weights of a row's scores and of a constant.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one, of all counts and weights (docs/proofs/estimators.md). A row is
    in one leaf of each tree, and moves the counts by at most √``n_estimators``.

    *Assumes* that schema or bounds, and classes, are public.

    Args:
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names; numbers are cut at their knots.
        bounds: The least and the largest value of plain numbers, or "observed".
        classes: The labels, or "observed", which declares that those of ``y`` are public.
        n_estimators: The number of trees.
        depth: The depth of the trees, from 1 to 16; by default half of the binary logarithm of
            n·ε, and at most 10.
        random_state: The seed of the trees, which are public; never one of the noise.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    >>> x = np.random.default_rng(0).uniform(size=(4000, 2))
    >>> model = RandomTrees(1.0, bounds=(0, 1), classes=[False, True], random_state=0)
    >>> model.fit(x, x[:, 0] > 0.5).score(x, x[:, 0] > 0.5) > 0.9
    True

    Reference: Geurts, Ernst & Wehenkel 2006, Extremely randomized trees; Jagannathan,
    Pillaipakkamnatt & Wright 2012, A practical differentially private random decision tree
    classifier.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        bounds: Any = None,
        classes: Any = None,
        n_estimators: int = 100,
        depth: int | None = None,
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
        self.n_estimators = n_estimators
        self.depth = depth
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
        features = self._features()
        table, labels = check_table(self, features, X, y, reset=True)
        classes = resolve_classes(self.classes, labels)
        if len(classes) < 2:
            raise InvalidArgument(
                f"Expected two or more classes, got {len(classes)} class. Declare all labels that "
                "may occur, as classes=[0, 1]."
            )
        features.observe(table)
        forest = self._grow(declared_schema(features, self.n_features_in_), len(labels))

        @cache
        def rows() -> tuple[Positions, Positions]:
            known = counted_rows(features, table)
            positions = np.where(known, label_positions(labels, classes), -1)
            return forest.leaves(table), positions

        grounds = (features.ground, classes_ground(self.classes))
        plan, settings = self._plan(len(labels), len(classes))
        with self._begin(len(labels), plan, grounds) as fit:
            noisy = fit.release(
                fit.planned[0], lambda: leaf_counts(*rows(), forest.size, len(classes))
            )
            rates = forest.rates(noisy, float(fit.planned[0].mechanism.stddev))  # type: ignore[attr-defined]
            self.weights_ = _weigh(fit, settings, rates, rows, self._public_records(len(labels)))
        self.classes_ = classes
        self.depth_ = forest.depth
        self._public_map, self.forest_, self.leaf_scores_ = features, forest, rates
        return self._conclude(fit)

    def _grow(self, schema: Schema, rows: int) -> "Forest":
        """Return the public trees."""
        records, epsilon = self._public_records(rows), _validate.epsilon(self.epsilon)
        depth = min(10, max(1, round(math.log2(max(2.0, records * epsilon)) / 2)))
        if self.depth is not None:
            depth = _validate.count("depth", self.depth)
            _validate.real("depth", depth, 1, 16)
        trees = _validate.count("n_estimators", self.n_estimators)
        random = check_random_state(self.random_state)
        return Forest.grow(Binning(schema, _BINS, refine=False), trees, depth, random)

    def _plan(self, rows: int, classes: int) -> tuple[Callable[[float], list[Planned]], Descent]:
        """Return what is released, and the settings of the descent that weighs scores."""
        records = self._public_records(rows)
        share = self.epsilon * math.sqrt(_CALIBRATION)  # about the ε of this part alone
        settings = Descent.rule(records, share, curvature=0.25 if classes == 2 else 0.5)
        counts = computed_bound(math.sqrt(self.n_estimators), records, 0)
        gradients = computed_bound(settings.clip, records, classes + 1)

        def plan(noise: float) -> list[Planned]:
            return [
                gaussian("leaf_counts", counts, noise, share=1 - _CALIBRATION),
                gaussian("gradient", gradients, noise, settings.steps, _CALIBRATION),
            ]

        return plan, settings

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of rows: the log odds of the second of two classes, or one each.

        Args:
            X: The table.

        Returns:
            One number for each row, or one for each row and class.
        """
        check_is_fitted(self)
        table = check_table(self, self._public_map, X, "no_validation", reset=False)
        scores = score_vectors(self.leaf_scores_, self.forest_.leaves(table)) @ self.weights_.T
        return scores.ravel() if scores.shape[1] == 1 else scores


@dataclass(frozen=True, eq=False)
class Forest:
    """Complete binary trees over the bins of columns, grown without any row.

    Args:
        binning: The bins of the columns.
        columns: The column that each inner node of each tree asks for, level by level.
        right: Whether a node sends a bin of its column to the right.
        depth: The number of questions from the root to a leaf.
    """

    binning: Binning
    columns: Positions
    right: NDArray[np.bool_]
    depth: int

    @classmethod
    def grow(cls, binning: Binning, trees: int, depth: int, random: Any) -> Self:
        """Return random trees."""
        shape, sizes = (trees, 2**depth - 1), np.array(binning.sizes)
        columns = random.randint(len(sizes), size=shape)
        cuts = random.randint(1, sizes[columns])
        ordered = np.array([each is not None for each in binning.cuts])[columns]
        bins = np.arange(sizes.max())
        halves = random.randint(2, size=(*shape, len(bins))) == 1
        right = np.where(ordered[..., None], bins >= cuts[..., None], halves)
        return cls(binning, columns, right, depth)

    @property
    def size(self) -> int:
        """The number of leaves of a tree."""
        return 2**self.depth

    def leaves(self, table: Any) -> Positions:
        """Return the leaf of each row in each tree, tree by tree."""
        bins = self.binning.positions(table)
        rows = np.arange(bins.shape[1])
        found = np.zeros((len(self.columns), len(rows)), dtype=np.int64)
        for columns, right, node in zip(self.columns, self.right, found, strict=True):
            for _ in range(self.depth):
                node[:] = 2 * node + 1 + right[node, bins[columns[node], rows]]
        return found - (self.size - 1)

    def to_json(self) -> dict[str, Any]:
        """Return the trees as plain JSON values; sets of bins are bits in hexadecimal digits."""
        bits = np.packbits(self.right, axis=2)
        return {
            "cuts": [None if each is None else each.tolist() for each in self.binning.cuts],
            "columns": self.columns.tolist(),
            "right": [[node.tobytes().hex() for node in tree] for tree in bits],
        }

    def rates(self, counts: Floats, noise: float) -> Floats:
        """Return the logarithms of the leaves' rates of classes, centred over the classes.

        From the root on, a node's counts are added to the rates of its parent times the standard
        deviation of the counts' noise, which is that of all leaves below.

        Args:
            counts: Noisy counts by tree, leaf and class.
            noise: The standard deviation of their noise.

        Returns:
            One number for each tree, leaf and class.
        """
        trees, _, classes = counts.shape
        found = np.full((trees, 1, classes), 1 / classes)
        for level in range(self.depth + 1):
            below = counts.reshape(trees, 2**level, -1, classes).sum(axis=2)
            weight = noise * math.sqrt(2 ** (self.depth - level))
            parent = found if level == 0 else np.repeat(found, 2, axis=1)
            found = np.maximum(below, 0) + weight * parent
            found = found / found.sum(axis=2, keepdims=True)
        logarithms = np.log(np.maximum(found, _LEAST_RATE))
        return np.asarray(logarithms - logarithms.mean(axis=2, keepdims=True))


def leaf_counts(leaves: Positions, labels: Positions, size: int, classes: int) -> Floats:
    """Return the number of rows by tree, leaf and class; a row of label −1 is in none.

    A row adds 1 to one cell of each tree: an ℓ2 norm of √trees.
    """
    weights = (labels >= 0).astype(np.float64)
    known = np.maximum(labels, 0)
    counts = [cell_counts(each * classes + known, size * classes, weights) for each in leaves]
    return np.stack(counts).reshape(len(leaves), size, classes)


def score_vectors(rates: Floats, leaves: Positions) -> Floats:
    """Return the average scores of rows and a constant, as vectors of norm at most 1."""
    total = np.zeros((leaves.shape[1], rates.shape[2]))
    for rate, leaf in zip(rates, leaves, strict=True):
        total += rate[leaf]
    total /= len(rates)
    norms = np.sqrt(np.einsum("ij,ij->i", total, total))
    total /= np.maximum(norms, _LARGEST_SCORE)[:, None]
    return np.concatenate([total, np.ones((len(total), 1))], axis=1) / math.sqrt(2)


def _weigh(
    fit: Fit,
    settings: Descent,
    rates: Floats,
    rows: Callable[[], tuple[Positions, Positions]],
    records: int,
) -> Floats:
    """Return weights of scores, by noisy gradient descent from equal ones."""
    classes = rates.shape[2]
    start = np.eye(classes, classes + 1) * _FIRST_WEIGHT * math.sqrt(2) * _LARGEST_SCORE
    start = start[1:] - start[:1] if classes == 2 else start

    @cache
    def vectors() -> tuple[Floats, Positions]:
        leaves, labels = rows()
        return score_vectors(rates, leaves), labels

    def gradient(weights: Floats) -> Floats:
        total = fit.release(
            fit.planned[1], lambda: gradient_sum(weights, *vectors(), settings.clip)
        )
        return total / max(records, 1)

    return descend(gradient, start, settings)
