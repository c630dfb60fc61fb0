"""Listen to a trainer, or to a run in a loop of one's own.

Callbacks are given declared constants, released values and results on public data, nothing else.

Tests: tests/trainer/test_trainer.py, tests/run/test_listening.py.
"""

import csv
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfy._extras import require

REPORT = "privacy report"
"""The name under which loggers keep the report."""
_COLUMNS = ("step", "epoch", "epsilon", "value")


@dataclass(frozen=True)
class Step:
    """A step that was taken.

    Args:
        step: The number of the step, from 1.
        steps: The number of steps of the plan.
        learning_rate: The learning rate of the step.
        epsilon: The ε spent so far; it is updated once every few steps.
        metrics: Numbers that the step released about its private sample, with noise.
        groups: The ε of each group of records; ``epsilon`` is then the weakest group's.
    """

    step: int
    steps: int
    learning_rate: float
    epsilon: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The value of a metric on public data after a step.

    Args:
        step: The number of the step, from 1.
        epoch: The expected number of passes over the data so far.
        epsilon: The ε spent so far.
        value: The metric, such as the share of public records that the model classifies correctly.
        groups: The ε of each group of records; ``epsilon`` is then the weakest group's.
        metric: The name of the metric.
    """

    step: int
    epoch: float
    epsilon: float
    value: float
    groups: Mapping[str, float] = field(default_factory=dict)
    metric: str = "accuracy"

    @property
    def accuracy(self) -> float:
        """The value, if the metric is the accuracy."""
        if self.metric != "accuracy":
            raise AttributeError(f"The metric is the {self.metric}: read .value instead.")
        return self.value

    def __str__(self) -> str:
        shown = f"{self.value:.1%}" if self.metric == "accuracy" else f"{self.value:.4g}"
        return f"{self.metric} {shown}"


class Callback:
    """A listener of a trainer, or of a run; override the methods that you want to be called.

    No other methods are called, and nothing private is passed. :meth:`dpfy.Run.listen` tells
    listeners of a loop of your own.
    """

    def on_start(self, steps: int, step: int) -> None:
        """Hear that a run of ``steps`` begins, or goes on after ``step``."""

    def on_step(self, step: Step) -> None:
        """Hear that a step was taken."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Hear that the model was evaluated on public data."""

    def on_notice(self, text: str) -> None:
        """Hear of a problem that released values or the model show; the trainer prints it too."""

    def on_report(self, files: Sequence[Path]) -> None:
        """Hear that the privacy report was written: as Markdown, JSON and HTML."""

    def on_end(self) -> None:
        """Hear that the run ended, early or not."""


class CsvLog(Callback):
    """Appends every evaluation to a CSV file, with the ε of each group of records.

    Args:
        path: The file.
        groups: The names of the groups, if there are some.
        metric: The name of the metric, as the heading of its column.
    """

    def __init__(
        self, path: str | Path, groups: Sequence[str] = (), metric: str = "accuracy"
    ) -> None:
        self.path = Path(path)
        self._groups = groups
        self._metric = metric

    def on_start(self, steps: int, step: int) -> None:
        """Write the names of the columns, unless a resumed run wrote them before."""
        if not self.path.exists():
            groups = (f"epsilon of {name}" for name in self._groups)
            self._write([[*_COLUMNS[:-1], self._metric, *groups]])

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Append one line."""
        values = (getattr(evaluation, name) for name in _COLUMNS)
        self._write([[*values, *(evaluation.groups[name] for name in self._groups)]])

    def _write(self, rows: Iterable[Iterable[object]]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)


class Logger(Callback, ABC):
    """A callback that sends numbers and the privacy report elsewhere.

    It sends every evaluation; the ε spent, of each group too, whenever it is read anew; and with it
    the noisy metrics of that step. A logger that fails says so on standard error and sends nothing
    more: the run goes on, as its steps are paid for.
    """

    def __init__(self) -> None:
        self._epsilons: dict[str, float] = {}  # as they were sent last
        self._failed = False

    @abstractmethod
    def begin(self, step: int) -> None:
        """Begin a run there, of which ``step`` steps were taken before."""

    @abstractmethod
    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers by their names."""

    @abstractmethod
    def attach(self, files: Sequence[Path]) -> None:
        """Keep the files of the report with the run."""

    @abstractmethod
    def end(self) -> None:
        """End the run there."""

    def on_start(self, steps: int, step: int) -> None:
        """Begin."""
        self._attempt(lambda: self.begin(step))

    def on_step(self, step: Step) -> None:
        """Send the ε and the released metrics of a step at which the ε was read anew."""
        if moved := self._moved(step):
            self._attempt(lambda: self.send(step.step, {**step.metrics, **moved}))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Send the metric on public data."""
        values = {evaluation.metric: evaluation.value, **self._moved(evaluation)}
        self._attempt(lambda: self.send(evaluation.step, values))

    def on_report(self, files: Sequence[Path]) -> None:
        """Keep the report."""
        self._attempt(lambda: self.attach(files))

    def on_end(self) -> None:
        """End, whatever happened to the run."""
        self._attempt(self.end)

    def _moved(self, told: Step | Evaluation) -> dict[str, float]:
        """Return the ε of a step by name, unless none was read or it is what was sent last."""
        groups = {f"epsilon of {name}": epsilon for name, epsilon in told.groups.items()}
        found = {"epsilon": told.epsilon, **groups}
        if not told.epsilon or found == self._epsilons:
            return {}
        self._epsilons = found
        return found

    def _attempt(self, act: Callable[[], None]) -> None:
        """Do something that must not end a run; after a failure do nothing any more."""
        if self._failed:
            return
        try:
            act()
        except Exception as error:  # of whatever kind: the steps of the run are paid for
            self._failed = True
            sys.stderr.write(
                f"{type(self).__name__} failed and sends nothing more; the run goes on. "
                f"{type(error).__name__}: {error}\n"
            )


class TensorBoardLog(Logger):
    """Writes what a run releases for TensorBoard, an optional extra.

    Args:
        folder: The folder of TensorBoard's files.

    Raises:
        MissingExtra: TensorBoard is not installed.
    """

    @staticmethod
    def check() -> None:
        """Refuse, before a run begins, if TensorBoard is not installed."""
        require("tensorboard", "tensorboard")

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.check()
        self._folder = Path(folder)

    def begin(self, step: int) -> None:
        """Begin a file."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(self._folder)  # type: ignore[no-untyped-call]

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def attach(self, files: Sequence[Path]) -> None:
        """Add the report as text."""
        markdown = next(file for file in files if file.suffix == ".md")
        self._writer.add_text(REPORT, markdown.read_text(encoding="utf-8"))
        self._writer.flush()  # it may have been closed before

    def end(self) -> None:
        """Flush the file."""
        self._writer.close()
