"""Private logistic regression."""

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators import perturbation
from dpfy.estimators.base import PrivateLinearModel
from dpfy.estimators.declarations import (
    Floats,
    check_table,
    classes_ground,
    label_positions,
    resolve_classes,
    with_intercept,
)
from dpfy.estimators.descent import Descent, descend
from dpfy.estimators.fitting import Planned, computed_bound, gaussian, summed
from dpfy.estimators.scores import ScoringClassifier
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground
from dpfy.ledger.grant import Booking
from dpfy.tabular.schema import Schema

SOLVERS = ("gd", *perturbation.SOLVERS)


class LogisticRegression(ScoringClassifier, PrivateLinearModel):
    """Private logistic regression, with two or more classes.

    The default solver ``gd`` is gradient descent on all rows: each step releases the sum of the
    rows' gradients as one Gaussian vector, and everything else, such as momentum and the average
    over the last half of the steps, is computed from what was released. The number of steps, the
    learning rate and the largest norm of a row's gradient follow a public rule of the number of
    rows and of ε (:meth:`~dpfy.estimators.descent.Descent.rule`). The solvers ``output``,
    ``objective`` and ``functional`` (:mod:`dpfy.estimators.perturbation`) release once, for two
    classes.

    *Formal guarantee*: (``epsilon``, ``delta``)-differential privacy for setting one row to zero,
    or for adding or removing one, of ``coef_``, ``intercept_`` and all that was released on the way
    (docs/proofs/estimators.md, Theorem 1, and docs/proofs/perturbation.md). One row moves a sum of
    gradients by at most ``clip``.

    After a fit, ``coef_noise_`` is the standard deviation of the noise in ``coef_``: for "gd" and
    "objective" at most, and to first order; None for "functional", whose noise depends on the rows.

    *Assumes* that schema, bounds or data norm, and classes, are public.

    Args:
        epsilon: The ε of the fit, above 0.
        delta: The δ of the fit; "auto" is the smaller of 1e-5 and n^-1.1.
        schema: The declared columns of a table with names.
        bounds: The least and the largest value of plain numbers, or "observed".
        data_norm: The largest ℓ2 norm of a row of plain numbers.
        classes: The labels, or "observed", which declares that those of ``y`` are public.
        solver: "gd"; or for two classes "output", "objective" or "functional", which release once.
        regularisation: The strength of the penalty on the weights, beside the sum of all losses,
            of the solvers that release once; by default that of a public rule.
        steps: The number of steps of ``gd``; by default that of the public rule.
        learning_rate: The learning rate of ``gd``; by default that of the public rule.
        clip: The largest norm of a row's gradient; by default that of the public rule, ½.
        ledger: An open ledger, the path of one, or None for one in memory.
        relation: "zero_out", which makes the number of rows public, or "add_or_remove_one".
        records: The declared number of rows, where the true one is private.
        insecure_test_key: A key that makes the noise reproducible, and the fit not private.

    >>> x = np.random.default_rng(0).normal(size=(2000, 2))
    >>> model = LogisticRegression(1.0, data_norm=3.0, classes=[False, True])
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
        data_norm: float | None = None,
        classes: Any = None,
        solver: str = "gd",
        regularisation: float | None = None,
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
        self.classes = classes
        self.solver = solver
        self.regularisation = regularisation
        self.steps = steps
        self.learning_rate = learning_rate
        self.clip = clip
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
        self._check_solver()
        features = self._features()
        table, labels = check_table(self, features, X, y, reset=True)
        classes = resolve_classes(self.classes, labels)
        if len(classes) < 2:
            raise InvalidArgument(
                f"Expected two or more classes, got {len(classes)} class. Declare all labels that "
                "may occur, as classes=[0, 1]."
            )
        features.observe(table)

        @cache
        def rows() -> tuple[Floats, NDArray[np.int64]]:
            vectors, known = features.rows(table)
            positions = np.where(known, label_positions(labels, classes), -1)
            return with_intercept(vectors, positions >= 0, features), positions

        count, width = len(labels), features.width(table) + (features.schema is None)
        grounds = (features.ground, classes_ground(self.classes))
        solve = self._gradient_descent if self.solver == "gd" else self._perturbed
        weights, noise = solve(rows, count, width, len(classes), grounds)
        self.classes_ = classes
        self._keep_linear(features, weights, noise)
        return self

    def _check_solver(self) -> None:
        """Refuse a solver that is not known, and parameters that it does not use."""
        _validate.choice("solver", self.solver, SOLVERS)
        for name in ("regularisation",) if self.solver == "gd" else ("steps", "learning_rate"):
            if getattr(self, name) is not None:
                raise InvalidArgument(
                    f"Expected no {name}= with solver={self.solver!r}, which does not use it. "
                    "Leave it out, or choose another solver."
                )

    def _gradient_descent(
        self,
        rows: Callable[[], tuple[Floats, NDArray[np.int64]]],
        count: int,
        width: int,
        classes: int,
        grounds: Sequence[Ground],
    ) -> tuple[Floats, float]:
        """Return the weights of each class but the first of two, by noisy descent, and their noise.

        The noise is that of :meth:`~dpfy.estimators.descent.Descent.noise_gain`.
        """
        records = self._public_records(count)
        curvature = 0.25 if classes == 2 else 0.5
        settings = Descent.rule(
            records,
            _validate.epsilon(self.epsilon),
            curvature,
            steps=self.steps,
            learning_rate=self.learning_rate,
            clip=self.clip,
        )
        bound = computed_bound(settings.clip, records, width)

        def plan(noise: float) -> list[Planned]:
            return [gaussian("gradient", bound, noise, times=settings.steps)]

        with self._begin(count, plan, grounds) as fit:

            def gradient(weights: Floats) -> Floats:
                total = fit.release(
                    fit.planned[0], lambda: gradient_sum(weights, *rows(), settings.clip)
                )
                return total / max(records, 1)

            start = np.zeros((1 if classes == 2 else classes, width))
            weights = descend(gradient, start, settings)
        self._conclude(fit)
        self.n_iter_ = settings.steps
        stddev = fit.noise_multiplier * bound * math.sqrt(settings.steps) / max(records, 1)
        return weights, stddev * settings.noise_gain(curvature)

    def _perturbed(
        self,
        rows: Callable[[], perturbation.Rows],
        count: int,
        width: int,
        classes: int,
        grounds: Sequence[Ground],
    ) -> tuple[Floats, float | None]:
        """Return the weights of the second of two classes, and their noise where it is public."""
        if classes != 2:
            raise InvalidArgument(
                f"Only binary classification is supported by solver={self.solver!r}, got {classes} "
                "classes: its guarantee holds for losses of one score. Use solver='gd'."
            )
        solver = perturbation.SOLVERS[self.solver](
            self._public_records(count),
            width,
            self.regularisation,
            0.5 if self.clip is None else self.clip,
        )
        with self._begin(count, solver.plan, grounds, solver.proved) as fit:
            weights = solver.weights(fit, rows)
        self._conclude(fit)
        self.n_iter_ = 1
        return weights[None], solver.weight_noise(fit.noise_multiplier)

    def decision_function(self, X: Any) -> Floats:
        """Return the scores of rows: the log odds of the second of two classes, or one each.

        Args:
            X: The table.

        Returns:
            One number for each row, or one for each row and class.
        """
        scores = self._linear_scores(X)
        return scores.ravel() if scores.shape[1] == 1 else scores

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: solvers that release once know two classes only."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.solver == "gd"
        return tags


def gradient_sum(
    weights: Floats, vectors: Floats, positions: NDArray[np.int64], clip: float
) -> Floats:
    """Return the sum of the rows' clipped gradients of the logistic loss, shaped as ``weights``.

    The gradient of a row is (p − e_label) ⊗ vector, scaled down to a norm of at most ``clip``. One
    row of weights is that of the second of two classes. A row whose position is −1 adds nothing.
    """

    def block(x: Floats, labels: NDArray[np.int64]) -> Floats:
        rest = _probabilities(x @ weights.T)
        targets = labels[:, None] == (np.arange(len(weights)) if len(weights) > 1 else 1)
        rest -= targets
        rest *= (labels >= 0)[:, None]
        norms = np.sqrt(np.einsum("ij,ij->i", rest, rest) * np.einsum("ij,ij->i", x, x))
        rest *= (clip / np.maximum(norms, clip))[:, None]
        return rest.T @ x

    total: Floats = summed(block, vectors, positions)
    return total


def _probabilities(scores: Floats) -> Floats:
    """Return the probability of the second of two classes, or of each."""
    found: Floats = expit(scores) if scores.shape[1] == 1 else softmax(scores, axis=1)
    return found
