"""Draw noise ahead of time: segment by segment, on other threads, while a core is free.

A vector of noise is divided into segments, each with streams of its own, so that which thread draws
a segment, and when, changes no result. :class:`NoisePrefetcher` holds the segments that are drawn
ahead and the buffers that they are drawn into; :class:`~dpfy.noise.gaussian.LatticeGaussian` adds
them to the sums and draws the others.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from dpfy._process import this_process
from dpfy.noise.native.kernels import kernels_for
from dpfy.noise.random_stream import Parts, SecureStream
from dpfy.noise.rejection_table import Floats
from dpfy.noise.vector import Integers, Steps

SEGMENT = 1 << 19  # values that are drawn in one go
_SERIAL = 1 << 14  # fewer values than this are not worth drawing ahead


class Segment(NamedTuple):
    """Consecutive coordinates of a vector and the streams that their noise is drawn from."""

    start: int
    size: int
    parts: Parts


class Buffers:
    """Memory for noise, allocated only once: memory that is new to a process costs more than noise.

    Exactly one owner writes into the buffers at a time.
    """

    def __init__(self) -> None:
        self.arrays: list[Integers] = []

    def get(self, index: int, size: int) -> Integers:
        """Return the buffer of this index with room for ``size`` steps, of four bytes each."""
        if index == len(self.arrays):
            self.arrays.append(np.empty(0, dtype=np.int32))
        if len(self.arrays[index]) < size:
            self.arrays[index] = np.empty(size, dtype=np.int32)
        return self.arrays[index][:size]


@dataclass(frozen=True)
class _Prefetched:
    """Noise that is being drawn on other threads, into buffers that belong to nobody else."""

    count: int
    spread: float
    cells: float
    generation: int  # of the key that the streams were drawn from
    segments: list[tuple[Segment, "Future[Steps]"]]
    buffers: Buffers

    def cancel(self) -> list[Segment]:
        """Let no thread begin another segment, and return those that none has begun."""
        return [segment for segment, future in self.segments if future.cancel()]


@dataclass(frozen=True)
class Segments:
    """The segments of one vector of noise: some are drawn ahead, the others wait for a thread.

    Args:
        drawn: The start of each segment that was begun ahead, and its noise once it is drawn.
        waiting: The segments that no thread has begun.
        buffers: Memory for threads that draw the waiting segments.
    """

    drawn: list[tuple[int, "Future[Steps]"]]
    waiting: deque[Segment]
    buffers: Buffers

    def next(self) -> Segment | None:
        """Take the first segment that waits, if there is one; no other thread gets it too."""
        try:
            return self.waiting.popleft()
        except IndexError:
            return None

    def buffers_for(self, threads: int) -> list[Floats]:
        """Return a buffer for each of ``threads`` threads: at least one, and no more than wait."""
        size = max((segment.size for segment in self.waiting), default=0)
        count = max(1, min(len(self.waiting), threads))
        return [self.buffers.get(index, 2 * size).view(np.float64) for index in range(count)]


class NoisePrefetcher:
    """The threads and the buffers of one process that draw noise ahead of time.

    Buffers leave the prefetcher while any thread may write into them, and come back when none does.
    So wherever it is interrupted, noise that is still being drawn goes into buffers that are never
    handed out again. A prefetcher never outlives a fork: a child makes its own. Callers hold
    ``lock`` while they call a method.
    """

    def __init__(self) -> None:
        self.process = this_process()
        self.lock = threading.Lock()
        self._buffers = Buffers()
        self._pool: ThreadPoolExecutor | None = None
        self._prefetched: _Prefetched | None = None
        self.waits_for_device = False  # the last sums were on a device, so the CPU has time

    def prefetch(self, count: int, spread: float, cells: float, stream: SecureStream) -> None:
        """Begin to draw what :meth:`segments` will be asked for, if it pays.

        It pays for a long vector, if torch leaves a core free, or computes on a device.
        """
        self._take_prefetched()
        if count > _SERIAL and (self.waits_for_device or _has_core_to_spare()):
            # in a first step, numpy draws while the compiler works: what no thread has begun by
            # then is left to compiled code
            kernels, buffers, generation = (
                kernels_for(count, wait=False),
                self._take_buffers(),
                stream.generation,
            )
            try:
                futures = [
                    (
                        each,
                        self.submit(
                            kernels.draw_steps,
                            buffers.get(index, each.size),
                            spread,
                            cells,
                            each.parts,
                        ),
                    )
                    for index, each in enumerate(_divide(count, stream))
                ]
            except BaseException:
                self.close()
                raise
            # An incomplete list would leave values without noise.
            self._prefetched = _Prefetched(count, spread, cells, generation, futures, buffers)

    @contextmanager
    def segments(
        self, count: int, spread: float, cells: float, stream: SecureStream
    ) -> Iterator[Segments]:
        """Lend the segments of a vector of fresh noise to the caller, who uses each once.

        What was prefetched for such a vector, under the stream's present key, is among them. If the
        caller fails, all threads end before the exception goes on, and no segment is drawn any
        more.
        """
        prefetched, waiting = self._take_prefetched(), deque[Segment]()
        try:
            wanted = count, spread, cells, stream.generation
            if prefetched is not None and (
                (prefetched.count, prefetched.spread, prefetched.cells, prefetched.generation)
                == wanted
            ):
                buffers = prefetched.buffers
                waiting.extend(prefetched.cancel())
                drawn = [
                    (segment.start, future)
                    for segment, future in prefetched.segments
                    if not future.cancelled()
                ]
            else:
                waiting.extend(_divide(count, stream))
                buffers, drawn = self._take_buffers(), []
            yield Segments(drawn, waiting, buffers)
        except BaseException:
            waiting.clear()
            self.close()  # waits for helpers, also for those that the caller does not know of
            raise
        self._buffers = buffers

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Call a function on one of the prefetcher's threads."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                torch.get_num_threads(), thread_name_prefix="dpfy noise"
            )
        return self._pool.submit(function, *arguments)

    def close(self) -> None:
        """End the threads, cancel what they have not begun, and free the buffers.

        The next :meth:`prefetch` starts them again.
        """
        self._take_prefetched()
        pool, self._pool, self._buffers = self._pool, None, Buffers()
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _take_prefetched(self) -> _Prefetched | None:
        """Return what was prefetched, once; segments that were not begun are not drawn ahead."""
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None:
            prefetched.cancel()
        return prefetched

    def _take_buffers(self) -> Buffers:
        """Return the buffers, which are the caller's from now on."""
        buffers, self._buffers = self._buffers, Buffers()
        return buffers


def _divide(count: int, stream: SecureStream) -> list[Segment]:
    """Divide a vector; keys are drawn in order, so that threads do not change what is drawn."""
    return [
        Segment(start, min(SEGMENT, count - start), stream.parts())
        for start in range(0, count, SEGMENT)
    ]


def _has_core_to_spare() -> bool:
    """Return whether torch uses fewer threads than there are cores."""
    return torch.get_num_threads() < _cores()


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
