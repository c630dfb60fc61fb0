"""Bring every row of a sum to its owner, who adds up what all processes have in float64.

What travels is the clipped sum of one chunk of one process, rounded to the type of its parameter as
sums of a single process are: a reduction would round what depends on several processes' records.
While a bucket travels, the next one is formed, in memory that is used again.

Tests: tests/gradients/sharded/test_exchange.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from dpfy.errors import RankFailed
from dpfy.gradients.sharded.forming import ParameterSum, RowSums
from dpfy.gradients.sharded.gather import LOST
from dpfy.gradients.sharded.rows import Owned, Shards

BUCKET = 2**19
"""The numbers that a process sends at once."""


@dataclass(frozen=True)
class _Slice:
    """Rows of every owner of one parameter: from a first one on, counted from its own first."""

    position: int
    first: int
    last: int
    offset: int  # in the bucket, of every owner


@dataclass(frozen=True)
class _Bucket:
    slices: tuple[_Slice, ...]
    size: int  # numbers for every owner
    dtype: torch.dtype


class Exchange:
    """The way of sums to their owners; of one chunk on every process at a time.

    Args:
        shards: The division of the model.
        owned: This process's rows of every trained parameter.
    """

    def __init__(self, shards: Shards, owned: Sequence[Owned]) -> None:
        self._shards = shards
        self._owned = owned
        self._buckets = [*_buckets(owned, shards.owners)]
        self._rooms: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def add(self, sums: RowSums | None, totals: Sequence[torch.Tensor]) -> None:
        """Add what all processes have to the float64 totals of the own rows.

        Args:
            sums: The sums of this process; None if it has nothing to add this time.
            totals: A tensor for the own rows of every trained parameter.
        """
        travelling: tuple[_Bucket, torch.Tensor, Any] | None = None
        forms: dict[int, ParameterSum] = {}
        for number, bucket in enumerate(self._buckets):
            sent, received = self._room(0 + number % 2, bucket), self._room(2 + number % 2, bucket)
            self._fill(bucket, sent, sums, forms)
            begun = self._begun(received, sent)
            if travelling is not None:
                self._end(*travelling, totals)
            travelling = bucket, received if begun is not None else sent, begun
        if travelling is not None:
            self._end(*travelling, totals)

    def _begun(self, received: torch.Tensor, sent: torch.Tensor) -> Any:
        """Begin to send a bucket; a process that owns all rows sends nothing."""
        if self._shards.owners == 1:
            return None
        try:
            return dist.all_to_all_single(received, sent, group=self._shards.group, async_op=True)
        except RuntimeError as error:
            raise RankFailed(LOST) from error

    def _end(
        self, bucket: _Bucket, received: torch.Tensor, work: Any, totals: Sequence[torch.Tensor]
    ) -> None:
        """Wait for a bucket, and add what every process has of the own rows."""
        if work is not None:
            try:
                work.wait()
            except RuntimeError as error:
                raise RankFailed(LOST) from error
        for each in bucket.slices:
            own = self._owned[each.position]
            first, last = own.span()
            count = max(0, min(each.last, last - first) - each.first)
            numbers = count * own.width
            if not numbers:
                continue
            total = totals[each.position].view(-1)[each.first * own.width :][:numbers]
            for sums in received:
                total += sums[each.offset : each.offset + numbers]

    def _fill(
        self,
        bucket: _Bucket,
        room: torch.Tensor,
        sums: RowSums | None,
        forms: dict[int, ParameterSum],
    ) -> None:
        """Write the rows of every owner to its part of a bucket."""
        if sums is None:
            room.zero_()
            return
        for each in bucket.slices:
            own = self._owned[each.position]
            for place in range(own.owners):
                begin, end = own.span(place)
                low, high = min(begin + each.first, end), min(begin + each.last, end)
                part = room[place, each.offset : each.offset + (each.last - each.first) * own.width]
                count = (high - low) * own.width
                if count:
                    if each.position not in forms:
                        forms.clear()  # of parameters that are complete
                        forms[each.position] = sums.of(each.position)
                    formed = forms[each.position].rows(low, high)
                    part[:count].view(high - low, own.width).copy_(formed)
                part[count:].zero_()

    def _room(self, kind: int, bucket: _Bucket) -> torch.Tensor:
        """Return memory for a bucket to or from all processes: the same for every other one."""
        owners, numbers = self._shards.owners, self._shards.owners * bucket.size
        room = self._rooms.get((kind, bucket.dtype))
        if room is None or room.numel() < numbers:
            room = torch.empty(numbers, dtype=bucket.dtype, device=self._owned[0].local.device)
            self._rooms[kind, bucket.dtype] = room
        return room[:numbers].view(owners, bucket.size)


def _buckets(owned: Sequence[Owned], owners: int) -> Iterator[_Bucket]:
    """Divide the rows of all parameters into buckets, the same on every process."""
    most = max(1, BUCKET // owners)
    slices: list[_Slice] = []
    size, dtype = 0, torch.float32
    for position, each in enumerate(owned):
        kind = torch.float64 if each.local.dtype == torch.float64 else torch.float32
        at_once = max(1, most // max(1, each.width))
        for first in range(0, each.height, at_once):
            last = min(first + at_once, each.height)
            numbers = (last - first) * each.width
            if slices and (size + numbers > most or kind != dtype):
                yield _Bucket(tuple(slices), size, dtype)
                slices, size = [], 0
            dtype = kind
            slices.append(_Slice(position, first, last, size))
            size += numbers
    if slices:
        yield _Bucket(tuple(slices), size, dtype)
