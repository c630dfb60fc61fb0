"""One cell of a table: everything that decides a result, as public constants."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, get_type_hints

from dpfy import _validate
from dpfy.data import NAMES
from dpfy.errors import InvalidArgument
from experiments.features import FEATURES
from experiments.methods import kind_of
from experiments.parts import AUGMENTATIONS, check_network
from experiments.schedules import SCHEDULES

_ABOUT = (
    "experiment",
    "target",
    "reference",
    "found",
    "seeds",
)  # say something about a run and change nothing in it
_QUICK_RECORDS, _QUICK_STEPS = 2000, 10


@dataclass(frozen=True)
class Cell:
    """The settings of one result at one ε, the accuracy to reach, and how the settings were found.

    ``rate`` is the sampling probability of a record and ``steps`` their number; the noise follows
    from both, ε and δ. ``target`` is in percent, as ``reference`` published it. ``copies`` is how
    many augmented copies of a record share its loss. ``records`` takes that many records only, from
    the front, of those to train on and of those to measure on.

    >>> cell = Cell("digits", "digits", epsilon=3.0, network="digits-mlp", rate=0.5, steps=20,
    ...             clip=1.0, learning_rate=0.25, found="by hand")
    >>> cell.having(learning_rate=0.5).learning_rate
    0.5
    """

    experiment: str
    data: str
    epsilon: float
    network: str
    rate: float
    steps: int
    clip: float
    learning_rate: float
    found: str
    target: float | None = None
    reference: str = ""
    method: str = "dp-sgd"
    features: str = "raw"
    delta: float = 1e-5
    momentum: float = 0.9
    schedule: str = "constant"
    ema: float = 0.0
    augmentation: str = "none"
    copies: int = 1
    records: int | None = None
    seeds: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self) -> None:
        _validate.choice("data", self.data, NAMES)
        check_network(self.network, self.method)
        if kind_of(self.method) == "adadp" and self.momentum:
            raise InvalidArgument(f"Expected no momentum={self.momentum!r} with method='adadp'.")
        _validate.choice("features", self.features, tuple(FEATURES))
        _validate.choice("schedule", self.schedule, tuple(SCHEDULES))
        _validate.choice("augmentation", self.augmentation, tuple(AUGMENTATIONS))
        _validate.epsilon(self.epsilon)
        _validate.delta(self.delta)
        _validate.real("rate", self.rate, 0, 1, open_low=True)
        _validate.count("steps", self.steps)
        for name in ("clip", "learning_rate"):
            _validate.positive(name, getattr(self, name))
        for name in ("momentum", "ema"):
            _validate.real(name, getattr(self, name), 0, 1, open_high=True)
        if _validate.count("copies", self.copies) > 1 and self.augmentation == "none":
            raise InvalidArgument(
                f"Expected copies={self.copies!r} to be 1 without an augmentation."
            )
        if self.records is not None:
            _validate.count("records", self.records)

    def settings(self) -> dict[str, Any]:
        """Return what a result depends on, as plain JSON values."""
        return {name: value for name, value in asdict(self).items() if name not in _ABOUT}

    @property
    def digest(self) -> str:
        """Eight digits that differ where settings do."""
        return hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()[:8]

    def having(self, **changes: Any) -> Self:
        """Return the cell with other settings; data, ε and δ stay, or it would be another cell."""
        allowed = [name for name in self.settings() if name not in ("epsilon", "delta", "data")]
        for name in changes:
            if name not in allowed:
                raise InvalidArgument(
                    f"Unknown setting {name!r}. One may change {', '.join(allowed)}."
                )
        return replace(self, **changes)

    def changed_by(self, assignments: list[str]) -> Self:
        """Return the cell with settings given as texts such as ``clip=0.5``."""
        kinds, changes = get_type_hints(type(self)), {}
        for text in assignments:
            name, equals, value = text.partition("=")
            kind = {float: float, int: int, int | None: int}.get(kinds.get(name, str), str)
            try:
                changes[name] = kind(value)
            except ValueError:
                equals = ""
            if not equals:
                raise InvalidArgument(f"Expected a setting such as clip=0.5, got {text!r}.")
        return self.having(**changes)

    def quick(self) -> Self:
        """Return one seed, except of digits in a reduced form: it shows that all parts work, and no
        accuracy.
        """
        if self.data == "digits":
            return replace(self, seeds=self.seeds[:1])
        return replace(
            self, records=_QUICK_RECORDS, steps=min(self.steps, _QUICK_STEPS), seeds=self.seeds[:1]
        )


def by_experiment(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Return the cells of each experiment, in their order."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.experiment, []).append(cell)
    return found
