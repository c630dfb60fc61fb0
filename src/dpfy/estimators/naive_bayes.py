"""Private naive Bayes classifiers: noisy counts, sums and squares of each class, released once."""

import math
import os
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.base import PrivateEstimator
from dpfy.estimators.declarations import (
    Features,
    Floats,
    check_table,
    classes_ground,
    label_positions,
    resolve_classes,
)
from dpfy.estimators.fitting import Planned, computed_bound, gaussian, summed
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.grant import Booking
from dpfy.tabular.schema import Column, Schema
from dpfy.tabular.tables import as_floats, columns_of

_Positions = NDArray[np.int64]
_LEAST_VARIANCE = 1e-4  # of numbers from −1 to 1


class _NaiveBayes(ClassifierMixin, PrivateEstimator, ABC):  # type: ignore[misc]
    """Base of classifiers by the joint probabilities of classes and columns."""

    classes: Any

    @abstractmethod
    def _joint(self, X: Any) -> Floats:
        """Return the logarithms of the joint probabilities of rows and classes."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of each row.

        Args:
            X: The table.

        Returns:
            One label for each row.
        """
        joint = self._joint(X)
        return self.classes_[joint.argmax(axis=1)]

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of the probabilities of the classes.

        Args:
            X: The table.

        Returns:
            One row for each row of the table, one column for each class.
        """
        joint = self._joint(X)
        found: Floats = joint - logsumexp(joint, axis=1, keepdims=True)
        return found

    def predict_proba(self, X: Any) -> Floats:
        """Return the probabilities of the classes.

        Args:
            X: The table.

        Returns:
            One row for each row of the table, one column for each class.
        """
        return np.exp(self.predict_log_proba(X))

    def _fit_sums(
        self,
        labels: NDArray[Any],
        bound: float,
        rows: Any,
        ground: Ground,
    ) -> tuple[Floats, float]:
        """Return the noisy sums of rows by class, and the standard deviation of their noise."""
        classes = resolve_classes(self.classes, labels)
        records = self._public_records(len(labels))
        bound = computed_bound(bound, records, 0)

        def plan(noise: float) -> list[Planned]:
            return [gaussian("class_sums", bound, noise)]

        with self._begin(len(labels), plan, (ground, classes_ground(self.classes))) as fit:
            noisy = fit.release(
                fit.planned[0],
                lambda: class_sums(rows(), label_positions(labels, classes), len(classes)),
            )
        self.classes_ = classes
        self._conclude(fit)
        return noisy, bound * fit.noise_multiplier


class GaussianNB(_NaiveBayes):
    """Private naive Bayes with a normal distribution of each column in each class.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one. Counts, sums and squares of all classes are one Gaussian vector,
    to which a row adds at most √3 (docs/proofs/estimators.md, Theorem 2).

    *Assumes* that schema or bounds, and classes, are public.

    Args:
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names, all of them numbers.
        bounds: The least and the largest value of plain numbers, or "observed".
        classes: The labels, or "observed", which declares that those of ``y`` are public.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    >>> x = np.random.default_rng(0).normal(size=(4000, 2))
    >>> model = GaussianNB(1.0, bounds=(-3, 3), classes=[False, True])
    >>> model.fit(x, x[:, 0] > 0).score(x, x[:, 0] > 0) > 0.9
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        bounds: Any = None,
        classes: Any = None,
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
        if features.schema is not None:
            _require_numbers(features.schema)
        table, labels = check_table(self, features, X, y, reset=True)
        features.observe(table)

        @cache
        def rows() -> Floats:
            numbers, known = _unit_numbers(features, table)
            return normal_statistics(numbers) * known[:, None]

        noisy, noise = self._fit_sums(labels, math.sqrt(3), rows, features.ground)
        self._public_map = features
        self._set_normals(noisy, noise)
        return self

    def _set_normals(self, noisy: Floats, noise: float) -> None:
        """Keep priors, means and variances, in units of the columns."""
        width = (noisy.shape[1] - 1) // 2
        counts = np.maximum(noisy[:, :1], max(1.0, noise))
        mean = np.clip(noisy[:, 1 : 1 + width] * math.sqrt(width) / counts, -1, 1)
        square = (noisy[:, 1 + width :] * math.sqrt(width) / counts + 1) / 2
        # a variance below its own noise is not known to be so small
        least = np.maximum(_LEAST_VARIANCE, noise * math.sqrt(width) / counts)
        middle, half = _middle_and_half(self._public_map, width)
        self.class_prior_ = counts[:, 0] / counts.sum()
        self.theta_ = middle + half * mean
        self.var_ = half**2 * np.clip(square - mean**2, least, 1.0)

    def _joint(self, X: Any) -> Floats:
        check_is_fitted(self)
        table = check_table(self, self._public_map, X, "no_validation", reset=False)
        middle, half = _middle_and_half(self._public_map, self.theta_.shape[1])
        numbers = middle + half * _unit_numbers(self._public_map, table)[0]
        scores = (numbers[:, None, :] - self.theta_) ** 2 / self.var_ + np.log(self.var_)
        found: Floats = np.log(self.class_prior_) - scores.sum(axis=2) / 2
        return found


