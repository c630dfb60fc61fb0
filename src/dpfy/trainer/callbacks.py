"""Listen to a trainer.

Callbacks are given declared constants, released values and results on public data, nothing else.

Tests: tests/trainer/test_trainer.py.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from dpfy._extras import require


@dataclass(frozen=True)
class Step:
    """A step that was taken.

    Args:
        step: The number of the step, from 1.
        steps: The number of steps of the plan.
        learning_rate: The learning rate of the step.
        epsilon: The ε spent so far; it is updated once every few steps.
        metrics: Numbers that the step released about its private sample, with noise.
    """

    step: int
    steps: int
    learning_rate: float
    epsilon: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The accuracy on public data after a step.

    Args:
        step: The number of the step, from 1.
        epoch: The expected number of passes over the data so far.
        epsilon: The ε spent so far.
        accuracy: The share of public records that the model classifies correctly.
    """

    step: int
    epoch: float
    epsilon: float
    accuracy: float


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
    """Appends every evaluation to a CSV file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, steps: int, step: int) -> None:
        """Write the names of the columns, unless a resumed run wrote them before."""
        if not self.path.exists():
            self._write([[item.name for item in fields(Evaluation)]])

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Append one line."""
        self._write([asdict(evaluation).values()])

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

    def on_end(self) -> None:
        """Flush the file."""
        self._writer.close()  # type: ignore[no-untyped-call]
