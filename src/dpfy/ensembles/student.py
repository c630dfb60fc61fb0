"""Train a student on public inputs, labelled or not: post-processing, which costs nothing."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix, diags

from dpfy import _validate
from dpfy.ensembles.linear import LinearPredictor, fit_linear
from dpfy.errors import InvalidArgument

_BLOCK = 1000  # inputs whose distances to all others are in memory at once
_TINY = 1e-12


def spread_labels(
    x: Any,
    labels: Any,
    classes: int,
    *,
    neighbours: int = 10,
    alpha: float = 0.99,
    iterations: int = 50,
) -> npt.NDArray[np.float64]:
    """Spread the labels of some inputs to all, along a graph of nearest neighbours.

    Every input takes a share ``alpha`` of its label from its neighbours and the rest from its own
    label, again and again. Each class has the same mass in all, however many labels it has. A few
    wrong labels are outvoted by their neighbourhood.

    *Formal guarantee*: labels of PATE and public inputs go in, and nothing else: the result is
    post-processing, and costs no privacy.

    Args:
        x: Public inputs, or features of them, one in each row.
        labels: The label of each input, or −1 for none.
        classes: The number of classes, at least 2.
        neighbours: The number of nearest neighbours of each input, at least 1.
        alpha: The share that is taken from neighbours, in (0, 1).
        iterations: The number of rounds, at least 1.

    Returns:
        The probability of each class for each input, of the shape (len(x), classes); zeros where
        no label came.

    Raises:
        InvalidArgument: If an argument is out of its range, or there is not one label for each
            input.

    Reference: Zhou, Bousquet, Lal, Weston & Schölkopf 2003 (local and global consistency).

    >>> spread_labels([[0.0], [0.1], [5.0], [5.1]], [0, -1, 1, -1], 2, neighbours=1).argmax(axis=1)
    array([0, 0, 1, 1])
    """
    _validate.count("classes", classes, minimum=2)
    _validate.real("alpha", alpha, 0, 1, open_low=True, open_high=True)
    _validate.count("iterations", iterations)
    inputs = torch.as_tensor(np.asarray(x, dtype=np.float32)).flatten(1)
    given = np.asarray(labels)
    if given.shape != (len(inputs),):
        raise InvalidArgument(f"Expected one label, or −1, for each of {len(inputs)} inputs.")
    graph = _graph(inputs, min(_validate.count("neighbours", neighbours), len(inputs) - 1))
    own = (given[:, None] == np.arange(classes)).astype(np.float64)
    own /= np.maximum(own.sum(axis=0), 1)
    mass = own
    for _ in range(iterations):
        mass = alpha * (graph @ mass) + (1 - alpha) * own
    return np.asarray(mass / np.maximum(mass.sum(axis=1, keepdims=True), _TINY))


def semi_supervised(
    x: Any,
    labels: Any,
    classes: int,
    *,
    neighbours: int = 10,
    decay: float = 1e-4,
    iterations: int = 40,
) -> LinearPredictor:
    """Train a linear student on all inputs, with labels that spread from those that have one.

    An input counts as much as its likeliest class is likely. An input to which no label came is
    left out.

    *Formal guarantee*: post-processing of the labels, at no further cost.

    Args:
        x: Public inputs, or features of them, one in each row.
        labels: The label of each input, or −1 for none, such as :meth:`dpfy.ensembles.Pate.ask`
            returns.
        classes: The number of classes, at least 2.
        neighbours: The number of nearest neighbours that labels spread to, at least 1.
        decay: The strength of the regularisation, above zero.
        iterations: The most iterations of the optimizer, at least 1.

    Returns:
        The student.

    Raises:
        InvalidArgument: If an argument is out of its range, or there is not one label for each
            input.

    >>> inputs = [[-5.0], [-5.1], [5.0], [5.1]]
    >>> semi_supervised(inputs, [0, -1, 1, -1], 2, neighbours=1).predict([[-3.0], [4.0]])
    tensor([0, 1])
    """
    spread = spread_labels(x, labels, classes, neighbours=neighbours)
    likeliest = spread.max(axis=1)
    found = np.where(likeliest > 0, spread.argmax(axis=1), -1)
    features = np.asarray(x, dtype=np.float32).reshape(len(spread), -1)
    return fit_linear(
        features,
        found,
        classes,
        decay=_validate.positive("decay", decay),
        iterations=_validate.count("iterations", iterations),
        weights=torch.as_tensor(likeliest, dtype=torch.float32),
    )


def _graph(inputs: torch.Tensor, neighbours: int) -> Any:
    """Return the symmetric graph of nearest neighbours, normalised by degrees on both sides."""
    blocks = [
        torch.cdist(block, inputs).topk(neighbours + 1, largest=False)
        for block in inputs.split(_BLOCK)
    ]
    near = torch.cat([block.values for block in blocks])[:, 1:].double().numpy()
    who = torch.cat([block.indices for block in blocks])[:, 1:].numpy()
    width = max(float(near[:, -1].mean()), _TINY) if near.size else 1.0
    rows = np.repeat(np.arange(len(inputs)), neighbours)
    weights = np.exp(-((near / width) ** 2)).ravel()
    found = csr_matrix((weights, (rows, who.ravel())), shape=(len(inputs),) * 2)
    found = found + found.T
    degrees = np.maximum(np.asarray(found.sum(axis=1)).ravel(), _TINY)
    scale = diags(degrees**-0.5)
    return scale @ found @ scale
