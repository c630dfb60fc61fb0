"""A sample in blocks that records draw for themselves, so that a record meets the arithmetic of few others.

The last bits of a float32 sum depend on what it is a sum of, and those of a kernel on how many records it is given. If
blocks were consecutive records, one record more would shift all of them and move every other record's last bits. Here
each record draws its block independently of the others. One record more then changes one block, and all other blocks
are computed from the same records in the same order, to the same bits.
"""

import math
from dataclasses import dataclass

import torch

_LIKELIEST = 100 * math.log(2)  # a block is larger than it is assumed to be with a probability below 2^-100
_ROOM = 0.8  # of the largest chunk, for an expected block: most blocks are then one chunk
_LARGEST = 512  # records that suit an engine without a limit of its own


@dataclass(frozen=True)
class Blocks:
    """How a sample of declared expectation is divided: public constants only.

    >>> Blocks.planned(expected_batch=1000, largest_chunk=64, ranks=2)
    Blocks(count=20, expected=50.0)
    """

    count: int
    expected: float

    @classmethod
    def planned(cls, expected_batch: float, largest_chunk: int | None, ranks: int = 1) -> "Blocks":
        """Return as many blocks as leave room in a chunk, and as many for every rank."""
        size = max(1.0, _ROOM * min(largest_chunk or _LARGEST, _LARGEST))
        count = ranks * max(1, math.ceil(expected_batch / (ranks * size)))
        return cls(count, expected_batch / count)

    @property
    def largest(self) -> int:
        """The records of a block, at most, but for a probability below 2⁻¹⁰⁰ (Chernoff).

        >>> Blocks(count=20, expected=50.0).largest
        155
        """
        size = math.ceil(self.expected) + 1
        while self.expected > 0 and size * math.log(size / self.expected) - size + self.expected < _LIKELIEST:
            size += 1
        return size

    def of(self, lots: torch.Tensor) -> torch.Tensor:
        """Return the block of each record, given the 63 random bits that it drew."""
        return drawn_from(self.count, lots)


def drawn_from(count: int, lots: torch.Tensor) -> torch.Tensor:
    """Return a number below ``count`` for each lot, uniform to 2⁻³²."""
    return (lots >> 31) * count >> 32


def even_parts(indices: torch.Tensor, largest: int | None) -> list[torch.Tensor]:
    """Divide indices into as few parts as are not larger than ``largest``, of about the same size."""
    parts = math.ceil(len(indices) / (largest or _LARGEST))
    return list(indices.tensor_split(parts)) if parts else []
