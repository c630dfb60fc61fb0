"""Report single values under local privacy, and estimate how often each value is from many reports.

The unit of privacy is one report, and the relation replaces the value that it is about. Proofs:
``docs/proofs/local.md``.

Tests: tests/test_imports.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "frequencies": ("Frequencies",),
        "response": ("RandomizedResponse",),
        "unary": ("UnaryEncoding",),
    },
)
