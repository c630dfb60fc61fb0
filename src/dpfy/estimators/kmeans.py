"""Private k-means clustering."""

import math
import os
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.base import PrivateEstimator
from dpfy.estimators.binning import Positions, counted_rows, declared_schema
from dpfy.estimators.clusters import (
    Clusters,
    cluster_bound,
    cluster_sums,
    grid_centres,
    grid_counts,
    grid_width,
    nearest,
    packed,
    public_radius,
)
from dpfy.estimators.declarations import Floats, check_table
from dpfy.estimators.fitting import Fit, Planned, computed_bound, gaussian, summed
from dpfy.estimators.naive_bayes import normal_statistics
from dpfy.ledger import Ledger
from dpfy.ledger.grant import Booking
from dpfy.tabular.schema import Schema
from dpfy.tabular.tables import columns_of

METHODS = ("lloyd", "synopsis", "hybrid")
_MOST_GRID_COLUMNS = 3
_MOMENTS, _SYNOPSIS = 0.1, 0.5  # parts of the budget, where Lloyd's iterations follow
_TAIL = 0.5  # the part of the iterations, the last ones, whose centres are averaged
_LEAST_SPREAD = 0.05  # of a column, in half-widths of its bounds

_Rows = Callable[[], tuple[Floats, Floats]]


