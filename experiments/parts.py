"""What a cell names: data and its split, networks, schedules, augmentations, and the measure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from dpfy import _validate
from dpfy.data import DataSource, load
from dpfy.errors import InvalidArgument
from dpfy.models import (
    AugmentedData,
    cifar_cnn,
    cnn_head,
    crop_and_flip,
    digits_mlp,
    linear_head,
    mean_over_copies,
    mnist_cnn,
)
from experiments import minilm
from experiments.features import computed, in_front, normalization
from experiments.methods import activation, kind_of
from experiments.networks import softmax_regression, wave_cnn

if TYPE_CHECKING:
    from experiments.cell import Cell

LossFn = Callable[..., torch.Tensor]

# By the shape of an input, after what FRONTS did to it.
_NETWORKS: dict[str, Callable[[Any], nn.Module]] = {
    "digits-mlp": lambda shape: digits_mlp(),
    "wave-cnn": wave_cnn,
    "linear-head": linear_head,
    "linear-head-normalized": lambda shape: linear_head(shape, normalization=normalization(shape)),
    "normalized-linear": softmax_regression,
    "photo-linear": softmax_regression,
    "photo-scattering-linear": softmax_regression,
    "stroke-linear": softmax_regression,
    "review-linear": lambda shape: softmax_regression(shape, classes=2),
    "minilm-linear": lambda shape: softmax_regression(shape, classes=2),
    "minilm-mean-linear": lambda shape: softmax_regression(shape, classes=2),
    "minilm-attention": lambda shape: minilm.attention_classifier(),
    "minilm-lora": lambda shape: minilm.lora_classifier(),
}
# The same, and by the activation that the method wants.
_ACTIVATED: dict[str, Callable[[Any, Callable[[], nn.Module]], nn.Module]] = {
    "mnist-cnn": lambda shape, activation: mnist_cnn(activation=activation),
    "cifar-cnn": lambda shape, activation: cifar_cnn(activation=activation, readout="linear"),
    "cnn-head": lambda shape, activation: cnn_head(shape, activation=activation),
}
NETWORKS = (*_NETWORKS, *_ACTIVATED)

# By the features, where they need more of the data than the loader gives by default.
_SOURCES: dict[str, Callable[[str | Path | None], DataSource]] = {
    "minilm": minilm.all_words,
    "minilm-below-last": minilm.all_words,
}

AUGMENTATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor] | None] = {
    "none": None,
    "crop-and-flip": crop_and_flip,
}

_HELD_OUT = 6  # one part in so many of the training records is for selection
_SPLIT_SEED = 20211004  # of the public permutation that chooses them
_EVALUATION_BATCH = 1000


@dataclass(frozen=True)
class Task:
    """The records to train on, those to measure on, and the declared number of the former."""

    train: TensorDataset
    held_out: TensorDataset
    records: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.tensors[0].shape[1:])


def load_task(
    cell: "Cell", data_dir: str | Path | None, validate: bool, cache: Path | None = None
) -> Task:
    """Return the data of a cell; for selection, a fixed split of the training records alone.

    Features that take long to compute are kept in the folder ``cache``. A cell of few records is
    measured on as few.
    """
    source = _SOURCES.get(cell.features, partial(load, cell.data))(data_dir)

    def part(name: str, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        name += "" if cell.records is None else f"-{cell.records}"
        file = None if cache is None else cache / f"{cell.data}-{cell.features}-{name}.safetensors"
        return in_front(
            cell.network, computed(cell.features, images, file, data_dir), data_dir
        ), labels

    train = part("train", *source.train[: cell.records])
    held_out = () if validate else part("test", *source.test[: cell.records])
    records = source.records if cell.records is None else min(cell.records, source.records)
    if validate:
        order = torch.from_numpy(np.random.default_rng(_SPLIT_SEED).permutation(len(train[0])))
        held = records // _HELD_OUT
        train, held_out = (
            tuple(field[part] for field in train) for part in (order[held:], order[:held])
        )
        records -= held
    return Task(TensorDataset(*train), TensorDataset(*held_out), records)


def make_network(cell: "Cell", shape: tuple[int, ...], seed: int) -> nn.Module:
    """Return the network of a cell with the initial weights of a seed, which decides nothing
    else.
    """
    torch.manual_seed(seed)
    if cell.network in _ACTIVATED:
        return _ACTIVATED[cell.network](shape, activation(cell.method))
    return _NETWORKS[cell.network](shape)


def check_network(network: str, method: str) -> None:
    """Refuse a method that is about activations for a network that has none of its own."""
    _validate.choice("network", network, NETWORKS)
    if kind_of(method) == "tempered-sigmoid" and network not in _ACTIVATED:
        raise InvalidArgument(
            f"Expected network={network!r} to be one of {', '.join(_ACTIVATED)} for {method!r}."
        )


def varied(cell: "Cell", records: TensorDataset) -> Any:
    """Return the records as the loss of :func:`loss_of` takes them: with their random copies, if
    the cell has any.
    """
    augment = AUGMENTATIONS[cell.augmentation]
    return records if augment is None else AugmentedData(records, augment, cell.copies)


def loss_of(cell: "Cell", model: nn.Module) -> LossFn:
    """Return the loss of each record, which is the mean over its copies."""

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), y, reduction="none")

    return loss_fn if AUGMENTATIONS[cell.augmentation] is None else mean_over_copies(loss_fn)


def percent_right(model: nn.Module, data: TensorDataset) -> float:
    """Return the percentage of records that the model classifies rightly."""
    was_training = model.training
    model.eval()
    x, y = data.tensors
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in x.split(_EVALUATION_BATCH)])
    model.train(was_training)
    return 100.0 * float((found == y).double().mean())
