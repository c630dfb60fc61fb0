"""Made-up input of the public shape, so that a model is judged without looking at a record's values."""

from collections.abc import Mapping
from typing import Any

import torch

from dpfy.training.chunk import Chunk, Column, UnsupportedField

_MADE_UP: dict[type, Any] = {str: "a", bytes: b"", bool: False, int: 0, float: 0.0}
_WOBBLE = 2.0**-6


def synthetic(example: Chunk, size: int, seed: int, scale: float, *, declared: bool) -> Chunk:
    """Return ``size`` made-up records shaped like ``example``.

    Numbers are uniform in [0, ``scale``), which suits inputs and probabilities alike; whole numbers (labels, tokens)
    are 0 or 1. An example that the user ``declared`` is public and valid: then its own rows are used, and a single
    row is varied a little.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(example.size, (size,), generator=generator)

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return Column(leaf[row] if declared else _MADE_UP[type(leaf[0])] for row in rows.tolist())
        numbers = leaf.is_floating_point() or leaf.is_complex()
        if declared:
            taken = leaf[rows.to(leaf.device)]
            wobble = 1 + _WOBBLE * torch.rand(taken.shape, generator=generator).to(leaf.device)
            return (taken * wobble).to(leaf.dtype) if numbers and example.size == 1 else taken
        shape = (size, *leaf.shape[1:])
        made = torch.rand(shape, generator=generator) * scale
        return (made if numbers else torch.randint(2, shape, generator=generator)).to(leaf.dtype).to(leaf.device)

    return example.map(fake, size)


def with_row_from(chunk: Chunk, other: Chunk, position: int) -> Chunk:
    """Return ``chunk`` with the record at ``position`` taken from ``other``."""
    others = iter(other.leaves())

    def swap(leaf: Any) -> Any:
        replacement = next(others)
        swapped = leaf.clone() if isinstance(leaf, torch.Tensor) else Column(leaf)
        swapped[position] = replacement[position]
        return swapped

    return chunk.map(swap, chunk.size)


def shortened(record: Any, keep: float) -> Any:
    """Return a made-up raw record of the same structure whose sequences have ``keep`` of the length."""
    if hasattr(record, "shape") and hasattr(record, "dtype"):
        made = torch.zeros_like(record) if isinstance(record, torch.Tensor) else record * 0
        return made[: max(1, round(len(made) * keep))] if made.ndim else made
    if isinstance(record, Mapping):
        return {key: shortened(item, keep) for key, item in record.items()}
    if isinstance(record, tuple) and hasattr(record, "_fields"):
        return type(record)(*(shortened(item, keep) for item in record))
    if isinstance(record, str):
        return " ".join(["a"] * max(1, round(8 * keep)))  # words, since text is padded by words or by letters
    if isinstance(record, list) and record and type(record[0]) in _MADE_UP:
        return [_MADE_UP[type(record[0])]] * max(1, round(len(record) * keep))
    if isinstance(record, list | tuple):
        return type(record)(shortened(item, keep) for item in record)
    if type(record) in _MADE_UP:
        return _MADE_UP[type(record)]
    raise UnsupportedField(f"a field of type {type(record).__name__} cannot be made up")
