"""Listen to a trainer, or to a run in a loop of one's own.

Callbacks are given declared constants, released values and results on public data, nothing else.

Tests: tests/trainer/test_trainer.py, tests/run/test_listening.py.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfy._extras import require

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


class TensorBoardLog(Callback):
    """Writes every evaluation for TensorBoard, an optional extra.

    Args:
        folder: The folder of TensorBoard's files.
    """

    @staticmethod
    def check() -> None:
        """Refuse, before a run begins, if TensorBoard is not installed."""
        require("tensorboard", "tensorboard")

    def __init__(self, folder: str | Path) -> None:
        self.check()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)  # type: ignore[no-untyped-call]

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Add one point to each curve."""
        self._writer.add_scalar(evaluation.metric, evaluation.value, evaluation.step)  # type: ignore[no-untyped-call]
        self._writer.add_scalar("epsilon", evaluation.epsilon, evaluation.step)  # type: ignore[no-untyped-call]
        for name, epsilon in evaluation.groups.items():
            self._writer.add_scalar(f"epsilon of {name}", epsilon, evaluation.step)  # type: ignore[no-untyped-call]

    def on_end(self) -> None:
        """Flush the file."""
        self._writer.close()  # type: ignore[no-untyped-call]
