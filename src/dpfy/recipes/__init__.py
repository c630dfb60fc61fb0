"""Complete recipes over a run: they look at released values, and ask the private records what a
ledger has paid for.
"""

from dpfy.mechanisms.controllers.recipe_controlled import RecipeControlled
from dpfy.recipes.line_search import Backtracking, line_search
from dpfy.recipes.noisy_max import noisy_max
from dpfy.recipes.steps import Taken

__all__ = ["Backtracking", "RecipeControlled", "Taken", "line_search", "noisy_max"]
