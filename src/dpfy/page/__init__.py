"""Show runs, budgets and plans in a browser, read-only and from this machine alone."""

from dpfy._lazy import exports

__getattr__, __all__ = exports(__name__, {"app": ("make_app",), "server": ("serve",)})
