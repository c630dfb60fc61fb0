"""One physical chunk of collated records, and the structures that a collate function may produce."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Chunk:
    """Collated records, as the positional arguments of ``loss_fn``. Sensitive: never printed."""

    arguments: tuple[Any, ...]
    size: int

    @classmethod
    def of(cls, collated: Any, size: int) -> "Chunk":
        """Wrap what a collate function returned: a tuple or list is positional, anything else is one argument."""
        return cls(tuple(collated) if isinstance(collated, list | tuple) else (collated,), size)

    def record(self, position: int) -> "Chunk":
        """Return the chunk that holds one of the records alone."""
        return Chunk(_map(lambda leaf: leaf[position : position + 1], self.arguments, self.size), 1)

    def flatten(self) -> tuple[list[torch.Tensor], Callable[[list[torch.Tensor]], "Chunk"]]:
        """Return the tensors, and the function that puts others of one record in their places."""
        tensors = self.leaves()
        if not all(isinstance(leaf, torch.Tensor) for leaf in tensors):
            raise TypeError("only tensors can be vectorised")

        def rebuild(others: list[torch.Tensor]) -> Chunk:
            remaining = iter(others)
            return Chunk(_map(lambda _: next(remaining), self.arguments, self.size), 1)

        return tensors, rebuild

    def leaves(self) -> list[Any]:
        """Return every batched leaf, in order."""
        found: list[Any] = []
        _map(found.append, self.arguments, self.size)
        return found

    def map(self, function: Callable[[Any], Any], size: int) -> "Chunk":
        """Return a chunk of ``size`` with every batched leaf replaced."""
        return Chunk(_map(function, self.arguments, self.size), size)

    def is_batched(self) -> bool:
        """Whether every leaf has one row per record."""
        return all(getattr(leaf, "ndim", 1) and len(leaf) == self.size for leaf in self.leaves())

    def __repr__(self) -> str:
        return "Chunk(sensitive)"


def _map(function: Callable[[Any], Any], value: Any, size: int) -> Any:
    """Apply ``function`` to every batched leaf: a tensor, or a list of one plain value per record."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return type(value)({key: _map(function, item, size) for key, item in value.items()})  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(function, item, size) for item in value))
    if isinstance(value, list | tuple):
        if len(value) == size and not any(isinstance(item, torch.Tensor | Mapping | list | tuple) for item in value):
            return function(value)
        return type(value)(_map(function, item, size) for item in value)
    return value
