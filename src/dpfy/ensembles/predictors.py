"""What teachers have to be able to do, and how they are kept without pickling.

Tests: tests/ensembles/test_teachers.py.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from dpfy.errors import InvalidArgument

State = dict[str, Any]
"""Nested dicts and lists of tensors, numbers and texts, as a checkpoint holds them."""


class Predictor(Protocol):
    """A trained model; every classifier and regressor of scikit-learn is one."""

    def predict(self, x: Any) -> Any:
        """Return one number for each input: a class from 0 on, or a value."""


class Format(Protocol):
    """A way to keep a predictor in a file without pickling it."""

    def state(self, predictor: Any) -> State:
        """Return what :meth:`restore` needs."""

    def restore(self, state: State) -> Predictor:
        """Return the predictor of a state."""


class ModulePredictor:
    """A torch module as a predictor: the class of the largest output, or the single output.

    Args:
        module: A module that returns one row of outputs for each input.

    >>> layer = nn.Linear(2, 3)
    >>> ModulePredictor(layer).predict(np.zeros((4, 2))).shape
    torch.Size([4])
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def predict(self, x: Any) -> torch.Tensor:
        """Return the class of the largest output, or the output where there is one."""
        self.module.eval()
        inputs = torch.as_tensor(np.array(x) if isinstance(x, np.ndarray) else x)
        first = next(self.module.parameters(), None)
        if first is not None and inputs.is_floating_point():
            inputs = inputs.to(first.device, first.dtype)
        with torch.no_grad():
            outputs = self.module(inputs)
        if outputs.ndim == 1:
            return outputs
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs.argmax(dim=1)


class ModuleState:
    """Keeps torch modules by their ``state_dict``.

    Args:
        make: A function that returns a module of the same architecture; nothing of it is kept.

    >>> kept = ModuleState(lambda: nn.Linear(2, 3))
    >>> kept.restore(kept.state(nn.Linear(2, 3))).predict(torch.zeros(4, 2)).shape
    torch.Size([4])
    """

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        self._make = make

    def state(self, predictor: Any) -> State:
        """Return the parameters and buffers of a module."""
        return dict(as_predictor(predictor).module.state_dict())

    def restore(self, state: State) -> Predictor:
        """Return a new module with these parameters and buffers."""
        module = self._make()
        module.load_state_dict(state)
        return ModulePredictor(module)


class FittedAttributes:
    """Keeps estimators of scikit-learn by their fitted attributes, whose names end in ``_``.

    Linear models, naive Bayes, nearest centroids and perceptrons have arrays, numbers and texts
    there, and nothing else. Trees have objects, for which you have to write a format of your own.

    Args:
        make: A function that returns an estimator that is not fitted, such as its class.

    >>> from sklearn.naive_bayes import GaussianNB
    >>> kept = FittedAttributes(GaussianNB)
    >>> model = GaussianNB().fit([[0.0], [1.0]], [0, 1])
    >>> kept.restore(kept.state(model)).predict([[0.9]])
    array([1])
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def state(self, predictor: Any) -> State:
        """Return the fitted attributes.

        Raises:
            InvalidArgument: If one of them is no array, number or text.
        """
        names = [name for name in vars(predictor) if name.endswith("_") and name[0] != "_"]
        return {name: _plain(getattr(predictor, name), name) for name in names}

    def restore(self, state: State) -> Predictor:
        """Return a new estimator with these attributes."""
        estimator = self._make()
        for name, value in state.items():
            setattr(estimator, name, _fitted(value))
        return estimator  # type: ignore[no-any-return]


def as_predictor(found: Any) -> Any:
    """Return what a training function returned as a predictor."""
    return ModulePredictor(found) if isinstance(found, nn.Module) else found


def _plain(value: Any, name: str) -> Any:
    """Return a fitted attribute as tensors, numbers and texts."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {"array": torch.from_numpy(np.array(value, copy=True)), "scalar": value.ndim == 0}
    if isinstance(value, list | tuple):
        return [_plain(each, name) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidArgument(
        f"Expected the fitted attribute {name!r} to be arrays, numbers or texts, got "
        f"{type(value).__name__}. Pass a format= of your own, with state() and restore()."
    )


def _fitted(value: Any) -> Any:
    if isinstance(value, Mapping):
        array = value["array"].numpy()
        return array[()] if value["scalar"] else array
    return [_fitted(each) for each in value] if isinstance(value, list) else value
