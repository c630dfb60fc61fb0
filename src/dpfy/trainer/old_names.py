"""Names of settings: those of version 0.1 stay valid, and unknown ones are refused.

Tests: tests/trainer/test_config.py.
"""

import difflib
import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from dpfy._renamed import warn_renamed
from dpfy.errors import InvalidArgument

T = TypeVar("T")

OLD_NAMES = {
    "schedule": "lr_schedule",
    "tail": "average_tail",
    **{
        name: f"importance.{name}"
        for name in ("ratio", "ratio_schedule", "slack", "floor", "norm_sum")
    },
}
"""Settings before version 0.2, and what they are called now."""


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under the names of today, as files of version 0.1 need it.

    Args:
        values: Settings, some of them perhaps under old names.

    Returns:
        The settings, with the table ``importance`` as a mapping.

    >>> current_names({"tail": 0.25, "ratio": 0.5})
    {'average_tail': 0.25, 'importance': {'ratio': 0.5}}
    """
    found = {name: value for name, value in values.items() if name not in OLD_NAMES}
    for old in (name for name in values if name in OLD_NAMES):
        table, _, name = OLD_NAMES[old].rpartition(".")
        if table:
            found[table] = {**as_mapping(found.get(table, {})), name: values[old]}
        else:
            found[name] = values[old]
    return found


def as_mapping(table: Any) -> dict[str, Any]:
    """Return the values of a table that was given as one or as its dataclass."""
    if is_dataclass(table):
        return {item.name: getattr(table, item.name) for item in fields(table)}
    if not isinstance(table, Mapping):
        raise InvalidArgument(
            f"Expected importance={table!r} to be a table, such as [importance] with a line "
            "ratio = 0.5."
        )
    return dict(table)


def warn_of_old_names(values: Mapping[str, Any], stacklevel: int) -> None:
    """Say what each old name is called now."""
    for old in (name for name in values if name in OLD_NAMES):
        warn_renamed(f"the setting {old}", OLD_NAMES[old], stacklevel + 1)


def with_old_names(cls: type[T]) -> type[T]:
    """Let a configuration be made, and read, by the names of version 0.1."""
    make: Any = cls.__init__

    @functools.wraps(make)
    def init(self: T, *values: Any, **named: Any) -> None:
        warn_of_old_names(named, 3)
        make(self, *values, **current_names(named))

    cls.__init__ = init  # type: ignore[assignment]
    for old, new in OLD_NAMES.items():
        doc = f"Old name of ``{new}``."
        setattr(cls, old, property(functools.partial(_read_old, old), doc=doc))
    return cls


def _read_old(old: str, config: Any) -> Any:
    """Read a setting by its old name."""
    warn_renamed(f"the setting {old}", OLD_NAMES[old])
    return functools.reduce(getattr, OLD_NAMES[old].split("."), config)


def check_names(
    values: Mapping[str, Any],
    known: list[str],
    table: str = "",
    suggested: list[str] | None = None,
) -> None:
    """Refuse an unknown name with the nearest one of those that are suggested."""
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            raise InvalidArgument(
                f"Unknown setting {f'{table}{name}'!r}."
                + (
                    f" Did you mean {OLD_NAMES.get(near[0], near[0])!r}?"
                    if near
                    else f" Known: {', '.join(suggested or known)}."
                )
            )
