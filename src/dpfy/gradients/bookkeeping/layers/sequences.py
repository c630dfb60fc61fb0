"""Sequences in the order in which a loop over time reads them.

Tests: tests/gradients/bookkeeping/layers/test_recurrent.py.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


class TimeSteps(ABC):
    """Padded sequences [directions, sequences, time, features] as rows [directions, rows, …].

    In each direction the rows are all first steps read there, then all second ones. The second
    direction reads each sequence from its end, so that one loop serves both.
    """

    sizes: list[int]  # how many sequences reach each step

    @abstractmethod
    def taken(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows of padded sequences."""

    @abstractmethod
    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Return padded sequences, with zeros where there is no row."""

    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return views of the rows of each step, in the order of reading."""
        return rows.split(self.sizes, 1)

    @abstractmethod
    def sorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return a copy of one state per sequence, in the order in which sequences are read."""

    @abstractmethod
    def unsorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return states in the original order of the sequences."""

    @abstractmethod
    def ends(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of the row that each sequence ends with."""


@dataclass(frozen=True)
class Even(TimeSteps):
    """Sequences of one length."""

    records: int
    steps: int

    @property
    def sizes(self) -> list[int]:  # type: ignore[override]
        """The number of sequences at every step: all of them."""
        return [self.records] * self.steps

    def taken(self, padded: torch.Tensor) -> torch.Tensor:
        """Bring the rows into the order of time."""
        return torch.stack(_turned(padded.transpose(1, 2))).flatten(1, 2)

    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Bring each sequence together in memory, where products over time read it faster."""
        by_time = rows.unflatten(1, (self.steps, self.records))
        return torch.stack([direction.transpose(0, 1) for direction in _turned(by_time)])

    def sorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return a copy, since the sequences are read in their own order."""
        return states.clone()

    def unsorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states as they are."""
        return states

    def ends(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of the last step, where all sequences end."""
        return rows[:, -self.records :].clone()


def _turned(by_time: torch.Tensor) -> list[torch.Tensor]:
    """Return [time, …] for each direction, the second one from the other end."""
    forward, *backward = by_time
    return [forward, *(direction.flip(0) for direction in backward)]


@dataclass(frozen=True)
class Packed(TimeSteps):
    """Sequences of many lengths, longest first, so that those reaching a step are a prefix.

    ``places`` are the positions of the rows in the padded sequences, and ``numbers`` the rows by
    position, for each direction; ``last`` are the rows that sequences end with, ``absent`` the
    positions without a row.
    """

    sizes: list[int]
    order: torch.Tensor
    places: list[torch.Tensor]
    numbers: list[torch.Tensor]
    last: torch.Tensor
    absent: torch.Tensor | None

    @classmethod
    def of(cls, sizes: list[int], order: torch.Tensor, directions: int) -> "Packed":
        """Return the packing in which ``sizes[t]`` sequences reach step t."""
        steps, device = len(sizes), order.device
        reached, step = (
            torch.tensor(sizes, device=device),
            torch.arange(steps, device=device).unsqueeze(1),
        )
        sequence = torch.arange(len(order), device=device)
        present = sequence < reached.unsqueeze(1)
        lengths = present.sum(0)
        places = [
            (order * steps + read)[present] for read in (step, lengths - 1 - step)[:directions]
        ]
        absent = torch.ones(len(order) * steps, dtype=torch.bool, device=device).index_fill_(
            0, places[0], False
        )
        count = torch.arange(len(places[0]), device=device)
        numbers = [
            torch.zeros_like(absent, dtype=torch.long).index_copy_(0, some, count)
            for some in places
        ]
        last = torch.empty_like(order)
        last[order] = (reached.cumsum(0) - reached)[lengths - 1] + sequence
        return cls(
            sizes, order, places, numbers, last, absent if len(places[0]) < len(absent) else None
        )

    def taken(self, padded: torch.Tensor) -> torch.Tensor:
        """Select the rows of padded sequences."""
        return torch.stack(
            [
                direction.flatten(0, 1).index_select(0, places)
                for direction, places in zip(padded, self.places, strict=False)
            ]
        )

    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Return padded sequences, with zeros where there is no row."""
        padded = torch.stack(
            [
                direction.index_select(0, numbers)
                for direction, numbers in zip(rows, self.numbers, strict=True)
            ]
        )
        if self.absent is not None:
            padded.masked_fill_(self.absent.unsqueeze(1), 0)
        return padded.unflatten(1, (len(self.order), -1))

    def sorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states, longest sequence first."""
        return states.index_select(1, self.order)

    def unsorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return every state in the position that it had."""
        return torch.empty_like(states).index_copy_(1, self.order, states)

    def ends(self, rows: torch.Tensor) -> torch.Tensor:
        """Select the row that each sequence ends with."""
        return rows.index_select(1, self.last)
