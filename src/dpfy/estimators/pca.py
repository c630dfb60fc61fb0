"""Private principal component analysis."""

import os
from functools import cache
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.base import PrivateEstimator
from dpfy.estimators.declarations import Floats, check_table
from dpfy.estimators.fitting import Planned, computed_bound, gaussian
from dpfy.estimators.moments import Moments, moment_sum, moments_bound
from dpfy.ledger import Ledger
from dpfy.ledger.grant import Booking
from dpfy.tabular.schema import Schema


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """Private principal components, from one release of the second moments of rows.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy of ``components_``, ``mean_``
    and ``explained_variance_`` for setting one row to zero, or for adding or removing one
    (docs/proofs/estimators.md, Theorem 2). What ``transform`` returns for private rows is not
    private.

    *Assumes* that schema, bounds or data norm are public.

    Args:
        n_components: The number of components, at most that of the columns; by default all.
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names; components are those of the encoded
            table.
        bounds: The least and the largest value of plain numbers, or "observed".
        data_norm: The largest ℓ2 norm of a row of plain numbers.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    Reference: Dwork, Talwar, Thakurta & Zhang 2014, Analyze Gauss, Algorithm 1.

    >>> x = np.random.default_rng(0).normal(size=(5000, 1)) @ [[2.0, 1.0]]
    >>> model = PCA(1, epsilon=1.0, data_norm=8.0, insecure_test_key=1).fit(x)
    >>> np.round(model.components_, 1)
    array([[0.9, 0.4]])
    """

    def __init__(
        self,
        n_components: int | None = None,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        bounds: Any = None,
        data_norm: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | Booking | None = None,
        relation: str = "zero_out",
        records: int | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.data_norm = data_norm
        self.ledger = ledger
        self.relation = relation
        self.records = records
        self.insecure_test_key = insecure_test_key

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the components privately.

        Args:
            X: The table, one row for each record.
            y: Not used.

        Returns:
            The fitted estimator.

        Raises:
            InvalidArgument: If a declaration is missing or out of its range.
            BudgetExhausted: If the ledger does not admit the fit; no row was read.
        """
        features = self._features()
        table = check_table(self, features, X, "no_validation", reset=True)
        features.observe(table)
        count, width = features.count(table), features.width(table)
        kept = width if self.n_components is None else self.n_components
        if _validate.count("n_components", kept) > width:
            raise InvalidArgument(
                f"Expected n_components={kept} to be at most the number of columns, {width}."
            )
        records = self._public_records(count)
        bound = computed_bound(moments_bound(target=False), records, width)

        @cache
        def rows() -> Floats:
            return features.rows(table)[0]

        def plan(noise: float) -> list[Planned]:
            return [gaussian("moments", bound, noise)]

        with self._begin(count, plan, (features.ground,)) as fit:
            noisy = fit.release(fit.planned[0], lambda: moment_sum(rows()))
        self._public_map = features
        self._set_components(Moments.of(noisy, records, width), records, kept)
        return self._conclude(fit)

    def _set_components(self, found: Moments, records: int, kept: int) -> None:
        """Keep the eigenvectors of the covariance, in units of the columns."""
        scale, shift = self._public_map.affine(len(found.mean))
        covariance = found.scatter / np.outer(scale, scale) / max(records - 1, 1)
        values, vectors = np.linalg.eigh(covariance)
        values, vectors = np.maximum(values[::-1], 0.0), vectors.T[::-1]
        largest = np.abs(vectors).argmax(axis=1)
        vectors = vectors * np.sign(vectors[np.arange(len(vectors)), largest])[:, None]
        self.mean_ = (found.mean - shift) / scale
        self.components_ = vectors[:kept]
        self.explained_variance_ = values[:kept]
        self.explained_variance_ratio_ = values[:kept] / max(float(values.sum()), 1e-300)
        self.n_components_ = kept

    @property
    def _n_features_out(self) -> int:
        """The number of components, by which scikit-learn names them."""
        return len(self.components_)

    def transform(self, X: Any) -> Floats:
        """Return the coordinates of rows along the components.

        Args:
            X: The table.

        Returns:
            One row for each row of the table, one column for each component.
        """
        check_is_fitted(self)
        table = check_table(self, self._public_map, X, "no_validation", reset=False)
        found: Floats = (self._public_map.clamped(table) - self.mean_) @ self.components_.T
        return found

    def inverse_transform(self, X: Any) -> Floats:
        """Return the rows that have given coordinates along the components.

        Args:
            X: One row for each row of the table, one column for each component.

        Returns:
            The rows, in units of the columns.
        """
        check_is_fitted(self)
        found: Floats = np.asarray(X, dtype=np.float64) @ self.components_ + self.mean_
        return found
