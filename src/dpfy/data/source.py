"""The result of a loader: records to protect, records to test on, and public facts about both.

Tests: tests/data/test_catalog.py.
"""

from dataclasses import dataclass

from torch.utils.data import TensorDataset


@dataclass(frozen=True)
class DataSource:
    """A benchmark whose unit of privacy is one record.

    Fields of a record come in the order that a loss expects, input then label.

    Args:
        name: the name of the benchmark.
        train: the records to protect.
        test: the records to test on.
        records: the published number of training records, a constant of the benchmark. A plan may
            use it, because it stays the same when a record is added or removed.
        classes: the number of classes.
        input_shape: the shape of one input.
        unit: the unit of privacy in words.
        description: a sentence about the task, with a reference.
        vocabulary: the number of token ids where the input is a sequence of tokens, else None.

    >>> from dpfy.data import load
    >>> source = load("digits")
    >>> source.records, source.input_shape, source.classes, source.unit
    (1437, (1, 8, 8), 10, 'one image')
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    records: int
    classes: int
    input_shape: tuple[int, ...]
    unit: str
    description: str
    vocabulary: int | None = None


@dataclass(frozen=True)
class UserSource:
    """A benchmark whose unit of privacy is everything that one user contributed.

    ``train[i]`` and ``test[i]`` belong to the same user. Held-out text of a user is still that
    user's text: evaluating on ``test`` is free here because the benchmark is public, not because
    the guarantee covers it.

    Args:
        name: the name of the benchmark.
        train: the training records of each user.
        test: the held-out records of each user.
        users: the published number of users.
        classes: the number of classes.
        input_shape: the shape of one input.
        description: a sentence about the task.
    """

    name: str
    train: tuple[TensorDataset, ...]
    test: tuple[TensorDataset, ...]
    users: int
    classes: int
    input_shape: tuple[int, ...]
    description: str