class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """Private k-means: centres of clusters of bounded numbers.

    Each of Lloyd's iterations releases, for all clusters together, one Gaussian vector: the sums of
    the rows' shifts from their centres, cut off at a radius, their number, and their distances. A
    radius of about one and a half mean distances, known from the iteration before, needs much less
    noise than one that covers the whole box. In the first half of the iterations, two clusters that
    are near each other may be merged to split a wide one; centres are averaged over the last half.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one, of ``cluster_centers_`` and all that was released on the way
    (docs/proofs/estimators.md). One row moves the sums of an iteration by at most √1.5, the first
    moments by at most √3, and the counts of a grid by at most 1. The clusters of the rows
    themselves are no release: there is no ``labels_``, and to publish ``predict(X)`` for the rows
    of the fit would reveal them.

    *Assumes* that schema or bounds are public.

    Args:
        n_clusters: The number of clusters.
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names, all of them numbers.
        bounds: The least and the largest value of plain numbers, or "observed".
        init: The first centres of ``lloyd``: an array of public ones, or "packing", those of a
            normal distribution with the mean and spread of the rows, which a tenth of the budget
            releases.
        iterations: The number of iterations of ``lloyd`` and ``hybrid``; by default a tenth of n·ε
            over the number of clusters, but from 5 to 20.
        method: "lloyd"; "synopsis", which clusters the noisy counts of a grid, for up to three
            columns; or "hybrid", which spends one half on each of them.
        random_state: The seed of public choices, such as directions; never one of the noise.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    >>> x = np.random.default_rng(0).normal(size=(4000, 2)) / 10
    >>> x[:, 0] += np.repeat([-1, 1], 2000)
    >>> model = KMeans(2, bounds=(-2, 2)).fit(x)
    >>> np.sort(model.cluster_centers_[:, 0]).round()
    array([-1.,  1.])

    Reference: Blum, Dwork, McSherry & Nissim 2005, Practical privacy: the SuLQ framework; Su, Cao,
    Li, Bertino & Jin 2016, Differentially private k-means clustering.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        bounds: Any = None,
        init: Any = "packing",
        iterations: int | None = None,
        method: str = "lloyd",
        random_state: Any = None,
        ledger: Ledger | str | os.PathLike[str] | Booking | None = None,
        relation: str = "zero_out",
        records: int | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.init = init
        self.iterations = iterations
        self.method = method
        self.random_state = random_state
        self.ledger = ledger
        self.relation = relation
        self.records = records
        self.insecure_test_key = insecure_test_key

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the centres privately.

        Args:
            X: The table, one row for each record. Under bounds, a row with a cell that is no
                finite number contributes nothing.
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
        schema = _of_numbers(declared_schema(features, self.n_features_in_))
        self._check_parameters(len(schema))
        count = features.count(table)
        self.n_iter_ = self._rule(self._public_records(count))
        self._public_map, self._schema = features, schema

        @cache
        def rows() -> tuple[Floats, Floats]:
            weights = counted_rows(features, table).astype(np.float64)
            return self._centred(table), weights

        with self._begin(count, self._plan(count, len(schema)), (features.ground,)) as fit:
            centres = self._place(fit, rows, check_random_state(self.random_state))
        self.cluster_centers_ = centres + self._box()[0]
        return self._conclude(fit)

    def _rule(self, records: int) -> int:
        """Return the number of iterations, by a public rule where none is given."""
        if self.method == "synopsis":
            return 0
        if self.iterations is not None:
            return self.iterations
        epsilon = _validate.epsilon(self.epsilon)
        return int(np.clip(round(records * epsilon / (10 * self.n_clusters)), 5, 20))

    def _check_parameters(self, columns: int) -> None:
        clusters = _validate.count("n_clusters", self.n_clusters)
        if self.iterations is not None:
            _validate.count("iterations", self.iterations)
        _validate.choice("method", self.method, METHODS)
        if self.method != "lloyd" and columns > _MOST_GRID_COLUMNS:
            raise InvalidArgument(
                f"Expected at most {_MOST_GRID_COLUMNS} columns for method={self.method!r}, got "
                f"{columns}: a grid of more has more cells than rows. Use method='lloyd'."
            )
        if not isinstance(self.init, str):
            given = np.asarray(self.init, dtype=np.float64)
            right = given.shape == (clusters, columns) and bool(np.isfinite(given).all())
            if self.method != "lloyd" or not right:
                raise InvalidArgument(
                    f"Expected init to be finite numbers of the shape {(clusters, columns)}, for "
                    f"method='lloyd', got the shape {given.shape} for method={self.method!r}. Use "
                    "init='packing' if no centres are public."
                )
        elif self.init != "packing":
            raise InvalidArgument(
                f"Expected init={self.init!r} to be 'packing' or an array of public centres."
            )

    def _plan(self, rows: int, columns: int) -> Callable[[float], list[Planned]]:
        """Return what is released: how the iterations begin, and the iterations."""
        records = self._public_records(rows)
        moments, sums, one = (
            computed_bound(each, records, columns) for each in (math.sqrt(3), cluster_bound(), 1.0)
        )

        def plan(noise: float) -> list[Planned]:
            begin, share = [], 1.0
            if self.method == "synopsis":
                return [gaussian("grid", one, noise)]
            if self.method == "hybrid":
                begin, share = [gaussian("grid", one, noise, share=_SYNOPSIS)], 1 - _SYNOPSIS
            elif isinstance(self.init, str):
                begin, share = [gaussian("moments", moments, noise, share=_MOMENTS)], 1 - _MOMENTS
            return [*begin, gaussian("clusters", sums, noise, self.n_iter_, share)]

        return plan

    def _place(self, fit: Fit, rows: _Rows, random: Any) -> Floats:
        """Return the centres, from the middle of the box."""
        middle, half = self._box()
        if self.method == "lloyd" and isinstance(self.init, str):
            start = _packed_start(fit, rows, self.n_clusters, half, random)
            return self._iterate(fit, start, rows, True, random)
        if self.method == "lloyd":
            centres = np.asarray(self.init, dtype=np.float64) - middle
        else:
            centres = self._synopsis(fit, rows, half, random)
        if self.method == "synopsis":
            return centres
        start = Clusters(centres, public_radius(half, len(centres)), half)
        return self._iterate(fit, start, rows, self.method == "hybrid", random)

    def _synopsis(self, fit: Fit, rows: _Rows, half: Floats, random: Any) -> Floats:
        """Return the centres of a grid with noisy counts."""
        width = grid_width(fit.declared.records, fit.declared.epsilon, len(half), self.n_clusters)
        noisy = fit.release(fit.planned[0], lambda: grid_counts(*rows(), half, width))
        noise = _stddev(fit.planned[0])
        return grid_centres(noisy, noise, half, width, self.n_clusters, random)

    def _iterate(
        self, fit: Fit, start: Clusters, rows: _Rows, rearrange: bool, random: Any
    ) -> Floats:
        """Return the average of the last centres of Lloyd's iterations."""
        planned, found, total = fit.planned[-1], start, np.zeros_like(start.centres)
        first = self.n_iter_ - max(1, round(_TAIL * self.n_iter_))
        for number in range(self.n_iter_):
            centres, radius = found.centres, found.radius

            def compute(centres: Floats = centres, radius: float = radius) -> Floats:
                return cluster_sums(*rows(), centres, radius)

            noisy = fit.release(planned, compute)
            found = found.moved(noisy, _stddev(planned), rearrange and number < first, random)
            total = total + found.centres if number >= first else total
        return total / (self.n_iter_ - first)

    def _box(self) -> tuple[Floats, Floats]:
        """Return the middle of the bounds, and half of their width."""
        low = np.array([each.low for each in self._schema])
        high = np.array([each.high for each in self._schema])
        return low / 2 + high / 2, high / 2 - low / 2

    def _centred(self, table: Any) -> Floats:
        """Return rows clamped to their bounds, from the middle of these."""
        columns = columns_of(table, self._schema)
        numbers = np.stack([columns[each.name] for each in self._schema], axis=1)
        middle, half = self._box()
        return np.clip(numbers - middle, -half, half)

    def predict(self, X: Any) -> Positions:
        """Return the number of the nearest centre of each row.

        Args:
            X: The table.

        Returns:
            One number for each row.
        """
        return nearest(self._fitted_rows(X), self.cluster_centers_ - self._box()[0])

    def transform(self, X: Any) -> Floats:
        """Return the distances of rows from the centres.

        Args:
            X: The table.

        Returns:
            One row for each row of the table, one column for each cluster.
        """
        x, centres = self._fitted_rows(X), self.cluster_centers_ - self._box()[0]
        return np.stack([np.linalg.norm(x - each, axis=1) for each in centres], axis=1)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the inertia of rows, with a minus sign: the sum of squared distances.

        It is computed without noise: publish it for rows other than those of the fit only.

        Args:
            X: The table.
            y: Not used.

        Returns:
            Minus the inertia.
        """
        return -float((self.transform(X).min(axis=1) ** 2).sum())

    @property
    def _n_features_out(self) -> int:
        """The number of clusters, by which scikit-learn names distances."""
        return len(self.cluster_centers_)

    def _fitted_rows(self, X: Any) -> Floats:
        check_is_fitted(self)
        return self._centred(check_table(self, self._public_map, X, "no_validation", reset=False))


def _packed_start(fit: Fit, rows: _Rows, clusters: int, half: Floats, random: Any) -> Clusters:
    """Return packed centres around the released mean, as wide as the released spread."""

    def moments() -> Floats:
        x, weights = rows()
        statistics = normal_statistics(np.clip(x / half, -1, 1)) * weights[:, None]
        found: Floats = summed(lambda block: block.sum(axis=0), statistics)
        return found

    noisy = fit.release(fit.planned[0], moments)
    width = len(half)
    count = max(float(noisy[0]), _stddev(fit.planned[0]))
    mean = np.clip(noisy[1 : 1 + width] * math.sqrt(width) / count, -1, 1)
    square = (noisy[1 + width :] * math.sqrt(width) / count + 1) / 2
    spread = np.sqrt(np.clip(square - mean**2, _LEAST_SPREAD**2, 1.0))
    return packed(mean * half, spread * half, clusters, half, random)


def _of_numbers(schema: Schema) -> Schema:
    """Return a schema all of whose columns are numbers."""
    for each in schema:
        if not each.is_number:
            raise InvalidArgument(
                f"KMeans takes columns of numbers, and {each.name!r} has categories. Leave it out "
                f"with schema.without({each.name!r})."
            )
    return schema


def _stddev(planned: Planned) -> float:
    return float(planned.mechanism.stddev)  # type: ignore[attr-defined]
