"""Describe each setting once: for the template, for ``--help`` and for the reference page.

Tests: tests/trainer/test_config.py.
"""

import inspect
import math
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin

from dpfy.errors import InvalidArgument

T = TypeVar("T")


def option(
    default: Any, help: str, *, example: Any = None, otherwise: str = "none", needs: str = ""
) -> Any:
    """Describe a field once, for the documentation, the template and ``--help``.

    Where the default is None, ``otherwise`` says what happens then and ``example`` shows a value.
    ``needs`` is the line of TOML without which a value other than the default is refused.
    """
    return field(
        default=default,
        metadata={"help": help, "example": example, "otherwise": otherwise, "needs": needs},
    )


@dataclass(frozen=True)
class Setting:
    """One setting as files, flags and the reference page show it.

    Args:
        name: The name in a file; ``importance.ratio`` is ``ratio`` in the table ``[importance]``.
        type: The annotation of its field.
        default: The default, or None where there is none or it depends on others.
        help: A sentence that says what it is, with its unit.
        otherwise: What None means: ``none``, or how the value is chosen.
        example: A valid value, shown where the default is None.
        needs: The line of TOML without which a value other than the default is refused.
    """

    name: str
    type: Any
    default: Any
    help: str
    otherwise: str
    example: Any
    needs: str

    @property
    def flag(self) -> str:
        """The name on the command line, where tables are flat."""
        return self.name.rpartition(".")[2]

    @property
    def default_text(self) -> str:
        """The default in words."""
        if not isinstance(self.default, str | int | float):
            return self.otherwise
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    @property
    def description(self) -> str:
        """The help with the default."""
        return f"{self.help} Default: {self.default_text}."

    def to_toml(self) -> str:
        """Return a line that sets it to its default, or to an example of a value."""
        if self.default is not None:
            return f"{self.flag} = {_toml(self.default)}"
        none = (
            "no default" if self.otherwise == "none" else f"an example; default: {self.otherwise}"
        )
        needs = f"; needs {self.needs}" if self.needs else ""
        return f"{self.flag} = {_toml(self.example)}  # {none}{needs}"


def setting_of(item: "Field[Any]", table: str = "") -> Setting:
    """The description of a field."""
    about = item.metadata
    return Setting(
        f"{table}{item.name}",
        item.type,
        item.default,
        about["help"],
        about["otherwise"],
        about["example"],
        about["needs"],
    )


def documented(cls: type[T]) -> type[T]:
    """Add an Args section from the descriptions of the fields."""
    lines = [f"    {item.name}: {setting_of(item).description}" for item in fields(cls)]  # type: ignore[arg-type]
    text, example, lines_of_it = inspect.cleandoc(cls.__doc__ or "").partition(">>> ")
    cls.__doc__ = text + "\n".join(["Args:", *lines, "", ""]) + example + lines_of_it
    return cls


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def check_type(name: str, value: Any, annotation: Any) -> None:
    """Refuse a value of another type than declared; integers are numbers, truth values are not."""
    allowed = (
        get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    )
    plain = tuple(kind for kind in allowed if isinstance(kind, type))
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"Expected {name}={value!r} to be finite.")
    if not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain):
        kinds = " or ".join(kind.__name__ for kind in plain if kind is not type(None))
        raise InvalidArgument(
            f"Expected {name}={value!r} to be of type {kinds}, got {type(value).__name__}."
        )


def changed_settings(config: Any) -> dict[str, Any]:
    """Return the settings that differ from their defaults."""
    return {
        item.name: value
        for item in fields(config)
        if (value := getattr(config, item.name)) != item.default
    }
