"""Tell listeners of the steps of a run in somebody's own loop, and write its report.

What is told is declared, released, or measured on public data.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import nn

from dpfy._closing import Closing
from dpfy.accounting import account
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.mechanisms.query import Contributing
from dpfy.plans import Plan
from dpfy.reporting import RunFacts, report
from dpfy.reporting.facts import NOT_DECLARED
from dpfy.reporting.notebook import ledger_card
from dpfy.run.callbacks import Callback, Evaluation, Step
from dpfy.run.context import Progress
from dpfy.run.controller_states import ControllerStates
from dpfy.run.gate import Gate
from dpfy.run.ranks import Ranks
from dpfy.run.released import Released
from dpfy.run.sharding import Division
from dpfy.types import GroupInterval, Interval

READINGS = 40
"""How often the ε of a run is brought up to date for listeners; each reading is a computation."""


class Context(Protocol):
    """What any run of a plan works with, whether records or clients are summed in it."""

    @property
    def plan(self) -> Plan:
        """What was planned."""

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The parameters that the optimizers hold, by name."""

    @property
    def ledger(self) -> Ledger:
        """The ledger, which rank 0 has."""

    @property
    def ranks(self) -> Ranks:
        """The processes of the run."""

    @property
    def progress(self) -> Progress:
        """How far the run has come."""

    @property
    def division(self) -> Division | None:
        """How a sharded model is divided among the processes; None for one that is whole."""

    @property
    def controllers(self) -> ControllerStates:
        """What is chosen from released values."""

    def close(self) -> None:
        """Close the ledger, and end threads and processes."""


