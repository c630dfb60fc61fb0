"""Users' own objects, named on the command line as ``package.module:name``."""

import importlib
import sys
from typing import Any

from dpfy.errors import InvalidArgument


def load_object(reference: str) -> Any:
    """Return what ``package.module:name`` names; modules in the current directory are found.

    >>> load_object("math:pi")
    3.141592653589793
    """
    module_name, colon, name = reference.partition(":")
    if not (module_name and colon and name):
        raise InvalidArgument(f"Expected package.module:name, got {reference!r}.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise InvalidArgument(f"There is no module {error.name!r} to take {reference!r} from. Run dpfy in the folder "
                              "that holds it, or install it.") from None
    except AttributeError:
        raise InvalidArgument(f"The module {module_name!r} has no {name!r}.") from None
