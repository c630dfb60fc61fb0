"""The progress bar of ``dpfy train``.

It shows the step, ε so far, the accuracy on public data, released metrics and the time left.

Tests: tests/cli/test_train.py.
"""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpfy.trainer.callbacks import Callback, Evaluation, Step

_DECAY = 0.9  # of the running average of noisy numbers


class ProgressBar(Callback):
    """Shows on the screen what a trainer reports."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("ε {task.fields[epsilon]}"),
            TextColumn("{task.fields[accuracy]}"),
            TextColumn("{task.fields[released]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._averages: dict[str, float] = {}

    def on_start(self, steps: int, step: int) -> None:
        """Show the bar."""
        self._task = self._progress.add_task(
            "training", total=steps, completed=step, epsilon="0.00", accuracy="", released=""
        )
        self._progress.start()

    def on_step(self, step: Step) -> None:
        """Advance the bar; show noisy metrics as running averages."""
        for name, value in step.metrics.items():
            self._averages[name] = _DECAY * self._averages.get(name, value) + (1 - _DECAY) * value
        released = "  ".join(f"{name} ≈ {value:.2f}" for name, value in self._averages.items())
        whose = f" (weakest of {len(step.groups)} groups)" if step.groups else ""
        self._progress.update(
            self._task,
            completed=step.step,
            epsilon=f"{step.epsilon:.2f}{whose}",
            released=released,
        )

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Show the accuracy on public data."""
        self._progress.update(self._task, accuracy=f"accuracy {evaluation.accuracy:.1%}")

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()