class Observed(Closing):
    """Bind a plan to a ledger and to optimizers that apply released gradients or nothing.

    It has what can be seen of a run from outside: how far it is, what was spent, its listeners, its
    report and its checkpoints.

    Args:
        context: the plan, the model, the ledger and what else a step works with.
        optimizers: the optimizers.
    """

    def __init__(self, context: Context, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        self.context = context
        self.plan = context.plan
        self.model = context.model
        self.optimizers = optimizers
        self.restored: dict[str, Any] = {}  # what ``save`` was given as ``extra``, after a resume
        self.lost_steps = 0  # paid for before a crash and not part of the model that was resumed
        self.measurements: list[tuple[int, float, str]] = []  # after which step, value and metric
        self._gate = Gate(optimizers, dict(context.parameters))
        self._listeners: list[Listeners] = []
        self._closed = False

    def __repr__(self) -> str:
        where = self.context.ledger.path or "in memory" if self.context.ranks.first else "of rank 0"
        state = "closed, " if self._closed else ""
        return (
            f"<{type(self).__name__}: {state}{self.context.progress.taken} of {self.plan.steps} "
            f"steps taken, engine {self.engine!r}, ledger {where}>"
        )

    def _repr_html_(self) -> str | None:
        """Show what the ledger has of the run, and nothing else."""
        return ledger_card(self.context.ledger, "Run") if self.context.ranks.first else None

    @property
    def steps_left(self) -> int:
        """How many batches the plan still has to give."""
        return self.plan.steps - self.context.progress.handed_out

    @property
    def steps_taken(self) -> int:
        """How many steps of the plan are paid for and behind this run."""
        return self.context.progress.taken

    def __len__(self) -> int:
        return self.steps_left

    @property
    @abstractmethod
    def engine(self) -> str:
        """What bounds the gradients, by name."""

    @property
    @abstractmethod
    def isolation(self) -> str:
        """How it is known that nobody can influence what somebody else contributes."""

    @property
    def closed(self) -> bool:
        """Whether the run is closed: it takes no more steps."""
        return self._closed

    @property
    def engine_notice(self) -> str:
        """Why a slower engine than the fastest is in use; or nothing."""
        return ""

    def listen(self, *callbacks: Callback, delta: float | None = None) -> Self:
        """Tell callbacks of every step, of what :meth:`measured` is given, and of the end.

        A trainer does this by itself. Callbacks hear declared constants, released values and
        results on public data. Of several processes rank 0 tells them.

        Args:
            callbacks: such as :class:`dpfy.ProgressBar`, :class:`dpfy.CsvLog`,
                :class:`dpfy.TensorBoardLog`, or your own :class:`dpfy.Callback`.
            delta: the δ at which ε is told. Default: that of the plan's budget.

        Returns:
            This run.

        Raises:
            InvalidArgument: if the plan has no budget, and no δ was given.
        """
        if self.context.ranks.first:
            self._listeners.append(Listeners(self, callbacks, delta))
        return self

    def report(
        self, folder: str | Path, *, delta: float | None = None, facts: RunFacts | None = None
    ) -> Path:
        """Write the privacy report as ``report.html``, ``report.md`` and ``report.json``.

        Args:
            folder: the folder to write into.
            delta: the δ of the claim. Default: that of the plan's budget.
            facts: what you declare about the run, such as the data set and what a record is. The
                model, the engine and what :meth:`measured` was told are filled in.

        Returns:
            The folder.

        Raises:
            InvalidArgument: if the plan has no budget, and no δ was given.
        """
        if self.context.ranks.first:
            files = write_report(self, folder, delta, facts)
            for each in self._listeners:
                each.tell("on_report", files)
        return Path(folder)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run; of several processes rank 0 has it."""
        return self.context.ledger

    def spent(self, delta: float) -> Interval:
        """Return the ε of all that was reserved so far, as a certified interval.

        Args:
            delta: the failure probability, between 0 and 1.

        Returns:
            The interval; its upper end may be claimed. Under a filter it is that of its limit.
            Where groups of records have budgets of their own it is a
            :class:`~dpfy.types.GroupInterval`: ``groups`` has one interval for each, and the ends
            are those of the weakest.
        """
        return account(self.ledger).epsilon(delta)

    def measured(self, value: float, metric: str = "accuracy") -> None:
        """Tell controllers, listeners and the report what was measured on public data.

        *Assumes*: no private record had a part in it other than through the model. Of several
        processes all are told the same.

        Args:
            value: the measurement; what it means is up to the controllers.
            metric: its name, for listeners and the report.
        """
        self.context.controllers.on_public_metric(value)
        self._note(float(value), metric)

    def save(self, directory: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write a checkpoint of the model, the optimizers and ``extra``, for :func:`dpfy.resume`.

        No state of the noise or of the sampling is saved: a resumed run draws fresh ones.

        Args:
            directory: the folder of the checkpoint.
            extra: plain values, or objects with a ``state_dict`` such as a scheduler.

        Returns:
            The file.
        """
        from dpfy.run.checkpoint import save  # it builds on this module

        return save(self, directory, extra)

    def close(self) -> None:
        """Remove the gate and close the ledger; the model and the optimizer are as they were."""
        if not self._closed:
            self._closed = True
            for each in self._listeners:
                each.tell("on_end")
            self._gate.close()
            self.context.close()

    def _note(self, value: float, metric: str) -> None:
        """Keep a measurement for the report, and tell listeners of it."""
        self.measurements.append((self.context.progress.taken, value, metric))
        for each in self._listeners:
            each.measured(value, metric)


class Listeners:
    """Tell callbacks what happens in a run.

    Args:
        run: The run.
        callbacks: The listeners.
        delta: The δ at which ε is told; None for that of the plan's budget.
    """

    def __init__(self, run: Observed, callbacks: Sequence[Callback], delta: float | None) -> None:
        self._run, self._callbacks = run, tuple(callbacks)
        self._delta = delta_of(run.plan, delta)
        self._between = max(1, run.plan.steps // READINGS)
        self._spent = run.spent(self._delta) if run.steps_taken else Interval(0.0, 0.0)
        self._said = ""
        self.tell("on_start", run.plan.steps, run.steps_taken)

    def tell(self, what: str, *values: Any) -> None:
        """Call a method of all callbacks."""
        tell(self._callbacks, what, *values)

    def stepped(self, released: Released, rate: float) -> None:
        """Tell of a step."""
        run = self._run
        if run.engine_notice and run.engine_notice != self._said:
            self._said = run.engine_notice
            self.tell("on_notice", self._said)
        if released.step % self._between == 0 or not run.steps_left:
            self._spent = run.spent(self._delta)
        spent, metrics = self._spent, metrics_of(released)
        steps = run.plan.steps
        self.tell(
            "on_step", Step(released.step, steps, rate, spent.upper, metrics, by_group(spent))
        )

    def measured(self, value: float, metric: str) -> None:
        """Tell of a measurement on public data."""
        run = self._run
        self._spent = run.spent(self._delta)
        step, epoch = run.steps_taken, run.steps_taken * run.plan.rate
        found = Evaluation(step, epoch, self._spent.upper, value, by_group(self._spent), metric)
        self.tell("on_evaluation", found)


def tell(callbacks: Sequence[Callback], what: str, *values: Any) -> None:
    """Call a method of all callbacks."""
    for callback in callbacks:
        getattr(callback, what)(*values)


def metrics_of(released: Released) -> dict[str, float]:
    """Return the numbers that a step released beside its gradients.

    The share of contributing records is left out: it is mentioned only if it is low.
    """
    return {
        name: float(value)
        for name, value in released.statistics.items()
        if not value.ndim and name != Contributing.name
    }


def by_group(spent: Interval) -> dict[str, float]:
    """Return the ε of each group of records; nothing where all have the same."""
    groups = spent.groups if isinstance(spent, GroupInterval) else {}
    return {name: each.upper for name, each in groups.items()}


def delta_of(plan: Plan, delta: float | None) -> float:
    """Return the given δ, or that of the plan's budget."""
    found = getattr(plan.budget or plan.filter, "delta", None) if delta is None else delta
    if found is None:
        raise InvalidArgument("The plan has no budget and so no δ. Give delta=.")
    return float(found)


def write_report(
    run: Observed, folder: str | Path, delta: float | None, facts: RunFacts | None
) -> tuple[Path, Path, Path]:
    """Write the report of a run, with what the run itself knows where nothing is declared."""
    given = facts if facts is not None else RunFacts(name=Path(folder).resolve().name)
    parameters = sum(p.numel() for p in run.model.parameters())
    known: dict[str, str] = {
        "engine": run.engine,
        "isolation": run.isolation,
        "model": f"{type(run.model).__name__} with {parameters:,} parameters",
        "released": "the model after every step",
    }
    missing = {name: value for name, value in known.items() if getattr(given, name) == NOT_DECLARED}
    if run.measurements and not given.history:
        last = run.measurements[-1][2]  # of several metrics, the curve of one
        history = tuple((step, value) for step, value, name in run.measurements if name == last)
        metric = f"{last} on public data"
        given = replace(given, history=history, metric=metric)
    ledger, path = run.ledger, run.ledger.path
    if run.closed and path is not None:
        ledger = Ledger.read(path)
    found = report(ledger, delta_of(run.plan, delta), replace(given, **missing))  # type: ignore[arg-type]
    return found.write(folder)
