"""Describe tables by declared schemas, read them, and encode them by public rules.

Tests: tests/test_imports.py.
"""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "encoder": ("Encoder",),
        "schema": ("Column", "Schema"),
        "templates": ("schema_from_public", "template"),
        "tables": ("columns_of", "read_table"),
    },
)
