"""Keep a budget book behind HTTP: who may do what, and every cost computed here.

It needs the extra ``service``.

Tests: tests/budgets/service/test_app.py.
"""

from dpfy._extras import require
from dpfy._lazy import exports

for _package in ("starlette", "uvicorn"):
    require(_package, "service")

__getattr__, __all__ = exports(
    __name__,
    {
        "app": ("make_app",),
        "openapi": ("description",),
        "server": ("serve",),
    },
)