class CategoricalNB(_NaiveBayes):
    """Private naive Bayes with the share of each category in each class.

    Under a schema, columns of numbers are cut at their knots.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one. The counts of all categories in all classes are one Gaussian
    vector, to which a row adds at most the root of the number of columns
    (docs/proofs/estimators.md, Theorem 2).

    *Assumes* that schema or number of categories, and classes, are public.

    Args:
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names.
        n_categories: The number of categories of each column of a plain table, whose cells
            count them from 0; anything else is "other".
        classes: The labels, or "observed", which declares that those of ``y`` are public.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    >>> x = np.random.default_rng(0).integers(0, 3, size=(4000, 2))
    >>> model = CategoricalNB(1.0, n_categories=3, classes=[False, True])
    >>> model.fit(x, x[:, 0] > 1).score(x, x[:, 0] > 1) > 0.9
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        n_categories: int | None = None,
        classes: Any = None,
        ledger: Ledger | str | os.PathLike[str] | Booking | None = None,
        relation: str = "zero_out",
        records: int | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.n_categories = n_categories
        self.classes = classes
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
        features = self._declared_features()
        table, labels = check_table(self, features, X, y, reset=True)
        self._sizes = self._category_counts()

        @cache
        def rows() -> Floats:
            return category_statistics(self._codes(table), self._sizes)

        ground = Ground(
            Kind.DECLARATION, "features", "What columns may hold", "Categories are declared."
        )
        noisy, noise = self._fit_sums(labels, math.sqrt(len(self._sizes)), rows, ground)
        self._set_shares(noisy, noise)
        return self

    def _declared_features(self) -> Features | None:
        """Return the map of a schema, or None for a plain table."""
        if (self.schema is None) == (self.n_categories is None):
            raise InvalidArgument(
                "Expected either schema= or n_categories=. Declare the columns with "
                "schema=Schema.read('data.toml'), or the number of categories that the cells of a "
                "plain table count from 0, as n_categories=4."
            )
        return None if self.schema is None else Features(schema=self.schema)

    def _category_counts(self) -> tuple[int, ...]:
        """Return the number of categories of each column, with "other"."""
        if self.schema is not None:
            return tuple(_size(each) for each in self.schema)
        return (_validate.count("n_categories", self.n_categories) + 1,) * self.n_features_in_

    def _codes(self, table: Any) -> _Positions:
        """Return the positions of the categories of rows."""
        if self.schema is not None:
            columns = columns_of(table, self.schema)
            return np.stack([_cut(columns[each.name], each) for each in self.schema], axis=1)
        cells, most = np.floor(as_floats(np.asarray(table))), self._sizes[0] - 1
        return np.where((cells >= 0) & (cells < most), cells, most).astype(np.int64)

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: cells of a plain table are numbers of categories."""
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.classifier_tags.poor_score = True  # on numbers that are no categories, such as blobs
        return tags

    def _set_shares(self, noisy: Floats, noise: float) -> None:
        """Keep the share of each category in each class, and the share of each class."""
        counts = np.maximum(noisy, 0.0)
        # every column counts each row of a class once, so their mean has the least noise
        totals = np.maximum(noisy.sum(axis=1) / len(self._sizes), max(1.0, noise))
        self.class_prior_ = totals / totals.sum()
        columns = np.split(counts, np.cumsum(self._sizes)[:-1], axis=1)
        shares = [(each + 1) / (each + 1).sum(axis=1, keepdims=True) for each in columns]
        self.category_log_prob_ = [np.log(each) for each in shares]

    def _joint(self, X: Any) -> Floats:
        check_is_fitted(self)
        table = check_table(self, self._declared_features(), X, "no_validation", reset=False)
        codes = self._codes(table)
        shares = enumerate(self.category_log_prob_)
        parts = [share.T[codes[:, number]] for number, share in shares]
        found: Floats = np.log(self.class_prior_) + np.sum(parts, axis=0)
        return found


