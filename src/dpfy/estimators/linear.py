"""Private linear regression and ridge regression."""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.base import PrivateLinearModel
from dpfy.estimators.declarations import Features, Floats, check_table, with_intercept
from dpfy.estimators.descent import Descent, descend
from dpfy.estimators.fitting import Planned, computed_bound, gaussian, summed
from dpfy.estimators.moments import Moments, moment_sum, moments_bound
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.grant import Booking
from dpfy.tabular.schema import Schema
from dpfy.tabular.tables import as_floats

SOLVERS = ("gd", "adassp")
_FARTHEST = 1e150  # of targets whose range is taken from them

_Rows = Callable[[], tuple[Floats, Floats, NDArray[np.bool_]]]


class LinearRegression(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]
    """Private linear regression by least squares.

    The default solver ``gd`` is gradient descent on all rows, as in
    :class:`~dpfy.estimators.LogisticRegression`. The solver ``adassp`` releases the second moments
    of rows and targets once, as one Gaussian vector, and solves the normal equations with a penalty
    that the noise asks for: it is exact where noise is small, so for few columns, many rows and a
    large ε.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one (docs/proofs/estimators.md, Theorems 1 and 2).

    After a fit, ``coef_noise_`` is the standard deviation of the noise in ``coef_``, at most and to
    first order; None for "adassp", whose noise depends on the rows.

    *Assumes* that schema, bounds or data norm, and target bounds, are public.

    Args:
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names.
        bounds: The least and the largest value of plain numbers, or "observed".
        data_norm: The largest ℓ2 norm of a row of plain numbers.
        target_bounds: The least and the largest target, or "observed", which declares that those
            of ``y`` are public. Targets are clamped.
        solver: "gd" or "adassp".
        steps: The number of steps of ``gd``; by default that of the public rule.
        learning_rate: The learning rate of ``gd``; by default that of the public rule.
        clip: The largest norm of a row's gradient in ``gd``; by default that of the public rule.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    Reference: Wang 2018, Revisiting differentially private linear regression, Algorithm 2.

    >>> x = np.random.default_rng(0).uniform(-1, 1, size=(20_000, 2))
    >>> model = LinearRegression(1.0, bounds=(-1, 1), target_bounds=(-3, 3))
    >>> model.fit(x, x @ [2, 1]).score(x, x @ [2, 1]) > 0.95
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        bounds: Any = None,
        data_norm: float | None = None,
        target_bounds: Any = None,
        solver: str = "gd",
        steps: int | None = None,
        learning_rate: float | None = None,
        clip: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | Booking | None = None,
        relation: str = "zero_out",
        records: int | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.bounds = bounds
        self.data_norm = data_norm
        self.target_bounds = target_bounds
        self.solver = solver
        self.steps = steps
        self.learning_rate = learning_rate
        self.clip = clip
        self.ledger = ledger
        self.relation = relation
        self.records = records
        self.insecure_test_key = insecure_test_key

    @property
    def _penalty(self) -> float:
        """The penalty of squared coefficients, in units of vectors of norm at most 1."""
        return 0.0

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the model privately.

        Args:
            X: The table, one row for each record.
            y: The targets; a row whose target is no finite number contributes nothing.

        Returns:
            The fitted estimator.

        Raises:
            InvalidArgument: If a declaration is missing or out of its range.
            BudgetExhausted: If the ledger does not admit the fit; no row was read.
        """
        _validate.choice("solver", self.solver, SOLVERS)
        features = self._features()
        table, targets = check_table(self, features, X, y, reset=True)
        low, high = resolve_target_bounds(self.target_bounds, targets)
        features.observe(table)

        @cache
        def rows() -> tuple[Floats, Floats, NDArray[np.bool_]]:
            vectors, known = features.rows(table)
            scaled, finite = _unit(targets, low, high)
            known &= finite
            return vectors * known[:, None], scaled * known, known

        solve = self._by_moments if self.solver == "adassp" else self._by_descent
        grounds = (features.ground, _target_ground(self.target_bounds))
        width = features.width(table)
        coefficients, constant, noise = solve(rows, len(targets), features, width, grounds)
        self._keep(features, coefficients, constant, noise, (low, high))
        return self

    def _by_moments(
        self, rows: _Rows, count: int, features: Features, width: int, grounds: Sequence[Ground]
    ) -> tuple[Floats, float, None]:
        """Return coefficients of vectors and a constant, from one release of moments."""
        records = self._public_records(count)
        bound = computed_bound(moments_bound(target=True), records, width)

        def plan(noise: float) -> list[Planned]:
            return [gaussian("moments", bound, noise)]

        with self._begin(count, plan, grounds) as fit:
            noisy = fit.release(fit.planned[0], lambda: moment_sum(*rows()[:2]))
        self._conclude(fit)
        found = Moments.of(noisy, records, width)
        coefficients = found.ridge(self._penalty, bound * fit.noise_multiplier)
        return coefficients, found.target - float(found.mean @ coefficients), None

    def _by_descent(
        self, rows: _Rows, count: int, features: Features, width: int, grounds: Sequence[Ground]
    ) -> tuple[Floats, float, float]:
        """Return coefficients of vectors, a constant, and their noise, from noisy gradients."""
        records = self._public_records(count)
        settings = Descent.rule(
            records,
            _validate.epsilon(self.epsilon),
            curvature=1.0,
            steps=self.steps,
            learning_rate=self.learning_rate,
            clip=self.clip,
        )
        own_constant = int(features.schema is None)
        bound = computed_bound(settings.clip, records, width + own_constant)

        @cache
        def extended() -> tuple[Floats, Floats]:
            vectors, targets, known = rows()
            return with_intercept(vectors, known, features), targets

        def plan(noise: float) -> list[Planned]:
            return [gaussian("gradient", bound, noise, times=settings.steps)]

        with self._begin(count, plan, grounds) as fit:

            def gradient(weights: Floats) -> Floats:
                total = fit.release(
                    fit.planned[0], lambda: gradient_sum(weights, *extended(), settings.clip)
                )
                return (total + self._penalty * weights) / max(records, 1)

            weights = descend(gradient, np.zeros(width + own_constant), settings)
        self._conclude(fit)
        stddev = fit.noise_multiplier * bound * math.sqrt(settings.steps) / max(records, 1)
        scale = 1 / math.sqrt(1 + own_constant)
        constant = float(weights[-1]) * scale if own_constant else 0.0
        return weights[:width] * scale, constant, stddev * settings.noise_gain(1.0) * scale

    def _keep(
        self,
        features: Features,
        coefficients: Floats,
        constant: float,
        noise: float | None,
        ends: tuple[float, float],
    ) -> None:
        """Keep the model in units of the columns and of the target."""
        scale, shift = features.affine(len(coefficients))
        half, middle = (ends[1] - ends[0]) / 2, (ends[1] + ends[0]) / 2
        self._public_map = features
        self.coef_ = coefficients * scale * half
        self.coef_noise_ = None if noise is None else noise * scale * half
        self.intercept_ = (constant + float(coefficients @ shift)) * half + middle

    def predict(self, X: Any) -> Floats:
        """Return the predicted targets of rows.

        Args:
            X: The table.

        Returns:
            One number for each row.
        """
        return self._linear_scores(X)


