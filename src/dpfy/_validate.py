"""Checks of declared values; each failure says what was given and what was expected.

Tests: tests/test_validate.py.
"""

import math
from numbers import Integral, Real

from dpfy.errors import InvalidArgument


def _fail(name: str, value: object, expected: str, remedy: str) -> InvalidArgument:
    """Return the error for a value outside its domain."""
    return InvalidArgument(f"Expected {name}={value!r} {expected}.{' ' + remedy if remedy else ''}")


def real(
    name: str,
    value: object,
    low: float,
    high: float,
    *,
    open_low: bool = False,
    open_high: bool = False,
    remedy: str = "",
) -> float:
    """Return ``value`` as a float if it lies between ``low`` and ``high``."""
    is_number = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    number = float(value) if is_number else math.nan  # type: ignore[arg-type]
    inside = (low < number if open_low else low <= number) and (
        number < high if open_high else number <= high
    )
    if not inside:  # also NaN
        left, right = "(" if open_low else "[", ")" if open_high else "]"
        kind = "" if is_number else "to be a number "
        raise _fail(name, value, f"{kind}in {left}{low:g}, {high:g}{right}", remedy)
    return number


def positive(name: str, value: object, remedy: str = "") -> float:
    """Return ``value`` as a finite float above zero."""
    return real(name, value, 0, math.inf, open_low=True, open_high=True, remedy=remedy)


def count(name: str, value: object, minimum: int = 1, remedy: str = "") -> int:
    """Return ``value`` as an int of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise _fail(name, value, f"to be a whole number of at least {minimum}", remedy)
    return int(value)


def delta(value: object) -> float:
    """Return ``value`` as a δ in (0, 1)."""
    return real(
        "delta",
        value,
        0,
        1,
        open_low=True,
        open_high=True,
        remedy="A usual choice is well below one over the number of records.",
    )


def epsilon(value: object) -> float:
    """Return ``value`` as a finite ε above zero."""
    return positive("epsilon", value)


def choice(name: str, value: str, options: tuple[str, ...], remedy: str = "") -> str:
    """Return ``value`` if it is one of ``options``."""
    if value not in options:
        listed = ", ".join(repr(str(option)) for option in options)
        raise _fail(name, value, f"to be one of {listed}", remedy)
    return value
