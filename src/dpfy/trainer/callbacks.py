"""What a trainer tells others: declared constants, released values and results on public data,
nothing else.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from dpfy._extras import require


@dataclass(frozen=True)
class Step:
    """One step was taken; ``epsilon`` is what is spent so far, brought up to date now and then.

    ``metrics`` are numbers that the step released about its private sample, noise included.
    """

    step: int
    steps: int
    learning_rate: float
    epsilon: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """The accuracy on public data after a step."""

    step: int
    epoch: float
    epsilon: float
    accuracy: float


class Callback:
    """Override what you want to hear about; the trainer calls nothing else and passes nothing
    private.
    """

    def on_start(self, steps: int, step: int) -> None:
        """A run of ``steps`` begins or goes on after ``step``."""

    def on_step(self, step: Step) -> None:
        """A step was taken."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """The model was evaluated on public data."""

    def on_notice(self, text: str) -> None:
        """Released values show that something is wrong with the run; the trainer prints the text
        too.
        """

    def on_end(self) -> None:
        """The run ended, early or not."""


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
        """Raise unless TensorBoard is installed, before a run begins."""
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
