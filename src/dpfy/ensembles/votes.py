"""Count the votes of teachers: at most one vote of each, whatever it answers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpfy import _validate
from dpfy.errors import InvalidArgument

Floats = npt.NDArray[np.float64]


def count_votes(answers: Any, classes: int, weights: Any = None) -> Floats:
    """Return the histogram of the teachers' votes on each input.

    *Formal guarantee*: if all answers of one teacher are replaced, each row moves by at most √2
    times the teacher's weight in ℓ2 norm, by at most the weight in each class, and by at most twice
    the weight in all. The sums are exact for weights that are multiples of a power of two, up to
    2⁵³ of them in all.

    The counts are as sensitive as the records: they may leave only with noise.

    Args:
        answers: The answers of each teacher to each input, of the shape (teachers, inputs). An
            answer that is no whole number from 0 to ``classes`` − 1 is no vote.
        classes: The number of classes, at least 2.
        weights: The weight of each teacher's vote, above zero; by default 1.

    Returns:
        The votes, of the shape (inputs, classes).

    Raises:
        InvalidArgument: If the shapes do not fit.

    Reference: docs/proofs/pate.md, Lemma 2.

    >>> count_votes([[0.0, 1.0], [0.0, float("nan")]], classes=2)
    array([[2., 0.], [0., 1.]])
    """
    answers = np.asarray(answers, dtype=np.float64)
    classes = _validate.count("classes", classes, minimum=2)
    if answers.ndim != 2:
        raise InvalidArgument(
            f"Expected answers of the shape (teachers, inputs), got {answers.ndim} dimensions."
        )
    weights = np.ones(len(answers)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weights.shape != (len(answers),) or not bool((weights > 0).all()):
        raise InvalidArgument("Expected one weight above zero for each teacher.")
    teachers, inputs = np.nonzero(np.isin(answers, np.arange(classes)))
    votes = np.zeros((answers.shape[1], classes))
    np.add.at(votes, (inputs, answers[teachers, inputs].astype(np.int64)), weights[teachers])
    return votes
