"""Which engine was chosen for a loss function, for everything that it has been seen to read."""

from typing import Any

from torch import nn

from dpfy.training.engines import Engine
from dpfy.training.readings import Reader, Readings

_MOST = 8  # states of one loss function that are judged: a probe costs as much as some steps


class Verdicts:
    """The engines for one piece of code, by what it read when it was judged."""

    def __init__(self, model: nn.Module) -> None:
        self._reader = Reader(model)
        self._known: list[tuple[Readings, Engine]] = []
        self._whatever: Engine | None = None

    @property
    def too_many(self) -> bool:
        """Whether the loss has been another one so often that the next verdict has to hold for whatever it reads."""
        return len(self._known) >= _MOST

    def read(self, loss_fn: Any) -> Readings:
        """Return what the loss reads now; nothing once that does not matter any more."""
        return {} if self._whatever is not None else self._reader.read(loss_fn)

    def engine(self, readings: Readings) -> Engine | None:
        """Return the engine that was chosen for a loss that reads these values, or None."""
        return self._whatever or next((engine for known, engine in reversed(self._known) if known == readings), None)

    def add(self, readings: Readings, engine: Engine) -> None:
        """Remember an engine; one that isolates by construction, after too many others, holds for whatever is read."""
        if self.too_many and engine.isolates:
            self._whatever = engine
        self._known = [*self._known[1 - _MOST:], (readings, engine)]
