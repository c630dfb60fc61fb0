"""What a cell names: data and its split, networks, schedules, augmentations, and the measure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from dpfy.data import load
from dpfy.models import cifar_cnn, digits_mlp, mnist_cnn

if TYPE_CHECKING:
    from experiments.cell import Cell

LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "digits-mlp": digits_mlp, "mnist-cnn": mnist_cnn, "cifar-cnn": cifar_cnn,
}

# Of the share of the plan that is behind: a step that was lost shortens training and leaves the schedule as it was.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
}

# The views of a record whose mean loss is the record's (augmentation multiplicity, De et al. 2022, §3.2).
AUGMENTATIONS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "none": lambda x: [x],
    "mirror": lambda x: [x, x.flip(-1)],
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


def load_task(cell: "Cell", data_dir: str | Path | None, validate: bool) -> Task:
    """Return the data of a cell; for selection, a fixed split of the training records alone."""
    source = load(cell.data, data_dir)
    train, held_out, records = source.train, source.test, source.records
    if cell.records is not None:
        train, records = TensorDataset(*train[:cell.records]), min(cell.records, records)
    if validate:
        order = torch.from_numpy(np.random.default_rng(_SPLIT_SEED).permutation(len(train)))
        held = records // _HELD_OUT
        train, held_out = TensorDataset(*train[order[held:]]), TensorDataset(*train[order[:held]])
        records -= held
    return Task(train, held_out, records)


def make_network(cell: "Cell", seed: int) -> nn.Module:
    """Return the network of a cell with the initial weights of a seed, which decides nothing else."""
    torch.manual_seed(seed)
    return NETWORKS[cell.network]()


def loss_of(cell: "Cell", model: nn.Module) -> LossFn:
    """Return the loss of each record: the mean over its views."""
    views_of = AUGMENTATIONS[cell.augmentation]

    def loss_fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        losses = [F.cross_entropy(model(view), y, reduction="none") for view in views_of(x)]
        return torch.stack(losses).mean(0)

    return loss_fn


def percent_right(model: nn.Module, data: TensorDataset) -> float:
    """Return the percentage of records that the model classifies rightly."""
    was_training = model.training
    model.eval()
    x, y = data.tensors
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in x.split(_EVALUATION_BATCH)])
    model.train(was_training)
    return 100.0 * float((found == y).double().mean())
