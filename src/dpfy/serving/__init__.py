"""Answer private predictions over HTTP, from several processes that share one ledger.

It needs the extra ``service``.

Tests: tests/serving/test_app.py.
"""

from dpfy._extras import require
from dpfy._lazy import exports

for _package in ("starlette", "uvicorn"):
    require(_package, "service")

__getattr__, __all__ = exports(
    "dpfy",
    {
        "serving.app": ("make_app",),
        "serving.server": ("Service", "serve"),
        "web.limits": ("Limits",),
        "web.tokens": ("create_token",),
    },
)
