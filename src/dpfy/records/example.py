"""The declared example: what is taken as public about the records, before any of them is read.

The engine, the sizes of blocks and with them the scale of the noise follow from the plan, the model
and this example. None of its values is a record's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset, default_collate

from dpfy.errors import DataError, InvalidArgument
from dpfy.gradients.chunk import Chunk, UnsupportedField
from dpfy.gradients.synthetic import can_vary

_REMEDY = (
    "Pass example_input=, a collated batch of synthetic examples of the largest shape that a "
    "record may have, "
    "such as example_input=(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.long)), or give "
    "the data set "
    'an attribute example_input; settings name it as example = "module:name".'
)


@dataclass(frozen=True)
class Declared:
    """An example that declares the public shape of the records.

    Args:
        chunk: The example as a chunk.
        how: Where it was declared.
        record: A raw record that the example was collated from, if there is one.
    """

    chunk: Chunk
    how: str
    record: Any = None

    @property
    def valid(self) -> bool:
        """Whether the values are those of valid records; stacked tensors declare shapes only."""
        return self.how != STACKED

    @property
    def shapes(self) -> str:
        """The types and largest shapes of a record's fields, in words."""
        return ", ".join(
            f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape[1:])}"
            if isinstance(leaf, torch.Tensor)
            else type(leaf[0]).__name__
            for leaf in self.chunk.leaves()
        )


GIVEN, BY_DATA, STACKED = "example_input", "data set", "stacked tensors"


def declared_example(
    data: Any, collate_fn: Callable[[list[Any]], Any] | None, example_input: Any = None
) -> Declared:
    """Return what is declared about the records of a data set, without reading one.

    Args:
        data: A data set. Its attribute ``example_input`` declares the same as the argument, also
            inside
        ``Subset`` and ``ConcatDataset``. A ``TensorDataset`` needs none: its records have one
            shape
            by construction.
        collate_fn: The collate function of the run, or None for torch's default.
        example_input: A collated batch of synthetic examples. Its shapes are the largest that
            records
            may have.

    Returns:
        The example, and where it was declared.

    Raises:
        DataError: Nothing declares the shape of a record, or stacked tensors do not fit the
            declaration.

    *Formal guarantee*: the result depends on no record and not on the number of records.

    >>> data = TensorDataset(torch.randn(0, 5))
    >>> declared_example(data, None).chunk.arguments[0]
    tensor([[0., 0., 0., 0., 0.]])
    """
    found = None if example_input is None else Declared(as_chunk(example_input), GIVEN)
    own = _of_data(data, collate_fn, asked=found is None)
    if found is None:
        if own is None:
            raise DataError(
                "The shape of a record is not declared. It decides the engine and the scale of "
                f"the noise, so it must be public and is never read off the {type(data).__name__}. "
                f"{_REMEDY}"
            )
        return own
    if own is not None and own.how == STACKED and not own.chunk.fits(found.chunk):
        raise DataError(
            "The stacked tensors of the data set do not fit example_input: no record would "
            "contribute. Expected as many fields and axes, the same types, and no axis longer than "
            "declared."
        )
    return found


def as_chunk(example_input: Any) -> Chunk:
    """Return a declared example as a chunk; its first tensor or list of texts tells its rows."""
    try:
        chunk = Chunk.of(example_input, rows_of(example_input))
    except UnsupportedField as error:
        raise InvalidArgument(
            "Expected example_input to be a collated batch, tensors with one row per example: it "
            f"has {error}."
        ) from None
    if not any(map(can_vary, chunk.leaves())):
        raise InvalidArgument(
            "Expected example_input to have different rows: the probe changes one record and looks "
            "at the others. Give at least two that differ, or zeros, which declare a shape only."
        )
    return chunk


def rows_of(collated: Any) -> int:
    """Return the number of rows of a collated batch, by its first tensor or first column.

    Raises:
        InvalidArgument: It has no rows.
    """
    tensors, columns = [], []
    fields: list[Any] = [collated]
    while fields:
        field = fields.pop(0)
        if hasattr(field, "shape") and hasattr(field, "dtype"):
            tensors.append(len(field) if len(field.shape) else 0)
        elif isinstance(field, Mapping):
            fields = [*field.values(), *fields]
        elif isinstance(field, list | tuple):
            if field and all(isinstance(item, str | bytes | bool | int | float) for item in field):
                columns.append(len(field))
            else:
                fields = [*field, *fields]
    if not next(iter(tensors + columns), 0):
        raise InvalidArgument(
            "Expected example_input to be a collated batch: tensors with one row per example, and "
            "at least one row."
        )
    return (tensors + columns)[0]


def _of_data(
    data: Any, collate_fn: Callable[[list[Any]], Any] | None, asked: bool
) -> Declared | None:
    """Return what a data set declares about its records, or None; ``asked``, it must not fail."""
    given = getattr(data, "example_input", None)
    if given is not None:
        return Declared(as_chunk(given), BY_DATA)
    if type(data) is TensorDataset:
        return _of_tensors(data, collate_fn, asked)
    if type(data) is Subset:
        return _of_data(data.dataset, collate_fn, asked)
    if type(data) is ConcatDataset:
        parts = [_of_data(part, collate_fn, asked) for part in data.datasets]
        first = parts[0] if parts else None
        same = first is not None and all(
            part is not None and part.chunk.signature == first.chunk.signature for part in parts
        )
        return first if same else None
    return None


def _of_tensors(
    data: TensorDataset, collate_fn: Callable[[list[Any]], Any] | None, asked: bool
) -> Declared | None:
    """Return an example of zeros, of the shape that stacked tensors have."""
    record = tuple(
        torch.zeros(tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
        for tensor in data.tensors
    )
    try:
        return Declared(Chunk.of((collate_fn or default_collate)([record]), 1), STACKED, record)
    except UnsupportedField as error:
        if asked:
            raise DataError(
                f"A collated record has {error}. Change the data set or collate_fn."
            ) from None
    except Exception as error:  # of the user's own code, on zeros: the text quotes no record
        if asked:
            raise DataError(
                f"collate_fn fails on a synthetic record of zeros ({type(error).__name__}). "
                f"{_REMEDY}"
            ) from None
    return None
