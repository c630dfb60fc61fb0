"""Append what a run releases to a file, from which :mod:`dpfy.page` draws.

Which steps are written follows from the plan alone, never from the clock: a choice by time would
depend on how long steps take, and so on the size of private samples.
"""

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfy.run.callbacks import Callback, Evaluation, Step

LINES = 500
"""About how many steps of a run are written."""


class StepLog(Callback):
    """Appends the progress of a run to a file of JSON lines, which ``dpfy page`` shows.

    A trainer writes ``progress.jsonl`` in its folder by itself. The file says nothing about what
    was spent that the ledger does not know better; without it the page has no curves.

    *Formal guarantee*: every line is a function of declared constants, released values and results
    on public data. A disk that is full ends the file and not the run.

    Args:
        path: The file; lines are added to one that exists.
        lost: The number of steps that were paid for before a resumed run went on, and are lost.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log = StepLog(Path(folder, "progress.jsonl"))
    ...     log.on_start(steps=2, step=0)
    ...     log.on_step(Step(step=1, steps=2, learning_rate=0.1, epsilon=0.5))
    ...     print(Path(folder, "progress.jsonl").read_text(encoding="utf-8"), end="")
    {"kind": "start", "step": 0, "steps": 2, "lost": 0}
    {"kind": "step", "step": 1}
    """

    def __init__(self, path: str | Path, lost: int = 0) -> None:
        self.path = Path(path)
        self._lost = lost
        self._every = 1
        self._step = 0
        self._told: float | None = None  # the last ε, which is told again until the next reading
        self._writable = True

    def on_start(self, steps: int, step: int) -> None:
        """Write how many steps there are, and after which one the run goes on."""
        self._every, self._step = max(1, math.ceil(steps / LINES)), step
        self._write("start", {"step": step, "steps": steps, "lost": self._lost})

    def on_step(self, step: Step) -> None:
        """Write a step whose number is due, or at which ε was computed."""
        computed = self._told is not None and step.epsilon != self._told
        self._told, self._step = step.epsilon, step.step
        if computed or step.step % self._every == 0 or step.step == step.steps:
            epsilon = {"epsilon": step.epsilon} if computed else {}
            metrics = {"metrics": dict(step.metrics)} if step.metrics else {}
            self._write("step", {"step": step.step, **epsilon, **metrics})

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Write a metric on public data."""
        self._told = evaluation.epsilon
        values = {name: getattr(evaluation, name) for name in ("step", "metric", "value")}
        self._write("evaluation", {**values, "epsilon": evaluation.epsilon})

    def on_notice(self, text: str) -> None:
        """Write what the trainer says of released values and of the model."""
        self._write("notice", {"step": self._step, "text": text})

    def on_end(self) -> None:
        """Write that the run ended, early or not; a killed run has no such line."""
        self._write("end", {"step": self._step})

    def _write(self, kind: str, values: Mapping[str, Any]) -> None:
        if not self._writable:
            return
        try:
            line = json.dumps({"kind": kind, **_finite(values)}).encode()
            with self.path.open("ab+") as file:
                if file.tell() and not _ends_a_line(file.fileno(), file.tell()):
                    line = b"\n" + line  # after what a killed run left of its last line
                file.write(line + b"\n")
        except OSError as error:
            self._writable = False
            sys.stderr.write(
                f"{self.path} cannot be written: {error.strerror}. The run goes on; the page will "
                "show no further curves of it.\n"
            )


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace numbers that JSON does not have by None, also in what is nested."""
    return {
        name: _finite(value)
        if isinstance(value, Mapping)
        else None
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for name, value in values.items()
    }


def _ends_a_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"
