"""Choose the engine that differentiates a loss, on synthetic input.

A loss that reads other values than before is judged again. After several such changes it is given
to an engine that isolates records by construction.
"""

import json
import sys
from collections.abc import Hashable, Mapping
from typing import Any

from torch import nn

from dpfy.checks.free_memory import give_back
from dpfy.checks.loss_state import Reader, Readings
from dpfy.checks.mixing import refuse_mixing
from dpfy.checks.probe import Probe
from dpfy.gradients import Engine
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import identity
from dpfy.run.basis import record_basis
from dpfy.run.context import StepContext
from dpfy.run.ranks import check_same_records
from dpfy.run.release_layout import ReleaseLayout, rehearse
from dpfy.run.terms import partition_for

_REHEARSED = 2  # records: what fails for all of them fails for few
_MOST = 8  # states of one loss function that are judged: a probe costs as much as some steps


class EngineChoice:
    """Choose the engine for a loss function on synthetic input; no record influences the choice.

    Args:
        wanted: the name of an engine, or ``auto`` for the first that is safe and agrees with the
            oracle.
        engines: those that can do what the plan asks for, in order of preference.
        announce: whether to print why ``auto`` takes a slower one than the first.
    """

    def __init__(
        self, wanted: str, engines: Mapping[str, type[Engine]], announce: bool = False
    ) -> None:
        self.wanted = wanted
        self._announce = announce
        self.current: Engine | None = None  # that was chosen last
        self.notice = ""  # why it is slower than it might be
        self.unsaid = ""  # of the notice, as a step is silent
        self._engines = engines
        self._verdicts: dict[Hashable, _Verdicts] = {}

    @property
    def name(self) -> str:
        """The name of the engine in use; what was asked for until one is chosen."""
        return self.wanted if self.current is None else self.current.name

    @property
    def isolation(self) -> str:
        """How it is known that one record cannot influence another one's gradient."""
        return "not probed yet" if self.current is None else self.current.isolation

    def announce(self) -> None:
        """Print why ``auto`` took a slower engine, once, outside of a step, which is silent."""
        if self.unsaid and self._announce:
            sys.stderr.write(f"{self.unsaid}\n")
        self.unsaid = ""

    def engine_for(self, context: StepContext, loss_fn: LossFn) -> Engine:
        """Return the engine for a loss as it is now, after every check if it is new."""
        trained = context.trained()
        verdicts = self._verdicts.setdefault(
            (identity(loss_fn), tuple(trained)), _Verdicts(context.model)
        )
        readings = verdicts.read(loss_fn)
        engine = verdicts.engine(readings)
        if context.ranks.any(engine is None):
            self._check_records(context)
            isolating = verdicts.too_many and self.wanted == "auto"
            engine = self._judged(context, loss_fn, trained, isolating)
            verdicts.add(readings, engine)
        assert engine is not None
        self.current = engine
        return engine

    def _check_records(self, context: StepContext) -> None:
        """Refuse data sets that differ between ranks, and at first those that mix records."""
        check_same_records(context.ranks, context.records)
        with context.ranks.together():
            if self.current is None:
                refuse_mixing(context.records)

    def _judged(
        self,
        context: StepContext,
        loss_fn: LossFn,
        trained: dict[str, nn.Parameter],
        isolating: bool,
    ) -> Engine:
        """Probe the loss; let all ranks take the engine of rank 0."""
        example, ranks = context.example, context.ranks
        statistics = context.plan.query.statistics
        probe = Probe(
            context.model,
            trained,
            loss_fn,
            example.chunk,
            example.valid,
            statistics,
            engines=self._engines,
            gathering=None if context.division is None else context.division.gathering,
        )
        with probe.undisturbed():
            with ranks.together():
                engine = probe.choose(self.wanted, isolating)
            first = ranks.from_first(
                lambda: json.dumps([engine.name, engine.records_at_once]).encode()
            )
            with ranks.together():
                name, at_once = json.loads(first)
                chosen = engine if engine.name == name else probe.choose(name, isolating)
                chosen.records_at_once = at_once
                if not chosen.isolates:
                    chosen.accepts = _Shapes(probe)
                _approve(context, probe, chosen)
        if (notice := _slower(probe, chosen) if self.wanted == "auto" else "") != self.notice:
            self.notice, self.unsaid = notice, notice
        give_back(trained.values())
        return chosen


def _slower(probe: Probe, engine: Engine) -> str:
    """Say why an engine is used instead of the fastest; nothing if it is the fastest."""
    if not probe.passed_over:
        return ""
    name, reason = next(iter(probe.passed_over.items()))
    return (
        f"Engine {engine.name!r} is used, and steps are slower than they could be: {name!r} "
        f"{reason}. See docs/how-to/engines.md, or ask dpfy.explain(model, batch, loss_fn)."
    )


def _approve(context: StepContext, probe: Probe, engine: Engine) -> None:
    """Record what steps with an engine rest on, and clip synthetic records as the plan says."""
    record_basis(context, probe, engine)
    step = max(1, context.progress.taken)
    config = context.controllers.config(step)
    query = config.query
    if not engine.isolates:
        probe.check_size(partition_for(context, engine, step, config).largest)
    statistics = () if query.slots else query.statistics
    layout = ReleaseLayout(query, probe.parameters, statistics, config.coordinates)
    rehearse(engine, probe.loss_fn, probe.made_up(_REHEARSED), layout)


class _Shapes:
    """Decide, once for each shape, whether a chunk may be given to the loss as a whole."""

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
        """Whether the loss changed so often that the next verdict must hold for any change."""
        return len(self._known) >= _MOST

    def read(self, loss_fn: Any) -> Readings:
        """Return the values that the loss reads now; none once they do not matter any more."""
        return {} if self._whatever is not None else self._reader.read(loss_fn)

    def engine(self, readings: Readings) -> Engine | None:
        """Return the engine that was chosen for a loss that reads these values, or None."""
        return self._whatever or next(
            (engine for known, engine in reversed(self._known) if known == readings), None
        )

    def add(self, readings: Readings, engine: Engine) -> None:
        """Remember an engine; after too many, one that isolates by construction is final."""
        if self.too_many and engine.isolates:
            self._whatever = engine
        self._known = [*self._known[1 - _MOST :], (readings, engine)]
