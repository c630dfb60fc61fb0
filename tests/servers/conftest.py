"""Databases that the tests of this folder keep books in; every test here is one of servers."""

import programs
import pytest
from databases import PostgreSQL


def pytest_collection_modifyitems(items):
    """Mark the tests of this folder, so that none runs where no server is to be started."""
    for item in items:
        if item.path.is_relative_to(__file__.removesuffix("conftest.py")):
            item.add_marker(pytest.mark.servers)


def _started():
    programs.need("postgresql", "initdb", "postgres", "setpriv")
    server = PostgreSQL()
    yield server
    server.close()


# The server of the session, for tests that leave it running; and one that a test may kill.
_shared = pytest.fixture(scope="session", name="shared_postgresql")(_started)
_own = pytest.fixture(name="postgresql")(_started)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """The URL of a new, empty database, once for each kind that a book is kept in."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'team.db'}"
    return request.getfixturevalue("shared_postgresql").new_database()
