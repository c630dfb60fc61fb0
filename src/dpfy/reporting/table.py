"""A table of a report, as all formats print it.

Tests: tests/reporting/test_formats.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A titled table; ``lead`` is a sentence before it."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lead: str = ""