def class_sums(statistics: Floats, positions: _Positions, classes: int) -> Floats:
    """Return the sums of rows by class; a row whose position is −1 is in none."""

    def block(rows: Floats, labels: _Positions) -> Floats:
        members = (labels[:, None] == np.arange(classes)).astype(np.float64)
        return np.asarray(members.T @ rows)

    total: Floats = summed(block, statistics, positions)
    return total


def normal_statistics(numbers: Floats) -> Floats:
    """Return 1, u/√d and (2u² − 1)/√d of rows u from −1 to 1, with a norm of at most √3.

    2u² − 1 has twice the signal of u² and the same bound.
    """
    width = math.sqrt(max(numbers.shape[1], 1))
    ones = np.ones((len(numbers), 1))
    return np.concatenate([ones, numbers / width, (2 * numbers**2 - 1) / width], axis=1)


def category_statistics(codes: _Positions, sizes: tuple[int, ...]) -> Floats:
    """Return one 1 for each column of a row, at its category, with a norm of √columns."""
    return np.concatenate(
        [np.eye(size)[codes[:, number]] for number, size in enumerate(sizes)], axis=1
    )


def _unit_numbers(features: Features, table: Any) -> tuple[Floats, NDArray[np.bool_]]:
    """Return numbers from −1 to 1, and which rows have no other cells; the others are zero."""
    if features.schema is not None:
        columns = columns_of(table, features.schema)
        numbers = np.stack([columns[each.name] for each in features.schema], axis=1)
        known = np.ones(len(numbers), dtype=bool)
    else:
        known = np.asarray(np.isfinite(as_floats(np.asarray(table))).all(axis=1))
        numbers = np.where(known[:, None], features.clamped(table), 0.0)
    middle, half = _middle_and_half(features, numbers.shape[1])
    return np.clip((numbers - middle) / half, -1, 1) * known[:, None], known


def _middle_and_half(features: Features, width: int) -> tuple[Floats, Floats]:
    """Return the middle of each column's bounds, and half of their distance."""
    if features.schema is not None:
        low = np.array([each.low for each in features.schema])
        high = np.array([each.high for each in features.schema])
    else:
        low, high = features.ends(width)
    return low / 2 + high / 2, high / 2 - low / 2


def _require_numbers(schema: Schema) -> None:
    for each in schema:
        if not each.is_number:
            raise InvalidArgument(
                f"GaussianNB takes columns of numbers, and {each.name!r} has categories. Use "
                f"CategoricalNB, or leave it out with schema.without({each.name!r})."
            )


def _size(column: Column) -> int:
    return len(column.knots) + 1 if column.categories is None else len(column.categories) + 1


def _cut(values: NDArray[Any], column: Column) -> _Positions:
    """Return categories as they are, and the interval between knots that a number is in."""
    if column.categories is not None:
        return values
    return np.searchsorted(np.array(column.knots), values, side="right")
