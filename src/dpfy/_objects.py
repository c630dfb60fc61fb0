"""Loading of users' own objects, which the command line names as ``package.module:name``.

Tests: tests/test_objects.py.
"""

import importlib
import sys
from typing import Any

from dpfy.errors import DataError, InvalidArgument


def load_object(reference: str) -> Any:
    """Return the object that ``package.module:name`` names.

    Modules in the current directory are found.

    Args:
        reference: module and name, separated by a colon.

    Returns:
        The object itself; it is not called.

    Raises:
        InvalidArgument: if the reference is malformed, or if the module or the name does not exist.
        DataError: if importing the module fails.

    >>> load_object("math:pi")
    3.141592653589793
    """
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise InvalidArgument(f"Expected package.module:name, got {reference!r}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidArgument(
            f"There is no module {error.name!r}, and {reference!r} needs it. Run dpfy in the "
            "folder that holds it, or install it."
        ) from None
    except Exception as error:
        raise _failed(f"Importing {module_name!r}", error) from error
    if not hasattr(module, name):
        raise InvalidArgument(
            f"The module {module_name!r} has no {name!r}. Check the name after the colon."
        )
    return getattr(module, name)


def make_object(reference: str) -> Any:
    """Return the object that ``package.module:name`` names, called if it is callable.

    Args:
        reference: module and name, separated by a colon.

    Returns:
        The named object, or the result of calling it without arguments.

    Raises:
        InvalidArgument: if the reference is malformed, or if the module or the name does not exist.
        DataError: if importing the module or calling the object fails.

    >>> make_object("fractions:Fraction")
    Fraction(0, 1)
    """
    found = load_object(reference)
    if not callable(found):
        return found
    try:
        return found()
    except Exception as error:
        raise _failed(f"Calling {reference!r}", error) from error


def _failed(action: str, error: Exception) -> DataError:
    """Return an error that names ``error`` without its text, which may quote records.

    With ``--debug``, people who may see records get the traceback.
    """
    return DataError(
        f"{action} raised {type(error).__name__}. Fix it, and use `dpfy --debug` to see where; "
        "the traceback may quote records."
    )
