"""Export names from a package and import their modules on first use."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], list[str]]:
    """Return the ``__getattr__`` and the ``__all__`` of a package.

    Args:
        package: the package's ``__name__``.
        homes: for each module of the package, without the package's name, what it exports.

    Returns:
        A function that imports the module of a name when it is first asked for, and all names.

    >>> get, names = exports("dpfy", {"types": ("Budget", "Unit")})
    >>> names, get("Budget").__name__
    (['Budget', 'Unit'], 'Budget')
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return get, sorted(home_of)
