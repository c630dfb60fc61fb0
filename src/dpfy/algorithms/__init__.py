"""Complete recipes over a run: they look at released values, and ask the private records what a ledger has paid for."""

from dpfy.algorithms.backtracking import Backtracking, line_search
from dpfy.algorithms.choosing import noisy_max
from dpfy.algorithms.steps import Taken
from dpfy.mechanisms.controllers.directed import Directed

__all__ = ["Backtracking", "Directed", "Taken", "line_search", "noisy_max"]
