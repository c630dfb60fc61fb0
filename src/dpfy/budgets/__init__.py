"""Keep one budget per data set for many runs, people and machines; no run begins without a grant.

:class:`BudgetBook` is the book, :class:`Grant` what a run holds. The claim and its proof are in
``docs/proofs/budgets.md``.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "book": ("BudgetBook",),
        "grant": ("Grant",),
        "values": ("DatasetState", "Entry", "GrantState", "State"),
    },
)
