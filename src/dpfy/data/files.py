"""Finding and opening the files of a data set.

Every fault of a file is a DataError that names the file. Messages hold facts about files (names,
sizes, magic numbers, line numbers) and never a value of a record. Nothing here unpickles, because a
pickle runs the code that it contains.

Tests: tests/data/test_images.py.
"""

import gzip
import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfy.errors import DataError

VARIABLE = "DPFY_DATA"
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    zlib.error,
    zipfile.BadZipFile,
    NotImplementedError,
)


def missing(path: Path) -> DataError:
    """Return the error for a file that is missing beside others."""
    return DataError(
        f"{path}: found no such file, expected it beside the others. Complete the folder."
    )


def malformed(
    path: Path, found: str, expected: str, remedy: str = "Fetch the file again."
) -> DataError:
    """Return the error for a file that is not what its name promises."""
    return DataError(f"{path}: found {found}, expected {expected}. {remedy}")


def locate(
    name: str, data_dir: str | Path | None, needed: Sequence[str], subfolders: Sequence[str] = ()
) -> Path:
    """Return the folder that holds any of the ``needed`` files.

    It is ``data_dir`` itself, its folder ``name``, or one of the subfolders.

    >>> locate("mnist", "/nowhere", ["train-images-idx3-ubyte"])  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    dpfy.errors.DataError: None of train-images-idx3-ubyte is in /nowhere/mnist or /nowhere.
    Put the files of 'mnist' there, or name another data_dir.
    """
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not given:
        raise DataError(
            f"The data set {name!r} is read from files and no folder was given. Pass data_dir=…, "
            f"or set the environment variable {VARIABLE}; only 'digits' needs no files."
        )
    root = Path(given).expanduser()
    folders = [
        root / name,
        *(root / name / sub for sub in subfolders),
        *(root / sub for sub in subfolders),
        root,
    ]
    for folder in folders:
        if any(holds(folder, file) for file in needed):
            return folder
    raise DataError(
        f"None of {', '.join(needed)} is in {' or '.join(map(str, folders))}. Put the files of "
        f"{name!r} there, or name another data_dir."
    )


def holds(folder: Path, file: str) -> bool:
    """Return whether the folder has the file, plain or compressed with gzip."""
    return (folder / file).is_file() or (folder / f"{file}.gz").is_file()


def read_bytes(folder: Path, file: str) -> bytes:
    """Return the content of a file that is there plain or as ``.gz``."""
    path = folder / file
    packed = folder / f"{file}.gz"
    if not holds(folder, file):
        raise missing(path)
    try:
        return path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        shown = path if path.is_file() else packed
        raise malformed(
            shown, f"that it cannot be read ({type(error).__name__})", "a complete file"
        ) from None


def read_arrays(path: Path, *forms: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of the first complete form in an ``.npz`` file.

    Arrays of Python objects are refused.
    """
    if not path.is_file():
        raise missing(path)
    if not zipfile.is_zipfile(path):
        raise malformed(path, "no readable archive", "an .npz of plain arrays")
    try:
        # numpy would leave a file open that it opens itself.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = next((form for form in forms if set(form) <= set(archive.files)), None)
            arrays = {name: archive[name] for name in names or ()}
    except _DAMAGE as error:
        if "allow_pickle" in str(error):
            raise malformed(
                path,
                "pickled objects, which may run any code when they are read",
                "plain arrays",
                "Save the numbers as flat integer arrays.",
            ) from None
        raise malformed(path, "no readable archive", "an .npz of plain arrays") from None
    if names is None:
        raise malformed(
            path, "other arrays", " or ".join(f"the arrays {', '.join(form)}" for form in forms)
        )
    return arrays


def read_array(path: Path) -> NDArray[Any]:
    """Return the array of an ``.npy`` file; an array of Python objects is refused."""
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise missing(path) from None
    except _DAMAGE:
        raise malformed(path, "no readable array of numbers", "a plain .npy file") from None
    if not isinstance(found, np.ndarray):
        raise malformed(path, "an archive", "a plain .npy file")
    return found


def mapped_array(path: Path) -> NDArray[Any]:
    """Return the array of an ``.npy`` file without reading it into memory."""
    if not path.is_file():
        raise missing(path)
    try:
        found: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except _DAMAGE:
        raise malformed(path, "no readable array of numbers", "a plain .npy file") from None
    return found


def check_labels(path: Path, labels: NDArray[Any], records: int, classes: int) -> NDArray[np.int64]:
    """Return the labels as int64 if there is one per record and each is one of the classes."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise malformed(
            path,
            f"labels of shape {labels.shape} and type {labels.dtype}",
            "one whole number per record",
        )
    if len(labels) != records:
        raise malformed(
            path,
            f"{len(labels)} labels",
            f"{records}, one per record of the file that it belongs to",
        )
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise malformed(path, "a label outside the classes", f"labels from 0 to {classes - 1}")
    return labels.astype(np.int64)
