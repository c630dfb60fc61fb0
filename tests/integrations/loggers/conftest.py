"""Trackers write to no network, and are forgiven their own warnings, by name."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

_OF_OTHERS = (
    "ignore::DeprecationWarning:alembic",
    "ignore::DeprecationWarning:mlflow",
    "ignore::DeprecationWarning:sqlalchemy",
)


def pytest_collection_modifyitems(items):
    """Add the filters to the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            for each in _OF_OTHERS:
                item.add_marker(pytest.mark.filterwarnings(each))
