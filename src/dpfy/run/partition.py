"""Divide a sample into blocks that records draw for themselves.

The rounding of a float32 sum depends on its terms, and that of a kernel on the number of records it
is given. If blocks were consecutive records, a further record would shift all of them and change
the rounding of every other record. Here each record draws its block independently of the others,
and in a block that is too large its half, and half of a half. A further record then changes one
block, or divides it, and all other blocks are computed from the same records in the same order, to
the same bits.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

_LIKELIEST = 20 * math.log(
    2
)  # a block is larger than is likely, and divided, with a probability below 2^-20
_ROOM = (
    0.8  # of the largest chunk, for an expected block of several: most blocks are then one chunk
)
_LARGEST = (
    1024  # records of an expected block: more of them are hardly quicker, and need more noise
)
_BITS = 63  # of a lot


@dataclass(frozen=True)
class BatchPartition:
    """Divide a sample of declared expectation, by public constants only.

    Args:
        count: the number of blocks.
        largest: the most records of a part; larger blocks are divided.

    >>> BatchPartition.planned(expected_batch=1000, largest_chunk=64, ranks=2)
    BatchPartition(count=20, largest=64)
    """

    count: int
    largest: int

    @classmethod
    def planned(
        cls, expected_batch: float, largest_chunk: int | None, ranks: int = 1
    ) -> "BatchPartition":
        """Return one block if it is expected to be one chunk, or several that leave room in one.

        Args:
            expected_batch: the expected number of records.
            largest_chunk: the most records in memory at once; None for as many as is quick.
            ranks: the number of processes, of which each gets as many blocks.

        Returns:
            The partition.
        """
        chunk = largest_chunk or _LARGEST
        size = max(1.0, min(chunk if expected_batch <= chunk else _ROOM * chunk, _LARGEST))
        count = ranks * max(1, math.ceil(expected_batch / (ranks * size)))
        return cls(count, min(chunk, _likely(expected_batch / count)))

    def of(self, tags: torch.Tensor) -> torch.Tensor:
        """Return the block of each record, given the 63 random bits that it drew."""
        return drawn_from(self.count, tags)

    def parts(
        self, indices: torch.Tensor, tags: torch.Tensor, chosen: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Return the records of every block in parts of at most ``largest``.

        Args:
            indices: the records of the sample.
            tags: the 63 random bits that each of them drew.
            chosen: which of them decide what blocks are wanted; None for all.

        Returns:
            The indices of each part.
        """
        if self.count == 1:
            return self.divided(indices, tags) if chosen is None or bool(chosen.any()) else []
        blocks = self.of(tags)
        wanted = torch.zeros(self.count, dtype=torch.bool)
        wanted[blocks if chosen is None else blocks[chosen]] = True
        members = blocks.argsort(stable=True).split(blocks.bincount(minlength=self.count).tolist())
        return [
            part
            for block in wanted.nonzero().flatten().tolist()
            for part in self.divided(indices[members[block]], tags[members[block]])
        ]

    def divided(self, indices: torch.Tensor, tags: torch.Tensor) -> list[torch.Tensor]:
        """Divide a block into parts of at most ``largest``.

        While a part is larger, each of its records draws one of two halves.

        A further record is in a part of its own, or makes a part larger, or has a part of
        ``largest`` divided. It touches no record outside of that part.
        """
        waiting, parts = [(indices, tags, 0)], []
        while waiting:
            some, drawn, bit = waiting.pop()
            if len(some) <= self.largest or bit == _BITS:
                parts.append(some)
                continue
            one = (drawn >> bit & 1).bool()
            waiting += [(some[half], drawn[half], bit + 1) for half in (one, ~one)]
        return [part for part in parts if len(part)]


@lru_cache(maxsize=64)
def _likely(expected: float) -> int:
    """Return a size that a block of this expectation hardly ever exceeds (Chernoff).

    A larger block is divided, which takes some time and nothing else.

    >>> _likely(50.0)
    92
    """
    size = math.ceil(expected) + 1
    while expected > 0 and size * math.log(size / expected) - size + expected < _LIKELIEST:
        size += 1
    return size


def drawn_from(count: int, tags: torch.Tensor) -> torch.Tensor:
    """Return a number below ``count`` for each tag, uniform to 2⁻³²."""
    return (tags >> 31) * count >> 32


def even_parts(indices: torch.Tensor, largest: int | None) -> list[torch.Tensor]:
    """Divide indices into as few parts of at most ``largest`` as possible, of similar sizes."""
    parts = math.ceil(len(indices) / (largest or _LARGEST))
    return list(indices.tensor_split(parts)) if parts else []
