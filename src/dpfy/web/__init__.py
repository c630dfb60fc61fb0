"""Answer requests over HTTP: bearer tokens, limits, and errors that tell nothing private.

Tests: tests/web/test_limits.py, tests/web/test_tokens.py, tests/serving/test_app.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "limits": ("Limits", "RateLimit"),
        "tokens": ("create_token", "read_digest"),
    },
)
