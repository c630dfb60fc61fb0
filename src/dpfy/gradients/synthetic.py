"""Synthetic records of the public shape, so that models are judged without private values.

Tests: tests/checks/test_probe.py.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import count, product
from typing import Any

import torch

from dpfy.gradients.chunk import Chunk, Column, UnsupportedField

_MADE_UP: dict[type, Any] = {str: "a", bytes: b"", bool: False, int: 0, float: 0.0}
_WOBBLE = 2.0**-6
_LARGE = 2.0**14  # far beyond any threshold on inputs, and finite in half precision


def synthetic(example: Chunk, size: int, seed: int, scale: float, *, declared: bool) -> Chunk:
    """Return ``size`` synthetic records shaped like ``example``.

    Numbers are uniform in [0, ``scale``), which suits inputs and probabilities alike; whole
    numbers (labels, tokens) are 0 or 1. An example that the user ``declared`` is public and valid:
    then its own rows are used, and numbers that are equal in all of them are varied a little. A
    field of zeros declares a shape only: with equal records every model would pass.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(example.size, (size,), generator=generator)

    def fake(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return Column(
                leaf[row] if declared else _MADE_UP[type(leaf[0])] for row in rows.tolist()
            )
        numbers = leaf.is_floating_point() or leaf.is_complex()
        if declared and leaf.any():
            taken = leaf[rows.to(leaf.device)]
            wobble = 1 + _WOBBLE * torch.rand(taken.shape, generator=generator).to(leaf.device)
            return (
                (taken * wobble).to(leaf.dtype)
                if numbers and bool((leaf == leaf[:1]).all())
                else taken
            )
        shape = (size, *leaf.shape[1:])
        made = torch.rand(shape, generator=generator) * scale
        return (
            (made if numbers else torch.randint(2, shape, generator=generator))
            .to(leaf.dtype)
            .to(leaf.device)
        )

    return example.map(fake, size)


def wobbled(chunk: Chunk, seed: int) -> Chunk:
    """Return nearly the same records: numbers are up to 2⁻⁶ smaller, so that 0 to 1 stays that."""
    generator = torch.Generator().manual_seed(seed)

    def smaller(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        factor = 1 - _WOBBLE * torch.rand(leaf.shape, generator=generator)
        return (leaf * factor.to(leaf.device)).to(leaf.dtype)

    return chunk.map(smaller, chunk.size)


def can_vary(leaf: Any) -> bool:
    """Whether synthetic records differ in a declared field; with equal ones every model passes."""
    if not isinstance(leaf, torch.Tensor):
        return any(value != leaf[0] for value in leaf)
    return (
        leaf.is_floating_point()
        or leaf.is_complex()
        or not leaf.any()
        or bool((leaf != leaf[:1]).any())
    )


def with_row_from(chunk: Chunk, other: Chunk, position: int) -> Chunk:
    """Return ``chunk`` with the record at ``position`` taken from ``other``."""
    others = iter(other.leaves())

    def swap(leaf: Any) -> Any:
        replacement = next(others)
        swapped = leaf.clone() if isinstance(leaf, torch.Tensor) else Column(leaf)
        swapped[position] = replacement[position]
        return swapped

    return chunk.map(swap, chunk.size)


def extremes(chunk: Chunk) -> Iterator[Chunk]:
    """Yield the same records with extreme numbers: zeros, fewer, very large ones, and NaN.

    Numbers between 0 and 1 need not trigger a threshold, or show a dependence on the largest value
    of the batch or on a length.
    """

    def fewer(leaf: torch.Tensor) -> torch.Tensor:
        kept = leaf.clone()
        kept[:, kept.shape[1] // 2 :] = 0
        return kept

    kinds: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        torch.zeros_like,
        lambda leaf: fewer(leaf) if leaf.ndim > 1 else leaf,
        lambda leaf: leaf * _LARGE,
        lambda leaf: leaf * -_LARGE,
        lambda leaf: torch.full_like(leaf, torch.nan),
    )
    numbers = [
        position
        for position, leaf in enumerate(chunk.leaves())
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    # one field at a time: others may have to be probabilities
    for wanted, kind in product(numbers, kinds):
        places = count()
        yield chunk.map(
            lambda leaf, kind=kind, wanted=wanted, places=places: (  # type: ignore[misc]
                kind(leaf) if next(places) == wanted else leaf
            ),
            chunk.size,
        )


def shortened(record: Any, keep: float) -> Any:
    """Return a synthetic raw record of this structure, with sequences of ``keep`` the length."""
    if hasattr(record, "shape") and hasattr(record, "dtype"):
        made = torch.zeros_like(record) if isinstance(record, torch.Tensor) else record * 0
        return made[: max(1, round(len(made) * keep))] if made.ndim else made
    if isinstance(record, Mapping):
        return {key: shortened(item, keep) for key, item in record.items()}
    if isinstance(record, tuple) and hasattr(record, "_fields"):
        return type(record)(*(shortened(item, keep) for item in record))
    if isinstance(record, str):
        # words, since text is padded by words or by letters
        return " ".join(["a"] * max(1, round(8 * keep)))
    if isinstance(record, list) and record and type(record[0]) in _MADE_UP:
        return [_MADE_UP[type(record[0])]] * max(1, round(len(record) * keep))
    if isinstance(record, list | tuple):
        return type(record)(shortened(item, keep) for item in record)
    if type(record) in _MADE_UP:
        return _MADE_UP[type(record)]
    raise UnsupportedField(f"a field of type {type(record).__name__} has no synthetic counterpart")
