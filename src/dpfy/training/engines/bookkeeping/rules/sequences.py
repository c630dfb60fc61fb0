"""Sequences as a loop over time reads them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


class Rows(ABC):
    """Padded sequences as a loop over time reads them: all their first steps, then all second ones."""

    sizes: list[int]  # how many sequences reach each step

    @abstractmethod
    def taken(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows of padded sequences."""

    @abstractmethod
    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Return padded sequences, with zeros where there is no row; perhaps a view."""

    @abstractmethod
    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return views of the rows of each step, in the order of reading."""

    @abstractmethod
    def joined(self, steps: list[torch.Tensor]) -> torch.Tensor:
        """Return what :meth:`split` has divided."""

    @abstractmethod
    def sorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return a copy of one state for each sequence in the order in which these are read."""

    @abstractmethod
    def unsorted(self, states: torch.Tensor) -> torch.Tensor:
        """Return them in their own order."""

    @abstractmethod
    def ends(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy of the row that each sequence ends with."""


@dataclass(frozen=True)
class Even(Rows):
    """Sequences of one length, in memory by time. Backwards they are read from the end, and nothing is moved."""

    records: int
    steps: int
    reverse: bool

    @property
    def sizes(self) -> list[int]:  # type: ignore[override]
        """All of them, at every step."""
        return [self.records] * self.steps

    def taken(self, padded: torch.Tensor) -> torch.Tensor:
        """Bring the rows into the order of time."""
        return padded.transpose(0, 1).flatten(0, 1)

    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Look at the same memory."""
        return rows.unflatten(0, (self.steps, self.records)).transpose(0, 1)

    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Divide evenly."""
        return rows.split(self.records)[::-1 if self.reverse else 1]

    def joined(self, steps: list[torch.Tensor]) -> torch.Tensor:
        """Put them in the order of time."""
        return torch.cat(steps[::-1 if self.reverse else 1])

    def sorted(self, states: torch.Tensor) -> torch.Tensor:
        """They are."""
        return states.clone()

    def unsorted(self, states: torch.Tensor) -> torch.Tensor:
        """They are."""
        return states

    def ends(self, rows: torch.Tensor) -> torch.Tensor:
        """All end at the last step."""
        return self.split(rows)[-1].clone()


@dataclass(frozen=True)
class Packed(Rows):
    """Sequences of many lengths, longest first: those that reach a step are the first of those that reached another.

    ``numbers`` are the rows by their place in the padded sequences, ``last`` those that sequences end with; ``absent``
    are places without a row.
    """

    sizes: list[int]
    order: torch.Tensor
    places: torch.Tensor
    numbers: torch.Tensor
    last: torch.Tensor
    absent: torch.Tensor | None

    @classmethod
    def of(cls, sizes: list[int], order: torch.Tensor, reverse: bool) -> "Packed":
        """Read as many sequences at each step as ``sizes`` says, each of them from its end if ``reverse``."""
        steps, device = len(sizes), order.device
        reached, step = torch.tensor(sizes, device=device), torch.arange(steps, device=device).unsqueeze(1)
        sequence = torch.arange(len(order), device=device)
        present = sequence < reached.unsqueeze(1)
        lengths = present.sum(0)
        places = (order * steps + (lengths - 1 - step if reverse else step))[present]
        numbers = torch.zeros(len(order) * steps, dtype=torch.long, device=device)
        numbers[places] = torch.arange(len(places), device=device)
        last = torch.empty_like(order)
        last[order] = (reached.cumsum(0) - reached)[lengths - 1] + sequence
        absent = torch.ones_like(numbers, dtype=torch.bool).index_fill_(0, places, False)
        return cls(sizes, order, places, numbers, last, absent if len(places) < len(numbers) else None)

    def taken(self, padded: torch.Tensor) -> torch.Tensor:
        """Pick them."""
        return padded.flatten(0, 1).index_select(0, self.places)

    def put_back(self, rows: torch.Tensor) -> torch.Tensor:
        """Pick them, and clear the places that have none."""
        padded = rows.index_select(0, self.numbers)
        if self.absent is not None:
            padded.masked_fill_(self.absent.unsqueeze(1), 0)
        return padded.unflatten(0, (len(self.order), -1))

    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Divide by the number of sequences."""
        return rows.split(self.sizes)

    def joined(self, steps: list[torch.Tensor]) -> torch.Tensor:
        """Put one after the other."""
        return torch.cat(steps)

    def sorted(self, states: torch.Tensor) -> torch.Tensor:
        """Longest first."""
        return states.index_select(0, self.order)

    def unsorted(self, states: torch.Tensor) -> torch.Tensor:
        """Put every state where it was."""
        return torch.empty_like(states).index_copy_(0, self.order, states)

    def ends(self, rows: torch.Tensor) -> torch.Tensor:
        """Pick them."""
        return rows.index_select(0, self.last)
