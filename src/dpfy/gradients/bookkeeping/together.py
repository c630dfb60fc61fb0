"""Observe several chunks in one vectorised pass.

A pass over a few records takes as long as it takes to read the parameters.

Tests: tests/gradients/bookkeeping/test_capture.py.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import torch
from torch.func import vmap

from dpfy.gradients.bookkeeping.capture import Observation
from dpfy.gradients.chunk import Chunk

_MOST_NUMBERS = 2**22  # that are observed at once: 16 MB in float32

Look = Callable[[Chunk], Observation]


def observed(
    look: Look, chunks: Sequence[Chunk], before: Observation
) -> Iterator[Observation | None]:
    """Yield what is observed with each chunk, or None where the loss fails.

    Vectorised, the loss is called once and given one chunk as well. Where that fails or would take
    much memory, it is called for each.

    Args:
        look: Observes one pass over a chunk.
        chunks: Chunks of the same shape.
        before: What was observed with another chunk of this shape.
    """
    numbers = sum(leaf.numel() for leaf in _leaves(before))
    together: list[Observation] = []
    if len(chunks) * numbers <= _MOST_NUMBERS:
        with suppress(Exception):  # recurrent layers, for instance, and random numbers
            together = _together(look, chunks)
    yield from together
    for chunk in chunks[len(together) :]:
        try:
            yield look(chunk)
        except Exception:  # extreme numbers need not be valid
            yield None


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
