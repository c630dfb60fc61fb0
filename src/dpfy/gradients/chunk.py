"""A chunk of collated records, in the structures that can be taken apart record by record.

Tests: tests/records/test_example.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import le
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

_PLAIN = (str, bytes, bool, int, float)


class UnsupportedField(TypeError):
    """A field cannot be divided by records; the message names its type and never its value."""


class Column(list[Any]):
    """One plain value per record: a leaf, unlike a list of fields."""


@dataclass(frozen=True)
class Chunk:
    """Collated records, as the positional arguments of ``loss_fn``. Sensitive: never printed.

    Every leaf is a tensor with one row per record or a :class:`Column`; dicts, lists and tuples
    hold leaves. Where a unit of privacy has several rows, all units have the same number of them
    and the rows of a unit are consecutive.

    Args:
        arguments: The positional arguments of ``loss_fn``.
        size: The number of units of privacy: records, or users.
        rows: The number of rows per unit, 1 unless the unit is a user.
    """

    arguments: tuple[Any, ...]
    size: int
    rows: int = 1

    @classmethod
    def of(cls, collated: Any, size: int) -> "Chunk":
        """Wrap the result of a collate function.

        A tuple or list holds positional arguments; anything else is a single argument.
        """
        positional = isinstance(collated, list | tuple) and not isinstance(collated, PackedSequence)
        fields = collated if positional and not _is_column(collated, size) else (collated,)
        return cls(tuple(_normalised(field, size) for field in fields), size)

    @classmethod
    def joined(cls, chunks: Sequence["Chunk"]) -> "Chunk":
        """Concatenate chunks of one signature."""
        columns = [
            list(leaves) for leaves in zip(*(chunk.leaves() for chunk in chunks), strict=True)
        ]
        joined = iter(
            torch.cat(column)
            if isinstance(column[0], torch.Tensor)
            else Column(chain.from_iterable(column))
            for column in columns
        )
        return chunks[0].map(lambda _: next(joined), sum(chunk.size for chunk in chunks))

    def record(self, position: int) -> "Chunk":
        """Return the chunk that holds a single one of the records."""
        return self.part(position, position + 1)

    def part(self, start: int, end: int) -> "Chunk":
        """Return the chunk of consecutive records from ``start`` to before ``end``."""

        def run(leaf: Any) -> Any:
            taken = leaf[start * self.rows : end * self.rows]
            return taken if isinstance(leaf, torch.Tensor) else Column(taken)

        return self.map(run, min(end, self.size) - start)

    def chosen(self, mask: torch.Tensor) -> "Chunk":
        """Return the chunk of the records where ``mask`` is true."""
        return self.taken(mask.repeat_interleave(self.rows).nonzero().flatten(), self.rows)

    def taken(self, places: torch.Tensor, rows: int) -> "Chunk":
        """Return the rows at ``places`` as a chunk in which every unit has ``rows`` of them."""
        found = self.map(
            lambda leaf: (
                leaf[places.to(leaf.device)]
                if isinstance(leaf, torch.Tensor)
                else Column(leaf[place] for place in places.tolist())
            ),
            len(places) // rows,
        )
        return replace(found, rows=rows)

    def flatten(self) -> tuple[list[torch.Tensor], Callable[[list[torch.Tensor]], "Chunk"]]:
        """Return the tensors, and a function that rebuilds a chunk of one record from others."""
        tensors = self.leaves()
        if not all(isinstance(leaf, torch.Tensor) for leaf in tensors):
            raise UnsupportedField("only tensors can be vectorised")

        def rebuild(others: list[torch.Tensor]) -> Chunk:
            remaining = iter(others)
            return self.map(lambda _: next(remaining), 1)

        return tensors, rebuild

    def leaves(self) -> list[Any]:
        """Return every leaf, in order."""
        found: list[Any] = []
        self.map(found.append, self.size)
        return found

    def map(self, function: Callable[[Any], Any], size: int) -> "Chunk":
        """Return a chunk of ``size`` with every leaf replaced."""
        return Chunk(
            tuple(_map(function, argument) for argument in self.arguments), size, self.rows
        )

    def copied(self) -> "Chunk":
        """Return the same records in memory of their own."""
        return self.map(
            lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else Column(leaf), self.size
        )

    @property
    def nbytes(self) -> int:
        """The bytes that the tensors take."""
        return sum(leaf.nbytes for leaf in self.leaves() if isinstance(leaf, torch.Tensor))

    @property
    def signature(self) -> tuple[Any, ...]:
        """The number of rows per unit, and the structure, shapes and types of one record.

        Chunks with equal signatures can be joined. Mappings with the same keys in another order
        differ, since their leaves are joined by position.
        """
        return (self.rows, *map(_signature, self.arguments))

    def fits(self, declared: "Chunk") -> bool:
        """Whether structure, types and numbers of axes are as declared, and no axis is longer."""
        return len(self.arguments) == len(declared.arguments) and all(
            map(_fits, self.arguments, declared.arguments)
        )

    def cut_to(self, other: "Chunk") -> "Chunk":
        """Return these records with every field cut to the size that it has in ``other``."""
        return replace(self, arguments=tuple(map(_cut, self.arguments, other.arguments)))

    def __repr__(self) -> str:
        return "Chunk(sensitive)"


def _normalised(value: Any, size: int) -> Any:
    """Return a field in the structures that a chunk may hold, or refuse its type."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, PackedSequence):
        raise UnsupportedField(
            "a PackedSequence, whose rows belong to several records; pad to a public length, give "
            "the lengths as a field, and let the model pack them"
        )
    if isinstance(value, torch.Tensor):
        if not value.ndim or len(value) != size:
            rows = f"{len(value)} rows" if value.ndim else "no rows"
            raise UnsupportedField(
                f"a tensor with {rows} for {size} records; every tensor needs one row per record"
            )
        if value.layout is not torch.strided:
            raise UnsupportedField(f"a tensor of layout {value.layout}; use .to_dense()")
        if not value.is_inference():
            return value.detach()
        # the caller may be in inference mode, whose tensors cannot be differentiated with
        with torch.inference_mode(False):
            return value.clone()
    if isinstance(value, Mapping):
        return _like(value, {key: _normalised(item, size) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_normalised(item, size) for item in value))
    if isinstance(value, list | tuple):
        return (
            Column(value)
            if _is_column(value, size)
            else type(value)(_normalised(item, size) for item in value)
        )
    raise UnsupportedField(
        f"a field of type {type(value).__name__}; expected tensors with one row per record, or "
        "lists with one text or number per record"
    )


