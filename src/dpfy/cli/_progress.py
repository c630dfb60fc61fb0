"""The progress bar of ``dpfy train``: step, ε so far, accuracy on public data, time left; nothing private."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpfy.training.callbacks import Callback, Evaluation, Step


class ProgressBar(Callback):
    """Shows what a trainer tells."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(TextColumn("training"), BarColumn(), MofNCompleteColumn(),
                                  TextColumn("ε {task.fields[epsilon]}"), TextColumn("{task.fields[accuracy]}"),
                                  TimeRemainingColumn(), console=console)

    def on_start(self, steps: int, step: int) -> None:
        """Show the bar."""
        self._task = self._progress.add_task("training", total=steps, completed=step, epsilon="0.00", accuracy="")
        self._progress.start()

    def on_step(self, step: Step) -> None:
        """Move on."""
        self._progress.update(self._task, completed=step.step, epsilon=f"{step.epsilon:.2f}")

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Show the accuracy on public data."""
        self._progress.update(self._task, accuracy=f"accuracy {evaluation.accuracy:.1%}")

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()
