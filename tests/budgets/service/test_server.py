"""Where the service listens, and what it refuses to."""

import socket

import pytest

from dpfy.budgets.service import serve
from dpfy.budgets.service.server import is_loopback
from dpfy.budgets.store import Store
from dpfy.errors import InvalidArgument


@pytest.fixture
def store(tmp_path):
    with Store(f"sqlite:///{tmp_path / 'team.db'}") as found:
        yield found


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": "0.0.0.0"}, "in the clear"),
        ({"host": "::"}, "in the clear"),
        ({"host": "no.such.host.invalid"}, "in the clear"),
        ({"certfile": "lost.pem"}, "both a certificate"),
        ({"keyfile": "lost.key"}, "both a certificate"),
        ({"certfile": "lost.pem", "keyfile": "lost.key"}, "to be a file"),
        ({"host": "192.0.2.1", "behind_proxy": True}, "Cannot listen"),
        ({"port": 70000}, "port"),
    ],
)
def test_what_would_not_be_safe_is_not_served(store, options, says):
    with pytest.raises(InvalidArgument, match=says):
        serve(store, **options)


def test_a_port_that_is_taken_is_named(store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidArgument, match=f"port {port}: Address already in use"):
            serve(store, port=port)


def test_loopback_is_what_only_this_machine_reaches():
    assert is_loopback("127.0.0.1") and is_loopback("127.9.9.9") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("192.0.2.1")