def _signature(value: Any) -> Any:
    """Return the structure, shapes and types of one record's field."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape[1:]), value.dtype, value.device
    if isinstance(value, Column):
        return "column"
    if isinstance(value, Mapping):
        return type(value), tuple((key, _signature(item)) for key, item in value.items())
    return type(value), tuple(map(_signature, value))


def _fits(value: Any, declared: Any) -> bool:
    """Whether a field is as declared; a list fits a tuple, as torch's collation converts them."""
    if isinstance(value, torch.Tensor):
        return (
            isinstance(declared, torch.Tensor)
            and value.dtype == declared.dtype
            and value.ndim == declared.ndim
            and all(map(le, value.shape[1:], declared.shape[1:]))
        )
    if isinstance(value, Column) or isinstance(declared, Column | torch.Tensor):
        return isinstance(value, Column) and isinstance(declared, Column)
    if isinstance(value, Mapping):
        return (
            isinstance(declared, Mapping)
            and value.keys() == declared.keys()
            and all(_fits(item, declared[key]) for key, item in value.items())
        )
    return (
        not isinstance(declared, Mapping)
        and len(value) == len(declared)
        and all(map(_fits, value, declared))
    )


def _cut(value: Any, other: Any) -> Any:
    """Return a field cut to the size of another one."""
    if isinstance(value, torch.Tensor):
        return value[:, *(slice(size) for size in other.shape[1:])]
    if isinstance(value, Column):
        return value
    if isinstance(value, Mapping):
        return _like(value, {key: _cut(value[key], item) for key, item in other.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_cut, value, other))
    return type(value)(map(_cut, value, other))


def _is_column(value: Any, size: int) -> bool:
    """Whether a field is a list of one plain value per record."""
    return (
        isinstance(value, list | tuple)
        and len(value) == size
        and all(type(item) in _PLAIN for item in value)
    )


def _like(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return the values in a mapping of the same type, if that can be made from a dict."""
    try:
        return type(mapping)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to every leaf."""
    if isinstance(value, torch.Tensor | Column):
        return function(value)
    if isinstance(value, Mapping):
        return _like(value, {key: _map(function, item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(function, item) for item in value))
    return type(value)(_map(function, item) for item in value)
