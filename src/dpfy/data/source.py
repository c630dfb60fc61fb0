"""What a loader hands over: records to protect, records to test on, and the public facts about
both.
"""

from dataclasses import dataclass

from torch.utils.data import TensorDataset


@dataclass(frozen=True)
class DataSource:
    """A benchmark whose unit of privacy is one record.

    ``records`` is the published number of training records, a constant of the benchmark: a plan may
    use it, because it stays the same when a record is added or removed. Fields come in the order
    that a loss expects, input then label.

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
    """Number of token ids where the input is a sequence of tokens."""


@dataclass(frozen=True)
class UserSource:
    """A benchmark whose unit of privacy is all that one user contributed.

    ``train[i]`` and ``test[i]`` belong to the same user. Held-out text of a user is still that
    user's text: evaluating on ``test`` is free here because the benchmark is public, not because
    the guarantee covers it.
    """

    name: str
    train: tuple[TensorDataset, ...]
    test: tuple[TensorDataset, ...]
    users: int
    classes: int
    input_shape: tuple[int, ...]
    description: str
