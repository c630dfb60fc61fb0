"""Networks and public settings that suit the reference data sets at ε ≈ 3.

Tests: tests/models/test_networks.py.
"""

from pathlib import Path

import torch
from torch import nn

from dpfy import _validate
from dpfy.data import DataSource, glove
from dpfy.data.text import DIMENSION, VOCABULARY, has_glove
from dpfy.errors import InvalidArgument
from dpfy.models.networks import cifar_cnn, digits_mlp, mlp, mnist_cnn, review_classifier

# Chosen on splits of the training data of the public benchmarks, except that Fashion-MNIST has
# MNIST's settings and CIFAR-10 is untuned. On private data such a choice would be a release of its
# own, hence these constants.
_RECOMMENDED: dict[str, dict[str, float]] = {
    "digits": {"epochs": 40, "batch_size": 960, "clip": 1.0, "lr": 0.25, "momentum": 0.9},
    "mnist": {"epochs": 5, "batch_size": 1024, "clip": 0.1, "lr": 4.0, "momentum": 0.9},
    "fashion-mnist": {"epochs": 5, "batch_size": 1024, "clip": 0.1, "lr": 4.0, "momentum": 0.9},
    "cifar-10": {"epochs": 30, "batch_size": 1024, "clip": 0.1, "lr": 1.0, "momentum": 0.9},
    "imdb": {"epochs": 20, "batch_size": 2048, "clip": 1.0, "lr": 0.5, "momentum": 0.9},
    "adult": {"epochs": 10, "batch_size": 1024, "clip": 1.0, "lr": 0.5, "momentum": 0.9},
}


def default_model(source: DataSource, data_dir: str | Path | None = None) -> nn.Module:
    """Return an untrained network that suits the data set.

    Reviews are embedded by frozen GloVe vectors, or, where there are none, by frozen random
    vectors, which are worse.

    Args:
        source: The data set.
        data_dir: The directory that is searched for GloVe vectors.

    Returns:
        The network.

    Raises:
        InvalidArgument: There is no network for this data set.

    >>> from dpfy.data import load
    >>> sum(p.numel() for p in default_model(load("digits")).parameters())
    4810
    """
    match source.name:
        case "digits":
            return digits_mlp(source.classes)
        case "mnist" | "fashion-mnist":
            return mnist_cnn(source.classes)
        case "cifar-10":
            return cifar_cnn(source.classes)
        case "imdb":
            return review_classifier(
                _word_vectors(source.vocabulary or VOCABULARY, data_dir), source.classes
            )
        case "adult":
            return mlp(source.input_shape[0], source.classes)
    raise InvalidArgument(
        f"No network is known for the data set {source.name!r}; give a model of your own. There is "
        f"one for {', '.join(_RECOMMENDED)}."
    )


def recommended(name: str) -> dict[str, float]:
    """Return public hyper-parameters for a data set at ε ≈ 3.

    Args:
        name: The name of the data set.

    Returns:
        ``epochs``, ``batch_size``, ``clip``, and ``lr`` and ``momentum`` of SGD.

    Raises:
        InvalidArgument: No settings are known for this data set.

    >>> sorted(recommended("mnist"))
    ['batch_size', 'clip', 'epochs', 'lr', 'momentum']
    """
    return dict(_RECOMMENDED[_validate.choice("name", name, tuple(_RECOMMENDED))])


def _word_vectors(vocabulary: int, data_dir: str | Path | None) -> torch.Tensor:
    return (
        glove(data_dir, vocabulary) if has_glove(data_dir) else torch.randn(vocabulary, DIMENSION)
    )
