"""Flower's tests need an environment of their own: `make test-flower` makes it and runs them."""

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():  # that packages give each other when they are first imported
    warnings.simplefilter("ignore")
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp
    import flwr.simulation  # noqa: F401
    from flwr.supercore.task_identity import TaskIdentity

_OF_OTHERS = ("ignore::DeprecationWarning:click", "ignore::DeprecationWarning:flwr")


def pytest_collection_modifyitems(items):
    """Add the filters to the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            for each in _OF_OTHERS:
                item.add_marker(pytest.mark.filterwarnings(each))


@pytest.fixture
def task(monkeypatch):
    """Be a task of a server, as which alone Flower makes messages."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
