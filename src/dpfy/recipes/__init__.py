"""Complete training recipes: they read released values, and ask records only what is paid for.

Tests: tests/recipes/test_renamed.py.
"""

from typing import Any

from dpfy._renamed import warn_renamed
from dpfy.mechanisms.controllers.recipe_controlled import RecipeControlled
from dpfy.recipes.line_search import Backtracking, line_search
from dpfy.recipes.noisy_max import noisy_max
from dpfy.recipes.steps import Taken

__all__ = ["Backtracking", "RecipeControlled", "Taken", "line_search", "noisy_max"]


def __getattr__(name: str) -> Any:
    """Return the class that was called ``Directed`` before version 0.2, with a warning."""
    if name == "Directed":
        warn_renamed("dpfy.recipes.Directed", "dpfy.recipes.RecipeControlled")
        return RecipeControlled
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
