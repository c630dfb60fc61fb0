"""Made-up input of the public shape, so that a model is judged without looking at a record's values."""

from collections.abc import Mapping
from typing import Any

import torch

from dpfy.training.chunk import Chunk


def synthetic(example: Chunk, size: int, seed: int, scale: float, *, declared: bool) -> Chunk:
    """Return ``size`` made-up records shaped like ``example``.

    Numbers are uniform in [0, ``scale``), which suits inputs and probabilities alike. Whole numbers (labels, tokens)
    are 0 or 1, unless the example was ``declared`` by the user: then its own values are valid, and public.
    """
    generator = torch.Generator().manual_seed(seed)

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return [leaf[0]] * size if declared else [_fake_plain(leaf[0])] * size
        shape = (size, *leaf.shape[1:])
        if leaf.is_floating_point() or leaf.is_complex():
            return (torch.rand(shape, generator=generator) * scale).to(leaf.dtype).to(leaf.device)
        if declared:
            rows = torch.randint(len(leaf), (size,), generator=generator)
            return leaf[rows.to(leaf.device)]
        return torch.randint(2, shape, generator=generator).to(leaf.dtype).to(leaf.device)

    return example.map(fake, size)


def with_row_from(chunk: Chunk, other: Chunk, position: int) -> Chunk:
    """Return ``chunk`` with the record at ``position`` taken from ``other``."""
    others = iter(other.leaves())

    def swap(leaf: Any) -> Any:
        replacement = next(others)
        swapped = leaf.clone() if isinstance(leaf, torch.Tensor) else list(leaf)
        swapped[position] = replacement[position]
        return swapped

    return chunk.map(swap, chunk.size)


def shortened(record: Any, keep: float) -> Any:
    """Return a made-up raw record of the same structure whose sequences have ``keep`` of the length."""
    if isinstance(record, torch.Tensor):
        made = torch.zeros_like(record)
        return made[: max(1, int(len(made) * keep))] if made.ndim else made
    if hasattr(record, "shape") and hasattr(record, "dtype"):
        made = record * 0
        return made[: max(1, int(len(made) * keep))] if made.ndim else made
    if isinstance(record, Mapping):
        return type(record)({key: shortened(item, keep) for key, item in record.items()})  # type: ignore[call-arg]
    if isinstance(record, tuple) and hasattr(record, "_fields"):
        return type(record)(*(shortened(item, keep) for item in record))
    if isinstance(record, list) and record and not isinstance(record[0], torch.Tensor | Mapping | list | tuple):
        return [_fake_plain(record[0])] * max(1, int(len(record) * keep))
    if isinstance(record, list | tuple):
        return type(record)(shortened(item, keep) for item in record)
    return _fake_plain(record, max(1, int(len(record) * keep)) if isinstance(record, str) else 1)


def _fake_plain(value: Any, length: int = 1) -> Any:
    if isinstance(value, str):
        return "a" * length
    return type(value)() if isinstance(value, int | float | bool | bytes) else value
