"""Parse values of settings and of the command line: a name, and numbers after colons.

Tests: tests/mechanisms/controllers/test_controllers.py.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import TypeVar

from dpfy.errors import InvalidArgument

T = TypeVar("T")


def named(what: str, text: str, known: Mapping[str, Callable[..., T]]) -> T:
    """Call the ``known`` function that a text such as ``quantile:0.7`` names.

    The numbers are its arguments, in their order.

    >>> named("a shape", "power:2", {"power": lambda exponent: [exponent]})
    [2.0]
    """
    name, *numbers = text.split(":")
    if name not in known:
        raise InvalidArgument(
            f"Expected {what} to be one of {', '.join(known)}, with numbers after colons, got "
            f"{text!r}."
        )
    parameters = inspect.signature(known[name]).parameters
    required = [
        each.name for each in parameters.values() if each.default is inspect.Parameter.empty
    ]
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if len(values) < max(len(numbers), len(required)) or len(values) > len(parameters):
        order = ":".join((name, *(each.upper() for each in parameters)))
        raise InvalidArgument(
            f"Expected {what} as {order}, with a number for each word, got {text!r}."
            + (" The last of them can be left out." if len(required) < len(parameters) else "")
        )
    return known[name](*values)
