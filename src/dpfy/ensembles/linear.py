"""Linear teachers: quick to train on few records, and kept as two arrays.

Tests: tests/ensembles/test_teachers.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from dpfy import _validate
from dpfy.ensembles.predictors import State


class LinearPredictor:
    """The class with the largest linear score.

    Args:
        weights: The weights, of the shape (features, classes).
        bias: The bias of each class.

    >>> LinearPredictor(torch.eye(2), torch.zeros(2)).predict([[0.0, 1.0]])
    tensor([1])
    """

    def __init__(self, weights: torch.Tensor, bias: torch.Tensor) -> None:
        self.weights, self.bias = weights, bias

    def scores(self, x: Any) -> torch.Tensor:
        """Return the score of each class, for each input."""
        return torch.addmm(self.bias, _floats(x), self.weights)

    def predict(self, x: Any) -> torch.Tensor:
        """Return the class with the largest score, for each input."""
        return self.scores(x).argmax(dim=1)


class LinearFormat:
    """Keeps :class:`LinearPredictor` as its two arrays."""

    def state(self, predictor: LinearPredictor) -> State:
        """Return the weights and the bias."""
        return {"weights": predictor.weights, "bias": predictor.bias}

    def restore(self, state: State) -> LinearPredictor:
        """Return the predictor of these weights and bias."""
        return LinearPredictor(state["weights"], state["bias"])


def train_linear(
    classes: int, *, decay: float = 0.01, iterations: int = 50
) -> Callable[[Any, int], LinearPredictor]:
    """Return a function that trains a softmax regression on the records of one part.

    It minimises the mean cross-entropy plus ``decay``/2 times the squared norm of the weights, by
    L-BFGS from zero. It draws no random numbers, so that its seed has no effect.

    Args:
        classes: The public number of classes, at least 2. A label that is none of them is left out.
        decay: The strength of the regularisation, above zero.
        iterations: The most iterations of the optimizer, at least 1.

    Returns:
        A ``train_one`` for :meth:`dpfy.Teachers.fit`, whose records are (features, labels).

    Raises:
        InvalidArgument: If an argument is out of its range.

    >>> records = np.array([[-1.0], [1.0]]), np.array([0, 1])
    >>> train_linear(2)(records, seed=0).predict([[-3.0], [2.0]])
    tensor([0, 1])
    """
    _validate.count("classes", classes, minimum=2)
    _validate.positive("decay", decay)
    _validate.count("iterations", iterations)

    def train_one(subset: Any, seed: int) -> LinearPredictor:
        return fit_linear(subset[0], subset[1], classes, decay=decay, iterations=iterations)

    return train_one


def fit_linear(
    features: Any,
    labels: Any,
    classes: int,
    *,
    decay: float,
    iterations: int,
    weights: torch.Tensor | None = None,
) -> LinearPredictor:
    """Minimise the mean cross-entropy plus decay/2 times the squared norm, by L-BFGS from zero.

    Labels that are no class are left out. The mean is weighted, if weights are given.
    """
    given = torch.as_tensor(np.asarray(labels)).long()
    known = (given >= 0) & (given < classes)
    x, y = _floats(features)[known], given[known]
    each = torch.ones(len(y)) if weights is None else weights[known]
    slopes = torch.zeros(x.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [slopes, bias], max_iter=iterations, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        losses = F.cross_entropy(torch.addmm(bias, x, slopes), y, reduction="none")
        value = (each * losses).sum() / each.sum() + decay / 2 * slopes.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return LinearPredictor(slopes.detach(), bias.detach())


def _floats(x: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(x, dtype=np.float32))
