"""Where the noise of one process is drawn: segment by segment, on threads, ahead of time if there is a core for it."""

import os
import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import torch

from dpfy.mechanisms.noise.cells import draw_cells, room_for
from dpfy.mechanisms.noise.cover import Floats
from dpfy.mechanisms.noise.randomness import SecureStream, this_process

SEGMENT = 1 << 19  # values that are drawn in one go, from a stream of their own
_SERIAL = 1 << 14  # fewer values than are worth handing over to another thread


@dataclass(frozen=True)
class _Order:
    """Noise that is being drawn on other threads."""

    count: int
    spread: float
    segments: list["Future[Floats]"]

    def abandon(self) -> None:
        """Return when nobody writes into the rooms of this order any more."""
        for segment in self.segments:
            segment.cancel()
        wait(self.segments)


class Desk:
    """Draws the segments of a vector of noise into rooms that it uses again; it never outlives a fork."""

    def __init__(self) -> None:
        self.process = this_process()
        self.lock = threading.Lock()
        self._rooms: list[Floats] = []
        self._pool: ThreadPoolExecutor | None = None
        self._ordered: _Order | None = None

    def order(self, count: int, spread: float, stream: SecureStream) -> None:
        """Begin to draw what :meth:`segments` will be asked for, if torch leaves a core to do so."""
        self._abandon_order()
        if count > _SERIAL and torch.get_num_threads() < _cores():
            self._ordered = self._begin(count, spread, stream)

    def segments(self, count: int, spread: float, stream: SecureStream) -> Generator[Floats, None, None]:
        """Yield the segments of a vector of ``count`` fresh values; each is valid until the next one.

        Close it before the desk is used again: an order is abandoned as soon as it is not needed.
        """
        if self._ordered is None or (self._ordered.count, self._ordered.spread) != (count, spread):
            self._abandon_order()
            if count <= _SERIAL or torch.get_num_threads() == 1:
                for size in _sizes(count):
                    yield draw_cells(self._room(0, size), size, spread, stream.split())
                return
            self._ordered = self._begin(count, spread, stream)
        order, self._ordered = self._ordered, None  # from here on nobody can take it a second time
        try:
            for segment in order.segments:
                yield segment.result()
        finally:
            order.abandon()

    def close(self) -> None:
        """End the threads and free the rooms; another order brings them back."""
        self._abandon_order()
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._rooms = None, []

    def _abandon_order(self) -> None:
        order, self._ordered = self._ordered, None
        if order is not None:
            order.abandon()

    def _begin(self, count: int, spread: float, stream: SecureStream) -> _Order:
        """Hand the segments over; their streams are split off here, so that threads do not change what is drawn."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="dpfy noise")
        return _Order(count, spread, [
            self._pool.submit(draw_cells, self._room(index, size), size, spread, stream.split())
            for index, size in enumerate(_sizes(count))])

    def _room(self, index: int, size: int) -> Floats:
        """Return the room of a segment, made only once: memory that is new to a process costs more than the noise."""
        if index == len(self._rooms):
            self._rooms.append(np.empty(0))
        if len(self._rooms[index]) < room_for(size):
            self._rooms[index] = np.empty(room_for(size))
        return self._rooms[index]


def _sizes(count: int) -> list[int]:
    """Return the sizes of the segments of a vector."""
    return [min(SEGMENT, count - start) for start in range(0, count, SEGMENT)]


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
