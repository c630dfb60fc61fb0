"""Which engine computes a loss function: chosen on synthetic input, for everything that the loss
has been seen to read.

A loss that reads other values than before is judged anew, and one that does so again and again is
given to an engine that isolates records by construction.
"""

import json
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from torch import nn

from dpfy.checks.loss_state import Reader, Readings
from dpfy.checks.probe import Probe
from dpfy.gradients import Engine
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import identity
from dpfy.mechanisms.query import Statistic
from dpfy.records.example import Declared
from dpfy.run.ranks import Ranks

_MOST = 8  # states of one loss function that are judged: a probe costs as much as some steps


class EngineChoice:
    """The engines of a run. No record has a part in which one is chosen.

    Args:
        wanted: the name of an engine, or ``auto`` for the first that is safe and agrees with the
        oracle. engines: those that can do what the plan asks for, in order of preference. model:
        the model that is trained. example: what was declared about the records. statistics: what
        the plan releases beside gradients. ranks: the processes of the run, which all get the
        engine of rank 0. look_at_data: checks the data set before a loss is judged; it exchanges
        messages itself. approve: has the last word on a chosen engine, and raises if it must not be
        used.
    """

    def __init__(
        self,
        wanted: str,
        engines: Mapping[str, type[Engine]],
        model: nn.Module,
        example: Declared,
        statistics: tuple[Statistic, ...],
        ranks: Ranks,
        look_at_data: Callable[[], None],
        approve: Callable[[Probe, Engine], None],
    ) -> None:
        self.wanted = wanted
        self.current: Engine | None = None  # that was chosen last
        self._engines, self._model, self._example, self._statistics = (
            engines,
            model,
            example,
            statistics,
        )
        self._ranks, self._look_at_data, self._approve = ranks, look_at_data, approve
        self._verdicts: dict[Hashable, _Verdicts] = {}

    def engine_for(self, loss_fn: LossFn, trained: dict[str, nn.Parameter]) -> Engine:
        """Return the engine for a loss function as it is now, after every check if it was not
        judged so before.
        """
        verdicts = self._verdicts.setdefault(
            (identity(loss_fn), tuple(trained)), _Verdicts(self._model)
        )
        readings = verdicts.read(loss_fn)
        engine = verdicts.engine(readings)
        if self._ranks.any(engine is None):
            self._look_at_data()
            engine = self._judged(loss_fn, trained, verdicts.too_many and self.wanted == "auto")
            verdicts.add(readings, engine)
        assert engine is not None
        self.current = engine
        return engine

    def _judged(self, loss_fn: LossFn, trained: dict[str, nn.Parameter], isolating: bool) -> Engine:
        probe = Probe(
            self._model,
            trained,
            loss_fn,
            self._example.chunk,
            self._example.valid,
            self._statistics,
            self._engines,
        )
        with self._ranks.together():
            engine = probe.choose(self.wanted, isolating)
        first = self._ranks.from_first(
            lambda: json.dumps([engine.name, engine.records_at_once]).encode()
        )
        with self._ranks.together():
            name, at_once = json.loads(first)
            chosen = engine if engine.name == name else probe.choose(name, isolating)
            chosen.records_at_once = at_once
            if not chosen.isolates:
                chosen.accepts = _Shapes(probe)
            self._approve(probe, chosen)
        return chosen


class _Shapes:
    """Whether chunks of a shape may be given to the loss as a whole: judged once, when one is met,
    without a word.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._known = {probe.example.signature[1:]: True}

    def __call__(self, chunk: Chunk) -> bool:
        shape = chunk.signature[1:]
        if shape not in self._known:
            self._known[shape] = self._probe.is_safe_for(chunk)
        return self._known[shape]


class _Verdicts:
    """The engines for one piece of code, by what it read when it was judged."""

    def __init__(self, model: nn.Module) -> None:
        self._reader = Reader(model)
        self._known: list[tuple[Readings, Engine]] = []
        self._whatever: Engine | None = None

    @property
    def too_many(self) -> bool:
        """Whether the loss has been another one so often that the next verdict has to hold for
        whatever it reads.
        """
        return len(self._known) >= _MOST

    def read(self, loss_fn: Any) -> Readings:
        """Return what the loss reads now; nothing once that does not matter any more."""
        return {} if self._whatever is not None else self._reader.read(loss_fn)

    def engine(self, readings: Readings) -> Engine | None:
        """Return the engine that was chosen for a loss that reads these values, or None."""
        return self._whatever or next(
            (engine for known, engine in reversed(self._known) if known == readings), None
        )

    def add(self, readings: Readings, engine: Engine) -> None:
        """Remember an engine; one that isolates by construction, after too many others, holds for
        whatever is read.
        """
        if self.too_many and engine.isolates:
            self._whatever = engine
        self._known = [*self._known[1 - _MOST :], (readings, engine)]
