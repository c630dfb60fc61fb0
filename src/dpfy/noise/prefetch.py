"""Where the noise of one process is drawn: segment by segment, on threads, ahead of time while a
core is free.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from dpfy.noise.native.kernels import kernels_for
from dpfy.noise.random_stream import Parts, SecureStream, this_process
from dpfy.noise.rejection_table import Floats
from dpfy.noise.vector import Vector

SEGMENT = (
    1 << 19
)  # values that are drawn in one go, from streams of their own, and are used before the next ones
_SERIAL = 1 << 14  # fewer values than are worth drawing ahead

_Take = Callable[[int, Floats], None]  # is given where a segment begins and what was drawn for it
_Segment = tuple[int, int, Parts]  # where it begins, its size, its streams


@dataclass(frozen=True)
class _Order:
    """Noise that is being drawn on other threads, in rooms that belong to nobody else."""

    count: int
    spread: float
    generation: int  # of the key that its streams were drawn from
    segments: list[tuple[_Segment, "Future[Floats]"]]
    rooms: list[Floats]

    def hold(self) -> list[_Segment]:
        """Let nobody begin another segment, and return those that nobody has begun."""
        return [segment for segment, future in self.segments if future.cancel()]

    def deliver(self, take: _Take) -> list[_Segment]:
        """Hand over what was begun, and return what was not."""
        left = self.hold()
        for (start, *_), future in self.segments:
            if not future.cancelled():
                take(start, future.result())
        return left


class NoisePrefetcher:
    """Draws the segments of a vector of noise into rooms that it uses again; it never outlives a
    fork.

    Rooms leave the desk while anybody may write into them, and come back when nobody does. So
    whatever interrupts it, and wherever, noise that is still being drawn goes into rooms that are
    never handed out again.
    """

    def __init__(self) -> None:
        self.process = this_process()
        self.lock = threading.Lock()
        self._rooms: list[Floats] = []
        self._pool: ThreadPoolExecutor | None = None
        self._ordered: _Order | None = None

    def order(self, count: int, spread: float, stream: SecureStream) -> None:
        """Begin to draw what :meth:`deliver` will be asked for, if it is much and torch leaves a
        core to do so.
        """
        self._forget_order()
        if count > _SERIAL and _has_core_to_spare():
            kernels, rooms, generation = kernels_for(count), self._take_rooms(), stream.generation
            try:
                segments = [
                    (
                        segment,
                        self._threads.submit(kernels.draw, _room(rooms, index, size), spread, own),
                    )
                    for index, segment in enumerate(_segments(count, stream))
                    for _, size, own in [segment]
                ]
            except BaseException:
                self.close()
                raise
            # An incomplete one would leave values without noise.
            self._ordered = _Order(count, spread, generation, segments, rooms)

    def deliver(self, vector: Vector, spread: float, stream: SecureStream) -> None:
        """Add fresh noise to a vector.

        What was ordered under the stream's present key, and begun, is added on this thread. Then it
        draws and adds the rest, with the help of all of torch's threads if they can be had. If not,
        others do the same, one fewer than torch uses, as its own look out for work at full speed
        for some milliseconds after an operation. Who gets less of a core takes fewer segments. To
        what is on a device this thread alone adds: there is an order of work for each thread.
        """
        count = len(vector)
        order, waiting, kernels = (
            self._forget_order(),
            deque[_Segment](),
            kernels_for(count, shared=True),
        )

        def work(room: Floats) -> None:
            while (segment := _next(waiting)) is not None:
                start, size, own = segment
                kernels.draw_and_add(vector, start, room[:size], spread, own)

        try:
            wanted = count, spread, stream.generation
            if order is not None and (order.count, order.spread, order.generation) == wanted:
                waiting.extend(order.deliver(partial(kernels.add, vector)))
                rooms = order.rooms
            else:
                waiting.extend(_segments(count, stream))
                rooms = self._take_rooms()
            one = not vector.is_cpu or kernels.threads > 1
            threads = 1 if one else max(1, min(len(waiting), torch.get_num_threads() - 1))
            first, *others = (_room(rooms, index, min(count, SEGMENT)) for index in range(threads))
            helpers = [self._threads.submit(work, room) for room in others]
            work(first)
            for helper in helpers:
                helper.result()
        except BaseException:
            waiting.clear()
            # when it returns nobody takes anything any more, whether it is known here or not
            self.close()
            raise
        self._rooms = rooms

    def close(self) -> None:
        """End the threads, let go of what they have not begun, and free the rooms; another order
        brings them back.
        """
        self._forget_order()
        pool, self._pool, self._rooms = self._pool, None, []
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _forget_order(self) -> _Order | None:
        """Return what was ordered, which nobody can take a second time; segments not begun are not
        drawn ahead.
        """
        order, self._ordered = self._ordered, None
        if order is not None:
            order.hold()
        return order

    def _take_rooms(self) -> list[Floats]:
        rooms, self._rooms = self._rooms, []
        return rooms

    @property
    def _threads(self) -> ThreadPoolExecutor:
        """The threads that draw ahead, or besides the one that asks."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                torch.get_num_threads(), thread_name_prefix="dpfy noise"
            )
        return self._pool


def _room(rooms: list[Floats], index: int, size: int) -> Floats:
    """Return the room of a segment, made only once: memory that is new to a process costs more than
    the noise.
    """
    if index == len(rooms):
        rooms.append(np.empty(0))
    if len(rooms[index]) < size:
        rooms[index] = np.empty(size)
    return rooms[index][:size]


def _segments(count: int, stream: SecureStream) -> list[_Segment]:
    """Divide a vector; all keys are drawn in order, so that threads do not change what is drawn."""
    return [
        (start, min(SEGMENT, count - start), stream.parts()) for start in range(0, count, SEGMENT)
    ]


def _next(waiting: deque[_Segment]) -> _Segment | None:
    """Take the first of those that wait, if there is one; no other thread gets it too."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _has_core_to_spare() -> bool:
    """Whether torch uses fewer threads than there are cores."""
    return torch.get_num_threads() < _cores()


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
