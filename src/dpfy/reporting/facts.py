"""Public facts about a run that a report needs beyond the ledger, and that somebody declares."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from dpfy import _validate
from dpfy.errors import InvalidArgument

NOT_DECLARED = "not declared"
Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class RunFacts:
    """Public statements about a run that no ledger can know; a report marks them as declared.

    Args:
        name: the name of the run.
        title: the title of the report.
        dataset: the data set.
        record: what one record is.
        records_per_user_at_most_one: whether each user owns at most one record; None declares
            nothing.
        released: what is released.
        model: the model.
        engine: the gradient engine.
        isolation: why one record cannot influence what another one contributes.
        hyperparameters: names and values.
        hyperparameter_selection: how the hyper-parameters were chosen.
        public_data: which public data was used.
        metric: the name of the metric.
        history: (step, value) pairs of the metric, measured on *public* data.
        book: what a budget book said of the data set when the report was written; None if there is
            no book, or if it said nothing.

    Raises:
        InvalidArgument: if a value has the wrong type or is not finite.

    >>> facts = RunFacts(name="digits", record="one digit", history=[(10, 0.8), (20, 0.9)])
    >>> RunFacts.from_json(facts.to_json()) == facts
    True
    """

    name: str = "run"
    title: str = "Privacy report"
    dataset: str = NOT_DECLARED
    record: str = NOT_DECLARED
    records_per_user_at_most_one: bool | None = None
    released: str = NOT_DECLARED
    model: str = NOT_DECLARED
    engine: str = NOT_DECLARED
    isolation: str = NOT_DECLARED
    hyperparameters: Mapping[str, Scalar] = field(default_factory=dict)
    hyperparameter_selection: str = NOT_DECLARED
    public_data: str = NOT_DECLARED
    metric: str = "metric"
    history: tuple[tuple[int, float], ...] = ()
    book: Mapping[str, Scalar] | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.type is str and not isinstance(getattr(self, item.name), str):
                raise InvalidArgument(
                    f"Expected {item.name}={getattr(self, item.name)!r} to be text."
                )
        if self.records_per_user_at_most_one not in (True, False, None):
            raise InvalidArgument(
                "Expected records_per_user_at_most_one to be True, False or None (not declared), "
                f"got {self.records_per_user_at_most_one!r}."
            )
        object.__setattr__(self, "hyperparameters", _scalars(self.hyperparameters))
        if self.book is not None:
            object.__setattr__(self, "book", _scalars(self.book))
        object.__setattr__(self, "history", tuple(_measurement(item) for item in self.history))

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON values."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if values.pop("book") is not None:
            values["book"] = dict(self.book or {})
        return {
            **values,
            "hyperparameters": dict(self.hyperparameters),
            "history": [list(pair) for pair in self.history],
        }

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the facts that :meth:`to_json` wrote; missing fields were not declared.

        Raises:
            InvalidArgument: if there are unknown fields.
        """
        known = [item.name for item in fields(cls)]
        if not isinstance(value, dict) or not set(value) <= set(known):
            wrong = (
                ", ".join(sorted(set(value) - set(known)))
                if isinstance(value, dict)
                else type(value).__name__
            )
            raise InvalidArgument(
                f"Expected facts with fields among {', '.join(known)}; got {wrong}."
            )
        return cls(**value)


def _scalars(values: object) -> dict[str, Scalar]:
    if not isinstance(values, Mapping):
        raise InvalidArgument(
            f"Expected hyperparameters to map names to values, got {type(values).__name__}."
        )
    for name, value in values.items():
        plain = isinstance(name, str) and isinstance(value, str | int | float | bool | None)
        if not plain or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidArgument(
                f"Expected hyper-parameter {name!r}={value!r} to be text, a finite number, a truth "
                "value or None."
            )
    return dict(values)


def _measurement(item: object) -> tuple[int, float]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InvalidArgument(f"Expected history to hold pairs (step, value), got {item!r}.")
    step = _validate.count("step", item[0], minimum=0)
    return step, _validate.real(
        "metric",
        item[1],
        -math.inf,
        math.inf,
        open_low=True,
        open_high=True,
        remedy="Leave out measurements that are not finite.",
    )
