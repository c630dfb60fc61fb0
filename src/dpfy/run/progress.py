"""A bar that shows the step, ε so far, the metric on public data and the time left.

Tests: tests/cli/test_train.py, tests/run/test_listening.py.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dpfy._extras import require
from dpfy.run.callbacks import Callback, Evaluation, Step

if TYPE_CHECKING:
    from rich.console import Console

_DECAY = 0.9  # of the running average of noisy numbers


class ProgressBar(Callback):
    """Shows on the screen, or in a notebook, what is reported of a run.

    It needs the package ``rich``, which the extra ``cli`` brings.

    Args:
        console: Where to show it. Default: the standard output.

    Raises:
        MissingExtra: The package is not installed.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        require("rich", "cli")
        from rich import progress as parts

        self._progress = parts.Progress(
            parts.TextColumn("training"),
            parts.BarColumn(),
            parts.MofNCompleteColumn(),
            parts.TextColumn("ε {task.fields[epsilon]}"),
            parts.TextColumn("{task.fields[measured]}"),
            parts.TextColumn("{task.fields[released]}"),
            parts.TimeRemainingColumn(),
            console=console,
        )
        self._averages: dict[str, float] = {}
        self._task: Any = None

    @staticmethod
    def is_seen() -> bool:
        """Tell whether a bar could be shown to somebody: on a terminal or in a notebook."""
        if find_spec("rich") is None:
            return False
        from rich.console import Console

        console = Console()
        return console.is_terminal or console.is_jupyter

    def on_start(self, steps: int, step: int) -> None:
        """Show the bar."""
        self._task = self._progress.add_task(
            "training", total=steps, completed=step, epsilon="0.00", measured="", released=""
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
        """Show the metric on public data."""
        self._progress.update(self._task, measured=str(evaluation))

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()
