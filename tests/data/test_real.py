"""The real files, where DPFY_DATA names a folder that has them: published counts and facts."""

import os
from pathlib import Path

import pytest
import torch

from dpfy.data import NAMES, glove, load, shakespeare

ROOT = Path(os.environ.get("DPFY_DATA", ""))
FOLDERS = [
    name
    for name in NAMES
    if name != "digits" and os.environ.get("DPFY_DATA") and (ROOT / name).is_dir()
]
CLASS_COUNTS = {
    "adult": [24_720, 7841],
    "cifar-10": [5000] * 10,
    "fashion-mnist": [6000] * 10,
    "imdb": [12_500] * 2,
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
}


@pytest.mark.skipif(not FOLDERS, reason="DPFY_DATA names no folder with data sets")
@pytest.mark.parametrize("name", FOLDERS or ["mnist"])
def test_real_files_hold_the_declared_benchmark(name: str) -> None:
    source = load(name)
    x, y = source.train.tensors
    assert len(x) == source.records and x.shape[1:] == source.input_shape
    assert y.bincount().tolist() == CLASS_COUNTS[name] and len(source.test) > 0
    assert x.max() < source.vocabulary if source.vocabulary else x.min() == 0 and x.max() == 1


@pytest.mark.skipif(
    not (ROOT / "cifar-10").is_dir() or not FOLDERS, reason="DPFY_DATA has no cifar-10"
)
def test_real_cifar_has_the_published_channel_means() -> None:
    x = load("cifar-10").train.tensors[0]
    assert torch.allclose(x.mean((0, 2, 3)), torch.tensor([0.4914, 0.4822, 0.4465]), atol=1e-4)


@pytest.mark.skipif(not (ROOT / "glove").is_dir() or not FOLDERS, reason="DPFY_DATA has no glove")
def test_real_vectors_know_their_neighbours() -> None:
    table = torch.nn.functional.normalize(glove(vocabulary=20_000))
    assert (table[4] @ table[5]) > 0.5 and not table[:4].any()  # "the" and "and"


@pytest.mark.skipif(
    not (ROOT / "shakespeare").is_dir() or not FOLDERS, reason="DPFY_DATA has no shakespeare"
)
def test_real_roles_are_the_declared_users() -> None:
    source = shakespeare()
    assert len(source.train) == source.users
    assert not any(
        (user.tensors[0] == 1).any() for user in source.train
    )  # the alphabet covers the plays
