"""Classifiers that give each row a score: probabilities and labels follow from it.

Tests: tests/estimators/test_trees.py.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin

from dpfy.estimators.base import PrivateEstimator
from dpfy.estimators.declarations import Floats


class ScoringClassifier(ClassifierMixin, PrivateEstimator, ABC):  # type: ignore[misc]
    """Base of classifiers with a ``decision_function``, which is all that they predict by."""

    classes: Any
    classes_: NDArray[Any]

    @abstractmethod
    def decision_function(self, X: Any) -> Floats:
        """Return the log odds of the second of two classes, or one score for each class.

        Args:
            X: The table.

        Returns:
            One number for each row, or one for each row and class.
        """

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of the probabilities of the classes.

        Args:
            X: The table.

        Returns:
            One row for each row of the table, one column for each class.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        found: Floats = log_softmax(scores, axis=1)
        return found

    def predict_proba(self, X: Any) -> Floats:
        """Return the probabilities of the classes.

        Args:
            X: The table.

        Returns:
            One row for each row of the table, one column for each class.
        """
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely class of each row.

        Args:
            X: The table.

        Returns:
            One label for each row.
        """
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]
