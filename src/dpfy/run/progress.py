"""A bar that shows the step, ε so far, the metric on public data and the time left.

Tests: tests/cli/test_train.py, tests/run/test_listening.py, tests/run/test_cell_bar.py.
"""

from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dpfy._extras import require
from dpfy.run.callbacks import Callback, Evaluation, Step
from dpfy.run.cell_bar import CellBar, in_notebook

if TYPE_CHECKING:
    from rich.console import Console

_DECAY = 0.9  # of the running average of noisy numbers


class ProgressBar(Callback):
    """Shows on the screen, or in a notebook, what is reported of a run.

    On a screen it needs the package ``rich``, which the extra ``cli`` brings; in a notebook nothing
    besides.

    Args:
        console: Where to show it. Default: the output of the cell in a notebook, and elsewhere the
            standard output.

    Raises:
        MissingExtra: The package is not installed.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        self._bar: _Bar = _InCell() if console is None and in_notebook() else _OnScreen(console)
        self._averages: dict[str, float] = {}

    @staticmethod
    def is_seen() -> bool:
        """Tell whether a bar could be shown to somebody: on a terminal or in a notebook."""
        if in_notebook():
            return True
        if find_spec("rich") is None:
            return False
        from rich.console import Console

        return Console().is_terminal

    def on_start(self, steps: int, step: int) -> None:
        """Show the bar."""
        self._bar.start(steps, step)

    def on_step(self, step: Step) -> None:
        """Advance the bar; show noisy metrics as running averages."""
        for name, value in step.metrics.items():
            self._averages[name] = _DECAY * self._averages.get(name, value) + (1 - _DECAY) * value
        released = "  ".join(f"{name} ≈ {value:.2f}" for name, value in self._averages.items())
        whose = f" (weakest of {len(step.groups)} groups)" if step.groups else ""
        self._bar.advance(step.step, f"{step.epsilon:.2f}{whose}", released)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Show the metric on public data."""
        self._bar.measured(str(evaluation))

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._bar.end()


class _Bar(ABC):
    """Where a bar is drawn."""

    @abstractmethod
    def start(self, steps: int, step: int) -> None:
        """Show the bar of a run of ``steps``, of which ``step`` are taken."""

    @abstractmethod
    def advance(self, step: int, epsilon: str, released: str) -> None:
        """Show a step."""

    @abstractmethod
    def measured(self, text: str) -> None:
        """Show the metric on public data."""

    @abstractmethod
    def end(self) -> None:
        """Leave the last state."""


class _OnScreen(_Bar):
    """Draws with ``rich``."""

    def __init__(self, console: "Console | None") -> None:
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
        self._task: Any = None

    def start(self, steps: int, step: int) -> None:
        self._task = self._progress.add_task(
            "training", total=steps, completed=step, epsilon="0.00", measured="", released=""
        )
        self._progress.start()

    def advance(self, step: int, epsilon: str, released: str) -> None:
        self._progress.update(self._task, completed=step, epsilon=epsilon, released=released)

    def measured(self, text: str) -> None:
        self._progress.update(self._task, measured=text)

    def end(self) -> None:
        self._progress.stop()


class _InCell(_Bar):
    """Draws below the cell of a notebook."""

    def __init__(self) -> None:
        self._bar = CellBar("training")
        self._steps = self._step = 0
        self._epsilon, self._measured, self._released = "0.00", "", ""

    def start(self, steps: int, step: int) -> None:
        self._steps, self._step = steps, step
        self._show()

    def advance(self, step: int, epsilon: str, released: str) -> None:
        self._step, self._epsilon, self._released = step, epsilon, released
        self._show()

    def measured(self, text: str) -> None:
        self._measured = text
        self._show(at_once=True)

    def end(self) -> None:
        self._show(at_once=True)

    def _show(self, at_once: bool = False) -> None:
        words = filter(None, (f"ε {self._epsilon}", self._measured, self._released))
        self._bar.show(self._step, self._steps, "  ".join(words), at_once=at_once)
