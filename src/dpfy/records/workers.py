"""Processes that load records; a record that ends its process is silently left out.

When one of torch's own loading workers dies, it raises in the main process, wherever that is, and
prints to stderr. Here, rows that a dead worker was asked for are asked for again and, if the worker
dies again, one at a time.
"""

import atexit
import faulthandler
import os
import pickle
import signal
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from secrets import randbits
from threading import Thread
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

_LISTEN = 5.0  # seconds after which a worker looks whether its parent is still there

Found = TypeVar("Found")
RowIndices = Sequence[int | None]
"""Indices of records; None is the place of one that is left out."""


class Workers(Generic[Found]):
    """A few processes that load rows by ``load(key, rows)``, started once and kept.

    *Formal guarantee*: the results for some rows are those of the rows that do not end a process
    alone. Nothing that a worker writes to stdout or stderr is shown.

    A part is divided among the processes. So that memory stays bounded, they are at most as many
    parts ahead of what was taken as there are processes, and two at least.
    """

    def __init__(self, count: int, load: Callable[[bytes, RowIndices], Found], data: Any) -> None:
        self._team = [
            _Worker(
                load,
                torch_worker.WorkerInfo(
                    id=number, num_workers=count, seed=randbits(63), dataset=data
                ),
            )
            for number in range(count)
        ]
        self._turns = cycle(self._team)
        self._most = max(2, count)
        self._ahead: list[_Part] = []  # asked for and not taken
        self._waiting: deque[_Part] = deque()
        weakref.finalize(self, _stop, self._team)
        _pools.add(self)

    def close(self) -> None:
        """End the processes; whatever is still wanted starts them again."""
        _stop(self._team)

    def begin(self, key: bytes, parts: Sequence[RowIndices]) -> "Pass[Found]":
        """Begin to load parts, after those that were begun before."""
        mine = [_Part(key, part) for part in parts]
        self._waiting.extend(mine)
        self._fill()
        return Pass(self, mine)

    def found(self, part: "_Part") -> list[Found]:
        """Return the results of a part, which together are those of all of its rows."""
        if part.jobs is None:  # it is wanted now, whatever is ahead of it
            self._waiting.remove(part)
            self._ask(part)
        assert part.jobs is not None
        answers = [found for job in part.jobs for found in self._answers(job)]
        self._ahead.remove(part)
        self._fill()
        return [pickle.loads(answer) for answer in answers]

    def withdraw(self, parts: Sequence["_Part"]) -> None:
        """Forget parts; processes that still load one are ended, for a record may never load."""
        for part in parts:
            if part in self._waiting:
                self._waiting.remove(part)
            elif part in self._ahead:
                self._ahead.remove(part)
                _stop([job.worker for job in part.jobs or () if job in job.worker.jobs])

    def _fill(self) -> None:
        while self._waiting and len(self._ahead) < self._most:
            self._ask(self._waiting.popleft())

    def _ask(self, part: "_Part") -> None:
        """Ask each process for a slice of a part."""
        size = -(-len(part.rows) // len(self._team)) or 1
        part.jobs = [
            _Job(next(self._turns), part.key, _only(part.rows, range(start, start + size)))
            for start in range(0, len(part.rows), size)
        ]
        self._ahead.append(part)
        for job in part.jobs:
            job.worker.ask(job)

    def _answers(self, job: "_Job") -> list[bytes]:
        """Return the results of a job, without the rows that end the process of a worker."""
        worker, rows = job.worker, job.rows
        if (answer := worker.answer(job)) is not None:
            return [answer]
        worker.finish()  # from here on it has one job at a time, and dies of no other

        def asked(places: Container[int]) -> bytes | None:
            again = _Job(worker, job.key, _only(rows, places))
            worker.ask(again)
            return worker.answer(again)

        everything = range(len(rows))
        if (answer := asked(everything)) is not None:
            return [answer]
        harmless = [
            place for place in everything if rows[place] is not None and asked([place]) is not None
        ]
        if (rest := asked(harmless)) is not None:
            return [rest]
        return [found for place in harmless if (found := asked([place])) is not None]


class Pass(Generic[Found]):
    """Parts that are loaded one after the other; iterate once for the results of each.

    A pass that is not iterated to its end has to be closed.
    """

    def __init__(self, workers: Workers[Found], parts: list["_Part"]) -> None:
        self._workers, self._parts = workers, parts

    @property
    def parts(self) -> list[RowIndices]:
        """The rows that were asked for."""
        return [part.rows for part in self._parts]

    def __iter__(self) -> Iterator[list[Found]]:
        try:
            for part in self._parts:
                yield self._workers.found(part)
        finally:
            self.close()

    def close(self) -> None:
        """Give up what was not taken."""
        self._workers.withdraw(self._parts)


@dataclass(eq=False)
class _Part:
    """Rows that are wanted together, and the jobs that they were divided into."""

    key: bytes
    rows: RowIndices
    jobs: "list[_Job] | None" = None


@dataclass(eq=False)
class _Job:
    """What one process is asked for; no answer is left if the process dies before it gave it."""

    worker: "_Worker"
    key: bytes
    rows: RowIndices
    answer: bytes | None = None


def _only(rows: RowIndices, places: Container[int]) -> RowIndices:
    """Return the rows at some places, and None elsewhere."""
    return [row if place in places else None for place, row in enumerate(rows)]


class _Worker:
    """One process, started on the first request and again after it has died."""

    def __init__(self, load: Callable[[bytes, RowIndices], Any], info: Any) -> None:
        self.load, self.info = load, info
        self.jobs: deque[_Job] = deque()  # asked for and not answered, in this order
        self.process: Any = None
        self.owner = 0
        self.line: Connection | None = None

    def ask(self, job: _Job) -> None:
        """Request rows."""
        if self.line is None:
            self.start()
        assert self.line is not None
        self.jobs.append(job)
        with suppress(OSError):  # if it has died, the answer will tell
            self.line.send((job.key, job.rows))

    def answer(self, job: _Job) -> bytes | None:
        """Return what was loaded, or None if the process has died before."""
        while job in self.jobs:
            try:
                found = self.line.recv_bytes() if self.line is not None else None
            except (EOFError, OSError):
                found = None
            if found is None:
                self.stop()
            else:
                self.jobs.popleft().answer = found
        return job.answer

    def finish(self) -> None:
        """Wait until all jobs are answered or the process has died."""
        while self.jobs:
            self.answer(self.jobs[-1])

    def start(self) -> None:
        """Start the process, with its output discarded."""
        context, self.owner = get_context(), os.getpid()
        self.line, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, self.line, self.load, self.info), daemon=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fork beside threads, as every loader makes one
            self.process.start()
        theirs.close()

    def stop(self) -> None:
        """End the process."""
        if self.line is not None:
            self.line.close()
            self.process.kill()
            self.process.join()
            self.process.close()
        self.line, self.process = None, None
        self.jobs.clear()


