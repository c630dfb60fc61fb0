"""Run the service of a book in this process.

Tests: tests/servers/test_service.py.
"""

import ipaddress
import socket
from pathlib import Path

from dpfy import _validate
from dpfy.budgets.service.app import make_app
from dpfy.budgets.store import Store
from dpfy.errors import InvalidArgument
from dpfy.web.limits import Limits

PORT = 8470


def serve(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    certfile: str | Path | None = None,
    keyfile: str | Path | None = None,
    behind_proxy: bool = False,
    limits: Limits | None = None,
) -> None:
    """Listen and answer until interrupted.

    Args:
        store: The database of the book.
        host: The address to listen at; the default is reached from this machine alone.
        port: The port to listen at.
        certfile: The certificate with which requests are encrypted, as PEM.
        keyfile: Its private key, as PEM.
        behind_proxy: Whether a proxy encrypts requests from other machines.
        limits: The limits of requests.

    Raises:
        InvalidArgument: If requests from other machines would not be encrypted, or if a file does
            not exist.
    """
    import uvicorn

    _validate.real("port", port, 0, 65535)
    if (certfile is None) != (keyfile is None):
        raise InvalidArgument("Expected both a certificate and its key: certfile= and keyfile=.")
    if certfile is None and not behind_proxy and not is_loopback(host):
        raise InvalidArgument(
            f"Expected a certificate to listen at {host}, where tokens would travel in the clear. "
            "Give --certfile and --keyfile, or --behind-proxy if a proxy encrypts."
        )
    for file in (certfile, keyfile):
        if file is not None and not Path(file).is_file():
            raise InvalidArgument(f"Expected {file} to be a file in PEM format.")
    uvicorn.run(
        make_app(store, limits),
        host=host,
        port=port,
        ssl_certfile=None if certfile is None else str(certfile),
        ssl_keyfile=None if keyfile is None else str(keyfile),
        log_level="warning",
        access_log=False,
        server_header=False,
    )


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine alone.

    Args:
        host: A name or an address.

    Returns:
        Whether all of its addresses are loopback ones.
    """
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(ipaddress.ip_address(each[4][0]).is_loopback for each in found)
