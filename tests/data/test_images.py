"""IDX and CIFAR-10 files: every layout gives the same records, every damage is named."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpfy.data import cifar10, digits, load
from dpfy.errors import DataError, InvalidArgument

RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.integers(0, 256, (7, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 3, 4, 5, 9], dtype=np.uint8)
PICTURES = RANDOM.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)
KINDS = np.arange(100, dtype=np.uint8) % 10


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_mnist(folder: Path, pack: Callable[[bytes], bytes] = bytes, suffix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(IMAGES)))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(LABELS)))


def cifar_rows(labels: np.ndarray = KINDS) -> bytes:
    return np.concatenate([labels[:, None], PICTURES.reshape(100, -1)], axis=1).tobytes()


def write_cifar_binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(cifar_rows())


def write_cifar_webp(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    grid = PICTURES.transpose(2, 0, 3, 1).reshape(32, 3200, 3)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        Image.fromarray(grid).save(folder / f"{name}.webp", lossless=True, exact=True)
    np.save(folder / "train_labels.npy", np.tile(KINDS, 5))
    np.save(folder / "test_labels.npy", KINDS)


def test_digits_are_the_declared_split() -> None:
    source = digits()
    x, y = source.train.tensors
    assert (len(x), len(source.test)) == (source.records, 360) and x.shape[1:] == source.input_shape
    assert x.dtype == torch.float32 and y.dtype == torch.int64 and x.min() == 0 and x.max() == 1
    assert source.test.tensors[1][:3].tolist() == [
        0,
        5,
        0,
    ]  # records 0, 5 and 10 of scikit-learn's order


@pytest.mark.parametrize(
    ("where", "pack", "suffix"),
    [
        ("mnist", bytes, ""),
        ("mnist", gzip.compress, ".gz"),
        (".", bytes, ""),
        ("MNIST/raw", bytes, ""),
        ("mnist/MNIST/raw", gzip.compress, ".gz"),
    ],
)
def test_every_layout_of_mnist_is_read(
    where: str, pack: Callable[[bytes], bytes], suffix: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path / where, pack, suffix)
    source = load("mnist", tmp_path)
    x, y = source.train.tensors
    assert (
        torch.equal(x, torch.from_numpy(IMAGES).float().unsqueeze(1) / 255)
        and y.tolist() == LABELS.tolist()
    )
    assert x.dtype == torch.float32 and x.shape[1:] == source.input_shape


def test_fashion_mnist_is_looked_for_in_its_own_folder(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion-mnist")
    assert load("fashion-mnist", tmp_path).name == "fashion-mnist"
    with pytest.raises(DataError, match="Put the files of 'mnist' there"):
        load("mnist", tmp_path)


def test_records_are_declared_and_not_counted(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    assert (
        load("mnist", tmp_path).records == 60_000
    )  # a plan made from it is the same for neighbouring files


def test_folder_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("DPFY_DATA", str(tmp_path))
    assert len(load("mnist").train) == 7


def test_without_a_folder_the_remedy_is_named() -> None:
    with pytest.raises(DataError, match=r"data_dir=…, or set the environment variable DPFY_DATA"):
        load("mnist")


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match="'cifar-10'"):
        load("cifar10")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "train-images-idx3-ubyte",
            idx(LABELS),
            "found magic number 0x00000801, expected 0x00000803",
        ),
        ("train-images-idx3-ubyte", b"", "found magic number 0x, expected"),
        ("train-images-idx3-ubyte", idx(IMAGES)[:9], "found 9 bytes, expected a header of 16"),
        (
            "train-images-idx3-ubyte",
            idx(IMAGES)[:-1],
            "found 5503 bytes, expected 5504 for the 7×28×28 of its header",
        ),
        ("train-images-idx3-ubyte", idx(IMAGES) + b"\0", "found 5505 bytes, expected 5504"),
        (
            "train-images-idx3-ubyte",
            idx(IMAGES[:, :27]),
            "found images of 27×28 pixels, expected 28×28",
        ),
        ("train-labels-idx1-ubyte", idx(LABELS[:-1]), "found 6 labels, expected 7"),
        (
            "t10k-labels-idx1-ubyte",
            idx(LABELS + 1),
            "found a label outside the classes, expected labels from 0 to 9",
        ),
        ("t10k-labels-idx1-ubyte", None, "found no such file"),
    ],
)
def test_malformed_idx_file_is_named(
    file: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=f"{re.escape(file)}: {re.escape(message)}"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-9],
        lambda packed: packed[:5],
        lambda packed: b"no gzip",
        lambda packed: packed[:30] + b"?" * 9,
    ],
)
def test_damaged_gzip_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    write_mnist(tmp_path, gzip.compress, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte\.gz: found that it cannot be read"
    ):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("where", "write"),
    [
        ("cifar-10", write_cifar_binary),
        ("cifar-10-batches-bin", write_cifar_binary),
        (".", write_cifar_binary),
        ("cifar-10/cifar-10-batches-bin", write_cifar_binary),
        ("cifar-10", write_cifar_webp),
    ],
)
def test_both_forms_of_cifar_give_the_same_records(
    where: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / where)
    source = cifar10(tmp_path)
    x, y = source.train.tensors
    assert torch.equal(x[100:200], torch.from_numpy(PICTURES).float() / 255)
    assert (
        y.tolist() == np.tile(KINDS, 5).tolist()
        and len(source.test) == 100
        and source.records == 50_000
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar_rows()[:-1], "found 307299 bytes, expected a multiple of 3073"),
        (cifar_rows(KINDS + 1), "found a label outside the classes"),
        (None, "found no such file"),
    ],
)
def test_malformed_cifar_binary_is_named(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    write_cifar_binary(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    if content is not None:
        (tmp_path / "data_batch_4.bin").write_bytes(content)
    with pytest.raises(DataError, match=rf"data_batch_4\.bin: {message}"):
        cifar10(tmp_path)


def test_malformed_webp_is_named(tmp_path: Path) -> None:
    write_cifar_webp(tmp_path)
    path = tmp_path / "data_batch_2.webp"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"data_batch_2\.webp: found no readable WebP picture"):
        cifar10(tmp_path)
    Image.new("RGB", (640, 32)).save(path, lossless=True)
    with pytest.raises(DataError, match=r"data_batch_2\.webp: found a picture of 640×32 pixels"):
        cifar10(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"data_batch_2\.webp: found no such file"):
        cifar10(tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.tile(KINDS, 4), "found 400 labels, expected 500"),
        (np.tile(KINDS, 5) + 1, "found a label outside the classes"),
        (np.zeros(500), r"found labels of shape \(500,\) and type float64"),
        (np.array([None] * 500), "found no readable array of numbers"),
        (None, "found no such file"),
    ],
)
def test_malformed_label_array_is_named(
    labels: np.ndarray | None, message: str, tmp_path: Path
) -> None:
    write_cifar_webp(tmp_path)
    path = tmp_path / "train_labels.npy"
    path.unlink() if labels is None else np.save(path, labels)
    with pytest.raises(DataError, match=rf"train_labels\.npy: {message}"):
        cifar10(tmp_path)
