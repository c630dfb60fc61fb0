"""Read labels as class numbers, so that no label can stop or announce itself."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfy.errors import InvalidArgument

Labels = torch.Tensor | NDArray[Any] | Sequence[Any]


def count_of(y: Labels) -> int:
    """Return the public number of labels, by looking at their shape alone.

    Args:
        y: The private labels, one for each record.

    Returns:
        How many there are.

    Raises:
        InvalidArgument: If they have no length, or more than one dimension.
    """
    shape = getattr(y, "shape", None)
    if shape is not None and len(shape) != 1:
        raise InvalidArgument(
            f"Expected one label for each record, got labels of shape {tuple(shape)}. Give class "
            "numbers in one dimension."
        )
    if not hasattr(y, "__len__"):
        raise InvalidArgument(
            f"Expected a sequence of labels, an array or a tensor, got {type(y).__name__}."
        )
    return len(y)


def class_numbers(
    y: Labels, classes: int, places: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Return labels as whole numbers below ``classes``; what is no class counts as class 0.

    Numbers that are not whole, not finite or out of range count as class 0, and so does what is no
    number or cannot be read. Nothing is raised, warned of or printed on account of a value.

    Args:
        y: The private labels.
        classes: The declared number of classes.
        places: The places of the labels to read; all by default.

    Returns:
        The class numbers.

    >>> class_numbers([2, 7, -1, 1.0, float("nan"), None, "cat"], 3)
    array([2, 0, 0, 1, 0, 0, 0])
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        numbers = _numbers(y, range(len(y)) if places is None else places)
        valid = (numbers >= 0) & (numbers < classes) & (numbers == np.floor(numbers))
        return np.where(valid, numbers, 0).astype(np.int64)


def _numbers(y: Labels, places: Sequence[int]) -> NDArray[np.float64]:
    """Return labels as floats, NaN where there is no number."""
    if isinstance(y, torch.Tensor) and not y.is_complex():
        return y.detach()[list(places)].to("cpu", torch.float64).numpy()
    if isinstance(y, np.ndarray) and y.dtype.kind in "biuf":
        return y[list(places)].astype(np.float64)
    return np.array([_number(y, place) for place in places], dtype=np.float64)


def _number(y: Labels, place: int) -> float:
    try:
        value = y[place]
        # text is no number, even where float would read it as one
        return float("nan") if isinstance(value, str | bytes) else float(value)
    except Exception:
        return float("nan")
