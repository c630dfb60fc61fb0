"""Tell listeners of the steps of a run in somebody's own loop, and write its report.

What is told is declared, released, or measured on public data.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from torch import nn

from dpfy._closing import Closing
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.mechanisms.query import Contributing
from dpfy.plans import Plan
from dpfy.reporting import RunFacts, report
from dpfy.reporting.facts import NOT_DECLARED
from dpfy.reporting.notebook import ledger_card
from dpfy.run.callbacks import Callback, Evaluation, Step
from dpfy.run.context import StepContext
from dpfy.run.released import Released
from dpfy.types import GroupInterval, Interval

if TYPE_CHECKING:
    from dpfy.run.run import Run

READINGS = 40
"""How often the ε of a run is brought up to date for listeners; each reading is a computation."""


class Observed(Closing):
    """What can be seen of a run from outside: its state in a line, its listeners, its report."""

    plan: Plan
    model: nn.Module
    context: StepContext

    def __init__(self) -> None:
        self.measurements: list[tuple[int, float, str]] = []  # after which step, value and metric
        self._listeners: list[Listeners] = []
        self._closed = False

    def __repr__(self) -> str:
        where = self.context.ledger.path or "in memory" if self.context.ranks.first else "of rank 0"
        state = "closed, " if self._closed else ""
        return (
            f"<Run: {state}{self.context.progress.taken} of {self.plan.steps} steps taken, engine "
            f"{self.context.engines.name!r}, ledger {where}>"
        )

    def _repr_html_(self) -> str | None:
        """Show what the ledger has of the run, and nothing else."""
        return ledger_card(self.context.ledger, "Run") if self.context.ranks.first else None

    @property
    def closed(self) -> bool:
        """Whether the run is closed: it takes no more steps."""
        return self._closed

    @property
    def engine_notice(self) -> str:
        """Why ``auto`` took a slower engine than the fastest, with the line of code; or nothing."""
        return self.context.engines.notice

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
            self._listeners.append(Listeners(cast("Run", self), callbacks, delta))
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
            files = write_report(cast("Run", self), folder, delta, facts)
            for each in self._listeners:
                each.tell("on_report", files)
        return Path(folder)

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

    def __init__(self, run: "Run", callbacks: Sequence[Callback], delta: float | None) -> None:
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
    run: "Run", folder: str | Path, delta: float | None, facts: RunFacts | None
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
