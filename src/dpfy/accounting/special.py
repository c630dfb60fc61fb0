"""Special functions by scipy, which is imported on first use.

``scipy.special`` takes 12 MB that a training run whose noise is given never needs.

Tests: tests/accounting/test_solvers.py.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def _on_first_use(name: str) -> Callable[..., Any]:
    """Return a function of ``scipy.special`` that imports it when it is called."""

    def function(*args: Any, **options: Any) -> Any:
        return getattr(import_module("scipy.special"), name)(*args, **options)

    function.__name__ = function.__qualname__ = name
    return function


betainc = _on_first_use("betainc")
erf = _on_first_use("erf")
erfc = _on_first_use("erfc")
erfcx = _on_first_use("erfcx")
gammaln = _on_first_use("gammaln")
log_ndtr = _on_first_use("log_ndtr")
logsumexp = _on_first_use("logsumexp")
ndtr = _on_first_use("ndtr")
ndtri = _on_first_use("ndtri")
ndtri_exp = _on_first_use("ndtri_exp")
xlog1py = _on_first_use("xlog1py")
xlogy = _on_first_use("xlogy")
