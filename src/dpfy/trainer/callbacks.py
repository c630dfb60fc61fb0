"""Listen to a trainer.

Callbacks are given declared constants, released values and results on public data, nothing else.

Tests: tests/trainer/test_trainer.py.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfy._extras import require

_COLUMNS = ("step", "epoch", "epsilon", "accuracy")


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
    """The accuracy on public data after a step.

    Args:
        step: The number of the step, from 1.
        epoch: The expected number of passes over the data so far.
        epsilon: The ε spent so far.
        accuracy: The share of public records that the model classifies correctly.
        groups: The ε of each group of records; ``epsilon`` is then the weakest group's.
    """

    step: int
    epoch: float
    epsilon: float
    accuracy: float
    groups: Mapping[str, float] = field(default_factory=dict)


class Callback:
    """A listener of a trainer; override the methods that you want to be called.

    The trainer calls no other methods, and passes nothing private.
    """

    def on_start(self, steps: int, step: int) -> None:
        """Hear that a run of ``steps`` begins, or goes on after ``step``."""

    def on_step(self, step: Step) -> None:
        """Hear that a step was taken."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Hear that the model was evaluated on public data."""

    def on_notice(self, text: str) -> None:
        """Hear that released values show a problem of the run; the trainer prints the text too."""

    def on_end(self) -> None:
        """Hear that the run ended, early or not."""


class CsvLog(Callback):
    """Appends every evaluation to a CSV file, with the ε of each group of records."""

    def __init__(self, path: Path, groups: Sequence[str] = ()) -> None:
        self.path = path
        self._groups = groups

    def on_start(self, steps: int, step: int) -> None:
        """Write the names of the columns, unless a resumed run wrote them before."""
        if not self.path.exists():
            self._write([[*_COLUMNS, *(f"epsilon of {name}" for name in self._groups)]])

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Append one line."""
        values = (getattr(evaluation, name) for name in _COLUMNS)
        self._write([[*values, *(evaluation.groups[name] for name in self._groups)]])

    def _write(self, rows: Iterable[Iterable[object]]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)


class TensorBoardLog(Callback):
    """Writes every evaluation for TensorBoard, an optional extra."""

    @staticmethod
    def check() -> None:
        """Refuse, before a run begins, if TensorBoard is not installed."""
        require("tensorboard", "tensorboard")

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)  # type: ignore[no-untyped-call]

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Add one point to each curve."""
        self._writer.add_scalar("accuracy", evaluation.accuracy, evaluation.step)  # type: ignore[no-untyped-call]
        self._writer.add_scalar("epsilon", evaluation.epsilon, evaluation.step)  # type: ignore[no-untyped-call]
        for name, epsilon in evaluation.groups.items():
            self._writer.add_scalar(f"epsilon of {name}", epsilon, evaluation.step)  # type: ignore[no-untyped-call]

    def on_end(self) -> None:
        """Flush the file."""
        self._writer.close()  # type: ignore[no-untyped-call]
