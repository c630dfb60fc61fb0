"""Image benchmarks: digits, MNIST, Fashion-MNIST and CIFAR-10.

The digits come with scikit-learn, the MNIST family is read from IDX files, and CIFAR-10 from the
official binary files or from lossless WebP.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from dpfy._extras import require
from dpfy.data import files
from dpfy.data.files import malformed
from dpfy.data.source import DataSource
from dpfy.errors import DataError

_UBYTE = 0x08  # the IDX code of unsigned bytes
_IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_CIFAR_BATCHES = {
    "train": [f"data_batch_{number}" for number in range(1, 6)],
    "test": ["test_batch"],
}
_CIFAR_ROW = 1 + 3 * 32 * 32  # a label, then the red, the green and the blue plane
_CIFAR_GRID = 100  # images in a row of a WebP batch


def digits() -> DataSource:
    """Load the 8×8 digits that come with scikit-learn; every fifth image is public and held out.

    Returns:
        The data set.

    >>> len(digits().test)
    360
    """
    require("sklearn", "demo")
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # slow to import, and only needed here

    found = load_digits()
    images = torch.from_numpy(found.images).float().div_(16).unsqueeze(1)
    labels = torch.from_numpy(found.target).long()
    held_out = torch.arange(len(images)) % 5 == 0
    return DataSource(
        name="digits",
        train=TensorDataset(images[~held_out], labels[~held_out]),
        test=TensorDataset(images[held_out], labels[held_out]),
        records=1437,
        classes=10,
        input_shape=(1, 8, 8),
        unit="one image",
        description="Handwritten digits of 43 people, 8×8 grey (UCI, embedded in scikit-learn).",
    )


def mnist(data_dir: str | Path | None = None) -> DataSource:
    """Load MNIST from its four IDX files, plain or .gz.

    Args:
        data_dir: the folder of the files, or one that has them in ``mnist`` or ``MNIST/raw``; None
            takes the environment variable ``DPFY_DATA``.

    Returns:
        The data set.

    Raises:
        DataError: if a file is missing or malformed.

    Reference: LeCun et al. 1998.
    """
    return _idx_source(
        "mnist", data_dir, "MNIST/raw", "Handwritten digits, 28×28 grey (LeCun et al. 1998)."
    )


def fashion_mnist(data_dir: str | Path | None = None) -> DataSource:
    """Load Fashion-MNIST from its four IDX files, plain or .gz.

    Args:
        data_dir: the folder of the files, or one that has them in ``fashion-mnist`` or
            ``FashionMNIST/raw``; None takes the environment variable ``DPFY_DATA``.

    Returns:
        The data set.

    Raises:
        DataError: if a file is missing or malformed.

    Reference: Xiao et al. 2017.
    """
    return _idx_source(
        "fashion-mnist", data_dir, "FashionMNIST/raw", "Clothes, 28×28 grey (Xiao et al. 2017)."
    )


def cifar10(data_dir: str | Path | None = None) -> DataSource:
    """Load CIFAR-10 from the official binary files, or from one lossless WebP grid per batch.

    The WebP form needs Pillow. Each ``data_batch_n.webp`` is a grid of 100 images per row, in the
    original order, with the labels of all training batches in ``train_labels.npy`` and those of
    ``test_batch.webp`` in ``test_labels.npy``.

    Args:
        data_dir: the folder of the files, or one that has them in ``cifar-10`` or
            ``cifar-10-batches-bin``; None takes the environment variable ``DPFY_DATA``.

    Returns:
        The data set.

    Raises:
        DataError: if a file is missing or malformed, or if WebP cannot be read.

    Reference: Krizhevsky 2009.
    """
    forms = {"data_batch_1.bin": _cifar_binary, "data_batch_1.webp": _cifar_webp}
    folder = files.locate("cifar-10", data_dir, list(forms), ["cifar-10-batches-bin"])
    read = next(form for file, form in forms.items() if files.holds(folder, file))
    return DataSource(
        name="cifar-10",
        train=read(folder, "train"),
        test=read(folder, "test"),
        records=50_000,
        classes=10,
        input_shape=(3, 32, 32),
        unit="one image",
        description="Photographs of ten kinds of things, 32×32 RGB (Krizhevsky 2009).",
    )


def _dataset(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> TensorDataset:
    """Return bytes (N, C, H, W) as float32 in [0, 1], with their labels."""
    scaled = torch.from_numpy(np.divide(images, 255, dtype=np.float32))
    return TensorDataset(scaled, torch.from_numpy(labels))


def _idx_source(
    name: str, data_dir: str | Path | None, subfolder: str, description: str
) -> DataSource:
    folder = files.locate(
        name, data_dir, [file for pair in _IDX_FILES.values() for file in pair], [subfolder]
    )
    return DataSource(
        name=name,
        train=_idx_pair(folder, *_IDX_FILES["train"]),
        test=_idx_pair(folder, *_IDX_FILES["test"]),
        records=60_000,
        classes=10,
        input_shape=(1, 28, 28),
        unit="one image",
        description=description,
    )


def _idx_pair(folder: Path, image_file: str, label_file: str) -> TensorDataset:
    images, labels = read_idx(folder, image_file, 3), read_idx(folder, label_file, 1)
    if images.shape[1:] != (28, 28):
        raise malformed(
            folder / image_file, f"images of {images.shape[1]}×{images.shape[2]} pixels", "28×28"
        )
    return _dataset(
        images[:, None], files.check_labels(folder / label_file, labels, len(images), classes=10)
    )


def read_idx(folder: Path, file: str, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of an IDX file of unsigned bytes, plain or .gz."""
    content, path = files.read_bytes(folder, file), folder / file
    magic, expected = content[:4], bytes([0, 0, _UBYTE, dimensions])
    if magic != expected:
        raise malformed(path, f"magic number 0x{magic.hex()}", f"0x{expected.hex()}")
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise malformed(path, f"{len(content)} bytes", f"a header of {header}")
    shape = [int(size) for size in np.frombuffer(content, ">u4", dimensions, offset=4)]
    if len(content) != header + math.prod(shape):
        sizes = "×".join(map(str, shape))
        raise malformed(
            path,
            f"{len(content)} bytes",
            f"{header + math.prod(shape)} for the {sizes} of its header",
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _cifar_binary(folder: Path, part: str) -> TensorDataset:
    rows = []
    for batch in _CIFAR_BATCHES[part]:
        content, path = files.read_bytes(folder, f"{batch}.bin"), folder / f"{batch}.bin"
        if len(content) % _CIFAR_ROW:
            raise malformed(
                path,
                f"{len(content)} bytes",
                f"a multiple of {_CIFAR_ROW}, a label and an image each",
            )
        found = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR_ROW)
        files.check_labels(path, found[:, 0], len(found), classes=10)
        rows.append(found)
    joined = np.concatenate(rows)
    return _dataset(joined[:, 1:].reshape(-1, 3, 32, 32), joined[:, 0].astype(np.int64))


def _cifar_webp(folder: Path, part: str) -> TensorDataset:
    images = np.concatenate(
        [_webp_grid(folder / f"{batch}.webp") for batch in _CIFAR_BATCHES[part]]
    )
    path = folder / f"{part}_labels.npy"
    return _dataset(
        images, files.check_labels(path, files.read_array(path), len(images), classes=10)
    )


def _webp_grid(path: Path) -> NDArray[Any]:
    """Return the images of a grid, as bytes (N, 3, 32, 32)."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(
            f"{path}: reading WebP needs Pillow. Install it, or use the official binary files."
        ) from None
    if not path.is_file():
        raise files.missing(path)
    try:
        with Image.open(path, formats=["WEBP"]) as picture:
            width, height = picture.size
            if width != 32 * _CIFAR_GRID or height % 32:
                raise malformed(
                    path,
                    f"a picture of {width}×{height} pixels",
                    "3200 across and a multiple of 32 down",
                )
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, EOFError):
        raise malformed(
            path,
            "no readable WebP picture",
            "a lossless WebP grid",
            "Fetch the file again, or install a Pillow that reads WebP.",
        ) from None
    return (
        pixels.reshape(-1, 32, _CIFAR_GRID, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
    )
