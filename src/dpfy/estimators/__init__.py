"""Fit private models of scikit-learn's form to tables, each release recorded before rows are read.

Tests: tests/test_imports.py.
"""

from dpfy._extras import require
from dpfy._lazy import exports

require("sklearn", "estimators")

__getattr__, __all__ = exports(
    __name__,
    {
        "base": ("PrivateEstimator",),
        "boosting": ("ExplainableBoosting",),
        "budgets": ("cost_of_fits", "split_budget"),
        "description": ("describe",),
        "fitting": ("shared_ledger",),
        "kmeans": ("KMeans",),
        "linear": ("LinearRegression", "Ridge"),
        "logistic": ("LogisticRegression",),
        "naive_bayes": ("CategoricalNB", "GaussianNB"),
        "pca": ("PCA",),
        "plots": ("plot_coefficients",),
        "summary": ("ColumnSummary", "Estimate", "Summary"),
        "trees": ("RandomTrees",),
    },
)
