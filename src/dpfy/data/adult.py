"""UCI Adult, the census-income table.

The encoding follows from the table's documentation and from nothing that its rows contain.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from dpfy.data import files
from dpfy.data.files import malformed
from dpfy.data.source import DataSource

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)

# The categories that the documentation (adult.names) lists. Reading them off the rows would let one
# person who is the only one of a category change the width of everybody's input.
CATEGORIES: dict[str, tuple[str, ...]] = {
    column: tuple(listed.split())
    for column, listed in {
        "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
        "Without-pay Never-worked",
        "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th "
        "7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
        "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
        "Married-spouse-absent Married-AF-spouse",
        "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial "
        "Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing "
        "Transport-moving Priv-house-serv Protective-serv Armed-Forces",
        "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
        "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
        "sex": "Female Male",
        "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
        "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines "
        "Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos "
        "Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
        "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
    }.items()
}

# Low and high end of each number, mapped to 0 and 1. Incomes span orders of magnitude, hence their
# logarithm. The survey weight (fnlwgt) says how the sample was drawn and nothing about the person:
# it is left out.
RANGES: dict[str, tuple[float, float]] = {
    "age": (0, 100),
    "education-num": (1, 16),
    "hours-per-week": (0, 100),
}
LOGARITHMIC: dict[str, float] = {"capital-gain": 100_000, "capital-loss": 10_000}

_LABELS = {"<=50K": 0, ">50K": 1}
FEATURES = len(RANGES) + len(LOGARITHMIC) + sum(len(listed) + 1 for listed in CATEGORIES.values())


def adult(data_dir: str | Path | None = None) -> DataSource:
    """Load UCI Adult from ``adult.data`` and ``adult.test``, plain or .gz.

    Numbers are scaled by public constants and clipped to [0, 1]. Each category has a column; a
    missing or unknown category sets the last column of its attribute. A number that cannot be read
    becomes NaN: a bad record, which contributes zero to training.

    Args:
        data_dir: the folder of the files, or one that has them in ``adult``; None takes the
            environment variable ``DPFY_DATA``.

    Returns:
        The data set.

    Raises:
        DataError: if a file is missing or malformed.

    Reference: Becker and Kohavi 1996.
    """
    folder = files.locate("adult", data_dir, ["adult.data", "adult.test"])
    return DataSource(
        name="adult",
        train=_table(folder, "adult.data"),
        test=_table(folder, "adult.test"),
        records=32_561,
        classes=2,
        input_shape=(FEATURES,),
        unit="one person",
        description="Does a person earn more than 50 000 dollars? Census of 1994 (Becker and "
        "Kohavi 1996).",
    )


def _table(folder: Path, file: str) -> TensorDataset:
    rows = _rows(folder, file)
    columns = dict(
        zip(COLUMNS, zip(*rows, strict=True) if rows else [()] * len(COLUMNS), strict=True)
    )
    labels = [_LABELS.get(value.removesuffix("."), -1) for value in columns["income"]]
    if -1 in labels:
        raise malformed(
            folder / file, "a label outside the classes", "<=50K or >50K in the last column"
        )
    parts = [_linear(columns[name], *ends) for name, ends in RANGES.items()]
    parts += [_logarithmic(columns[name], top) for name, top in LOGARITHMIC.items()]
    parts += [_one_hot(columns[name], listed) for name, listed in CATEGORIES.items()]
    features = torch.from_numpy(np.concatenate(parts, axis=1))
    return TensorDataset(features, torch.tensor(labels, dtype=torch.int64))


def _rows(folder: Path, file: str) -> list[list[str]]:
    """Return the fields of every line that is neither empty nor a comment."""
    try:
        lines = files.read_bytes(folder, file).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise malformed(
            folder / file, "bytes that are not ASCII", "a table of comma-separated text"
        ) from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("|"):
            fields = [field.strip() for field in line.split(",")]
            if len(fields) != len(COLUMNS):
                raise malformed(
                    folder / file, f"{len(fields)} fields in line {number}", f"{len(COLUMNS)}"
                )
            rows.append(fields)
    return rows


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _linear(column: Sequence[str], low: float, high: float) -> NDArray[np.float32]:
    values = (np.array([_number(text) for text in column]) - low) / (high - low)
    return np.clip(values, 0, 1)[:, None].astype(np.float32)


def _logarithmic(column: Sequence[str], top: float) -> NDArray[np.float32]:
    values = np.clip([_number(text) for text in column], 0, top)
    return (np.log1p(values) / math.log1p(top))[:, None].astype(np.float32)


def _one_hot(column: Sequence[str], listed: tuple[str, ...]) -> NDArray[np.float32]:
    """Return one column per listed category, and a last one for everything else."""
    position = {category: number for number, category in enumerate(listed)}
    found = np.array([position.get(text, len(listed)) for text in column], dtype=np.int64)
    return np.eye(len(listed) + 1, dtype=np.float32)[found]
