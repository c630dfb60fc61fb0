"""What a notebook shows of an object: HTML that :mod:`dpfy.reporting.notebook` makes.

Plans, guarantees and ledgers are known in rooms below reporting, which may not import it. They ask
here, and reporting is imported when a notebook wants to show something, never before.

Tests: tests/reporting/test_notebook.py.
"""

from importlib import import_module


def html_of(shown: object) -> str | None:
    """Return the static HTML of an object; None where there is nothing to show but its repr."""
    found: str | None = import_module("dpfy.reporting.notebook").html_of(shown)
    return found