def _hush() -> None:
    """Discard all output of this process, also that of a crash of the interpreter."""
    faulthandler.disable()
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout = sys.stderr = os.fdopen(nowhere, "w", encoding="utf-8", errors="replace")


class _Pickler(pickle.Pickler):
    """Writes tensors as they are in memory; shared memory would need both processes alive."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        values = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (values, obj.dtype, tuple(obj.shape), str(obj.device))


def packed(value: Any) -> bytes:
    """Return a value in a form that passes between processes."""
    written = BytesIO()
    _Pickler(written, protocol=5).dump(value)
    return written.getvalue()


def _tensor(
    values: np.ndarray, dtype: torch.dtype, shape: tuple[int, ...], device: str
) -> torch.Tensor:
    return torch.from_numpy(values).clone().view(dtype).view(shape).to(device)


def _stop(team: list[_Worker]) -> None:
    for worker in team:
        if worker.process is not None and worker.owner == os.getpid():
            worker.stop()


def _serve(
    line: Connection, parents: Connection, load: Callable[[bytes, RowIndices], Any], info: Any
) -> None:
    """Load rows until the parent is gone."""
    parents.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # a launcher signals the whole process group
        signal.signal(number, signal.SIG_IGN)  # the parent decides
    _hush()
    torch.set_num_threads(1)
    torch_worker._worker_info = info
    parent = os.getppid()
    loaded: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_hand_over, args=(line, loaded), daemon=True).start()
    while True:
        while not line.poll(_LISTEN):
            if os.getppid() != parent:
                return
        try:
            key, rows = line.recv()
        except EOFError:
            return
        loaded.put(pickle.dumps(load(key, rows)))


def _hand_over(line: Connection, loaded: "SimpleQueue[bytes]") -> None:
    """Send what was loaded while the next rows are; the parent may be busy."""
    with suppress(OSError):
        while True:
            line.send_bytes(loaded.get())


_pools: "weakref.WeakSet[Workers[Any]]" = weakref.WeakSet()


@atexit.register
def _close_pools() -> None:
    """Kill workers before multiprocessing asks them to end by SIGTERM, which they ignore."""
    for pool in list(_pools):
        pool.close()
