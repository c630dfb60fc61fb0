"""Other packages are used without a network, and forgiven their own warnings, by name."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_OF_OTHERS = (
    "ignore::DeprecationWarning:transformers",
    "ignore::FutureWarning:transformers",
    "ignore::UserWarning:peft",
)


def pytest_collection_modifyitems(items):
    """Add the filters to the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            for each in _OF_OTHERS:
                item.add_marker(pytest.mark.filterwarnings(each))
