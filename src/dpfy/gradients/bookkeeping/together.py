"""Observe several chunks in one vectorised pass.

A pass over a few records takes as long as it takes to read the parameters.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import torch
from torch.func import vmap

from dpfy.gradients.bookkeeping.capture import Observation
from dpfy.gradients.chunk import Chunk

_MOST_NUMBERS = 2**22  # that are observed at once: 16 MB in float32

Look = Callable[[Chunk], Observation]


def observed(
    look: Look, base: Chunk, before: Observation, chunks: Sequence[Chunk]
) -> tuple[Observation, Iterable[Observation | None]]:
    """Observe chunks that are to be compared with a base, all in one pass if possible.

    Vectorised, the loss is called once and given one chunk as well. Where that fails or would take
    much memory, it is called for each.

    Args:
        look: Observes one pass over a chunk.
        base: A chunk.
        before: What was observed with it.
        chunks: Other chunks of its shape.

    Returns:
        What was observed with the base, by the same kernels as the others: they round alike. Then
        what is observed with each of the others, or None where the loss fails.
    """
    numbers = sum(leaf.numel() for leaf in _leaves(before))
    if len(chunks) * numbers <= _MOST_NUMBERS:
        with suppress(Exception):  # recurrent layers, for instance, and random numbers
            first, *others = _together(look, [base, *chunks])
            return first, others
    return before, (_if_valid(look, chunk) for chunk in chunks)


def _if_valid(look: Look, chunk: Chunk) -> Observation | None:
    """Observe a pass; None if it fails, since extreme numbers need not be valid."""
    try:
        return look(chunk)
    except Exception:
        return None


def _together(look: Look, chunks: Sequence[Chunk]) -> list[Observation]:
    """Return what is observed with each chunk in one pass, without the outputs of layers."""
    size, seen = chunks[0].size, Observation({}, {})

    def one(*fields: torch.Tensor) -> list[torch.Tensor]:
        remaining = iter(fields)
        found = look(chunks[0].map(lambda _: next(remaining), size))
        seen.inputs.update(found.inputs)
        return _leaves(found)

    stacked = [torch.stack(fields) for fields in zip(*(c.leaves() for c in chunks), strict=True)]
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="There is a performance drop", category=UserWarning
        )
        found = vmap(one, randomness="error")(*stacked)
    return [_with_leaves(seen, [leaf[row] for leaf in found]) for row in range(len(chunks))]


def _leaves(seen: Observation) -> list[torch.Tensor]:
    """Return all tensors that layers were given."""
    return [
        leaf
        for calls in seen.inputs.values()
        for call in calls
        for leaf in call
        if leaf is not None
    ]


def _with_leaves(seen: Observation, leaves: list[torch.Tensor]) -> Observation:
    """Return an observation of this structure with other tensors."""
    remaining = iter(leaves)
    return Observation(
        {
            name: [[None if leaf is None else next(remaining) for leaf in call] for call in calls]
            for name, calls in seen.inputs.items()
        },
        {},
    )
