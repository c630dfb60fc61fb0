"""Tests with the package mbi: `make test-synth` runs them, and they are skipped elsewhere.

jax is forgiven what it says about its own settings, by name.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_OF_OTHERS = ("ignore::UserWarning:mbi", "ignore::DeprecationWarning:jax")


def pytest_collection_modifyitems(items):
    """Skip the tests of this folder unless they are asked for, and add the filters to them."""
    asked = "DPFY_TEST_SYNTH" in os.environ
    missing = find_spec("mbi") is None
    for item in items:
        if not item.path.is_relative_to(_HERE):
            continue
        for each in _OF_OTHERS:
            item.add_marker(pytest.mark.filterwarnings(each))
        if missing and "synth" in os.environ.get("DPFY_REQUIRE", "").split(","):
            pytest.fail("mbi is not installed: pip install 'dpfy[synth]'", pytrace=False)
        if missing or not asked:
            item.add_marker(pytest.mark.skip(reason="`make test-synth` runs it, with mbi"))