class Ridge(LinearRegression):
    """Private linear regression with a penalty of squared coefficients.

    *Formal guarantee* and *Assumes*: as of :class:`LinearRegression`.

    Args:
        alpha: The penalty, at least 0, for vectors of norm at most 1 and targets from −1 to 1.
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names.
        bounds: The least and the largest value of plain numbers, or "observed".
        data_norm: The largest ℓ2 norm of a row of plain numbers.
        target_bounds: The least and the largest target, or "observed".
        solver: "gd" or "adassp".
        steps: The number of steps of ``gd``; by default that of the public rule.
        learning_rate: The learning rate of ``gd``; by default that of the public rule.
        clip: The largest norm of a row's gradient in ``gd``; by default that of the public rule.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        *,
        schema: Schema | None = None,
        bounds: Any = None,
        data_norm: float | None = None,
        target_bounds: Any = None,
        solver: str = "gd",
        steps: int | None = None,
        learning_rate: float | None = None,
        clip: float | None = None,
        ledger: Ledger | str | os.PathLike[str] | Booking | None = None,
        relation: str = "zero_out",
        records: int | None = None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        super().__init__(
            epsilon,
            delta,
            schema=schema,
            bounds=bounds,
            data_norm=data_norm,
            target_bounds=target_bounds,
            solver=solver,
            steps=steps,
            learning_rate=learning_rate,
            clip=clip,
            ledger=ledger,
            relation=relation,
            records=records,
            insecure_test_key=insecure_test_key,
        )
        self.alpha = alpha

    @property
    def _penalty(self) -> float:
        return _validate.real("alpha", self.alpha, 0, math.inf, open_high=True)


def gradient_sum(weights: Floats, vectors: Floats, targets: Floats, clip: float) -> Floats:
    """Return the sum of the rows' gradients (x·w − y)x, each of norm at most ``clip``."""

    def block(x: Floats, y: Floats) -> Floats:
        rest = x @ weights - y
        norms = np.abs(rest) * np.sqrt(np.einsum("ij,ij->i", x, x))
        return np.asarray((rest * (clip / np.maximum(norms, clip))) @ x)

    total: Floats = summed(block, vectors, targets)
    return total


def resolve_target_bounds(target_bounds: Any, y: NDArray[Any]) -> tuple[float, float]:
    """Return the declared least and largest target.

    Args:
        target_bounds: Two numbers, or "observed": those of ``y``, which are thereby public.
        y: The targets.

    Returns:
        The least and the largest target.

    Raises:
        InvalidArgument: If no bounds are declared, or if they do not increase.
    """
    if isinstance(target_bounds, str) and target_bounds == "observed":
        known = as_floats(y)
        known = known[np.isfinite(known)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
        return low, high if high > low else low + max(1.0, abs(low) / 1000)
    try:
        low, high = (float(each) for each in target_bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(high - low) and low < high):
        raise InvalidArgument(
            f"Expected target_bounds={target_bounds!r} to be (low, high) with low < high: the "
            "range that targets may have. If that of these targets is public anyway, say so with "
            "target_bounds='observed'."
        )
    return low, high


def _target_ground(target_bounds: Any) -> Ground:
    text = (
        "Bounds of the target were read off it and declared public: target_bounds='observed'. What "
        "they tell is outside of the guarantee."
        if isinstance(target_bounds, str)
        else "Bounds of the target are declared; targets outside of them are clamped."
    )
    return Ground(Kind.DECLARATION, "target", "What the target may be", text)


def _unit(targets: NDArray[Any], low: float, high: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return targets from −1 to 1, and which are finite numbers; the others are 0."""
    values = as_floats(targets)
    finite = np.isfinite(values)
    share = (np.clip(values, low, high) - low) / (high - low)
    scaled = np.clip(2 * share - 1, -1, 1)  # whatever float64 makes of large bounds
    return np.where(finite, scaled, 0.0), finite
