"""Keep one budget per data set for many runs, people and machines; no run begins without a grant.

:class:`BudgetBook` is the book, :class:`Grant` what a run holds. See
``docs/proofs/budgets.md``.
"""

from dpfy.budgets.book import BudgetBook
from dpfy.budgets.grant import Grant
from dpfy.budgets.values import DatasetState, Entry, GrantState, State

__all__ = ["BudgetBook", "DatasetState", "Entry", "Grant", "GrantState", "State"]
