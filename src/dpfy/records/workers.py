"""Processes that load records; a record that ends its process is silently left out.

When one of torch's own loading workers dies, it raises in the main process, wherever that is, and
prints to stderr. Here, rows that a dead worker was asked for are asked for again, one at a time.
"""

import atexit
import faulthandler
import os
import pickle
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from secrets import randbits
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

_LISTEN = 5.0  # seconds after which a worker looks whether its parent is still there

Found = TypeVar("Found")
RowIndices = Sequence[int | None]
"""Indices of records; None is the place of one that is left out."""


class Workers(Generic[Found]):
    """A few processes that load rows by ``load(key, rows)``.

    *Formal guarantee*: the result for some rows is that of the rows that do not end a process
    alone. Nothing that a worker writes to stdout or stderr is shown.

    ``joined`` combines the results of several calls for the same rows, each with the others left
    out: for rows that end a process only together, as too large ones do.
    """

    def __init__(
        self,
        count: int,
        load: Callable[[bytes, RowIndices], Found],
        joined: Callable[[list[Found]], Found],
        data: Any,
    ) -> None:
        self._joined = joined
        self._team = [
            _Worker(
                load,
                torch_worker.WorkerInfo(
                    id=number, num_workers=count, seed=randbits(63), dataset=data
                ),
            )
            for number in range(count)
        ]
        weakref.finalize(self, _stop, self._team)
        _pools.add(self)

    def close(self) -> None:
        """End the processes."""
        _stop(self._team)

    def found(self, key: bytes, parts: Sequence[RowIndices]) -> Iterator[Found]:
        """Yield the result of each part, in order; the next parts are loaded meanwhile."""
        team = self._team
        _stop([worker for worker in team if worker.busy])  # with what nobody waits for any more
        for worker, part in zip(team, parts, strict=False):
            worker.ask(key, part)
        try:
            for number, part in enumerate(parts):
                worker = team[number % len(team)]
                answer = worker.answer()
                found: Found = (
                    self._without_culprits(worker, key, part)
                    if answer is None
                    else pickle.loads(answer)
                )
                if (later := number + len(team)) < len(parts):
                    worker.ask(key, parts[later])
                yield found
        finally:
            _stop([worker for worker in team if worker.busy])

    def _without_culprits(self, worker: "_Worker", key: bytes, rows: RowIndices) -> Found:
        """Return the result without the rows that end the process of a worker."""

        def asked(wanted: RowIndices) -> bytes | None:
            worker.ask(key, wanted)
            return worker.answer()

        singles = [
            [row if place == chosen else None for place, row in enumerate(rows)]
            for chosen in range(len(rows))
        ]
        harmless = [place for place, single in enumerate(singles) if asked(single) is not None]
        rest = asked([row if place in harmless else None for place, row in enumerate(rows)])
        if rest is not None:
            return pickle.loads(rest)  # type: ignore[no-any-return]
        alone = [found for place in harmless if (found := asked(singles[place])) is not None]
        return self._joined([pickle.loads(found) for found in alone])


class _Worker:
    """One process, started on the first request and again after it has died."""

    def __init__(self, load: Callable[[bytes, RowIndices], Any], info: Any) -> None:
        self.load, self.info = load, info
        self.busy = False
        self.process: Any = None
        self.owner = 0
        self.line: Connection | None = None

    def ask(self, key: bytes, rows: RowIndices) -> None:
        """Request rows."""
        if self.line is None:
            self.start()
        assert self.line is not None
        self.busy = True
        with suppress(OSError):  # if it has died, the answer will tell
            self.line.send((key, rows))

    def answer(self) -> bytes | None:
        """Return what was loaded, or None if the process has died over it."""
        try:
            found = self.line.recv_bytes() if self.line is not None else None
        except (EOFError, OSError):
            found = None
        if found is None:
            self.stop()
        self.busy = False
        return found

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
        self.line, self.process, self.busy = None, None, False


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
    while True:
        while not line.poll(_LISTEN):
            if os.getppid() != parent:
                return
        try:
            key, rows = line.recv()
        except EOFError:
            return
        line.send_bytes(pickle.dumps(load(key, rows)))


_pools: "weakref.WeakSet[Workers[Any]]" = weakref.WeakSet()


@atexit.register
def _close_pools() -> None:
    """Kill workers before multiprocessing asks them to end by SIGTERM, which they ignore."""
    for pool in list(_pools):
        pool.close()
