"""Check whether a call of the loss leaves something behind that can be read later.

Tests: tests/checks/test_probe.py, tests/run/test_engine_choice.py.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from dpfy.checks.loss_state import Reader, Readings, changed
from dpfy.errors import IsolationError
from dpfy.gradients.base import LossFn
from dpfy.gradients.chunk import Chunk

REMEDY = (
    "What is to be known of the records is released as a statistic: dpfy.Losses(loss, stats={...})."
)


class SideDoors:
    """Compares what a loss can read besides its records before and after calls of it.

    Args:
        model: The user's module.
        loss_fn: The user's loss function.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        self._changed: str | None = None  # the way to the first value that was found changed
        self._reader = Reader(model)
        self._loss_fn = loss_fn
        self._before: Readings | None = None

    def look(self) -> None:
        """Read everything; the first reading is after a call that may have imported something."""
        if self._changed is not None:
            return
        now = self._reader.read(self._loss_fn, everything=True)
        if self._before is None:
            self._before = now
        self._changed = changed(self._before, now)

    def check(self, losses: Callable[[Chunk], Any], chunks: Iterable[Chunk]) -> None:
        """Refuse a model or loss that keeps what it saw, even where no loss shows it.

        Args:
            losses: Calls the loss on a chunk.
            chunks: Records with numbers that may be invalid: where the loss fails it is not judged.

        Raises:
            IsolationError: A call changed something that a later one, or the user, can read.
        """
        for chunk in chunks:
            try:
                losses(chunk)
            except KeyboardInterrupt:
                raise
            except BaseException:  # numbers above 1 need not be valid
                continue
            self.look()
        if self._changed is not None:
            raise IsolationError(
                f"A call of loss_fn changes {self._changed}: it keeps something of its input, "
                f"which would leave without noise. Keep nothing between calls. {REMEDY}"
            )
