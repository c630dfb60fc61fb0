"""Where the time of a private step goes: the median of each stage, without the stages inside it."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import autograd
from torch.optim import sgd

from dpfy.gradients.bookkeeping import arithmetic, engine
from dpfy.gradients.bookkeeping.recorder import Recorder
from dpfy.gradients.bookkeeping.strategies import ChunkNorms, StoreThenClip
from dpfy.ledger import Ledger
from dpfy.ledger.store import FileStore
from dpfy.records.records import Records
from dpfy.run import run, step
from dpfy.run.context import StepContext, Streams
from dpfy.run.draws import Draws
from dpfy.run.gate import Gate
from dpfy.run.sum_accumulator import SumAccumulator

CALLS: tuple[tuple[str, Any, str], ...] = (
    ("settings and release", run.Run, "backward"),
    ("check parameters", run, "_check_ready"),
    ("the step itself, isolation", run, "take_step"),
    ("refresh keys", Streams, "refresh"),
    ("event and mechanism", step, "event_of"),
    ("event and mechanism", step, "mechanism_for"),
    ("begin noise", step, "begin_noise"),
    ("reserve", Ledger, "reserve"),
    ("write and sync", FileStore, "append"),
    ("draw", Draws, "draw"),
    ("read the loss's state", StepContext, "engine_for"),
    ("load", step, "_add_bounded"),
    ("load", Records, "_groups"),
    ("pass, capture", engine.CapturingEngine, "bounded_sums"),
    ("forward", engine, "returned_by"),
    ("backward", autograd, "grad"),
    ("record", Recorder, "outer"),
    ("record", Recorder, "add"),
    ("norms", ChunkNorms, "measure"),
    ("weights", StoreThenClip, "sums"),
    ("sums", SumAccumulator, "add_chunk"),
    ("products", arithmetic.torch, "mm"),
    ("noise and release", step, "add_noise"),
    ("gate", Gate, "check"),
    ("gate", Gate, "mark_released"),
    ("optimizer", sgd, "sgd"),
)


class Stages:
    """Add up the time of each stage, whose calls may be inside of one another.

    Args:
        clock: what tells the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self._now: dict[str, float] = {}
        self._steps: list[dict[str, float]] = []

    def enter(self, stage: str) -> None:
        """Begin a stage; the one around it pauses."""
        self._pass_time()
        self._open.append(stage)

    def leave(self) -> None:
        """End the stage that began last."""
        self._pass_time()
        self._open.pop()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure one step, of which no stage is open yet."""
        self._now = {}
        self.enter("the rest")
        yield
        self.leave()
        self._steps.append(self._now)

    def milliseconds(self) -> dict[str, float]:
        """Return the median of each stage over the steps, the longest first."""
        names = {name for each in self._steps for name in each}
        found = {
            name: 1e3 * statistics.median(each.get(name, 0.0) for each in self._steps)
            for name in names
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _pass_time(self) -> None:
        """Charge the time since the last change to the stage that is open."""
        now = self._clock()
        if self._open:
            stage = self._open[-1]
            self._now[stage] = self._now.get(stage, 0.0) + now - self._since
        self._since = now


@contextmanager
def watched(stages: Stages) -> Iterator[None]:
    """Let the functions of a step tell their stages inside the block."""

    def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            stages.enter(stage)
            try:
                return function(*args, **kwargs)
            finally:
                stages.leave()

        return call

    with ExitStack() as stack:
        for stage, home, name in CALLS:
            stack.enter_context(patch.object(home, name, timed(stage, getattr(home, name))))
        yield
