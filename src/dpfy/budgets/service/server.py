"""Run the service of a book in this process.

Tests: tests/servers/test_service.py.
"""

import contextlib
import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path

from dpfy import _validate
from dpfy.budgets.service.app import make_app
from dpfy.budgets.store import Store
from dpfy.errors import InvalidArgument
from dpfy.web.limits import Limits

PORT = 8470
_KEEP_ALIVE = 75  # seconds for which a client may keep its connection without asking


def serve(
    store: Store,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    certfile: str | Path | None = None,
    keyfile: str | Path | None = None,
    behind_proxy: bool = False,
    limits: Limits | None = None,
    tell: Callable[[str], None] = lambda address: None,
) -> None:
    """Listen and answer until interrupted.

    Args:
        store: The database of the book.
        host: The address to listen at; the default is reached from this machine alone.
        port: The port to listen at; 0 for any that is free.
        certfile: The certificate with which requests are encrypted, as PEM.
        keyfile: Its private key, as PEM.
        behind_proxy: Whether a proxy encrypts requests from other machines.
        limits: The limits of requests.
        tell: Called with the address once requests wait for their answers.

    Raises:
        InvalidArgument: If requests from other machines would not be encrypted, if a file does not
            exist, or if the port is taken.
    """
    import uvicorn

    _validate.real("port", port, 0, 65535)
    _check_encrypted(host, certfile, keyfile, behind_proxy)
    config = uvicorn.Config(
        make_app(store, limits),
        ssl_certfile=None if certfile is None else str(certfile),
        ssl_keyfile=None if keyfile is None else str(keyfile),
        timeout_keep_alive=_KEEP_ALIVE,
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    with _listening(host, port) as listening:
        scheme = "http" if certfile is None else "https"
        shown = f"[{host}]" if ":" in host else host
        tell(f"{scheme}://{shown}:{listening.getsockname()[1]}")
        with contextlib.suppress(KeyboardInterrupt):  # which the server has heeded by then
            uvicorn.Server(config).run(sockets=[listening])


def _check_encrypted(
    host: str, certfile: str | Path | None, keyfile: str | Path | None, behind_proxy: bool
) -> None:
    if (certfile is None) != (keyfile is None):
        raise InvalidArgument("Expected both a certificate and its key: --certfile and --keyfile.")
    for file in (certfile, keyfile):
        if file is not None and not Path(file).is_file():
            raise InvalidArgument(f"Expected {file} to be a file in PEM format.")
    if certfile is None and not behind_proxy and not is_loopback(host):
        raise InvalidArgument(
            f"Expected a certificate to listen at {host}, where tokens would travel in the clear. "
            "Give --certfile and --keyfile, or --behind-proxy if a proxy encrypts."
        )


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise InvalidArgument(
            f"Cannot listen at {host}, port {port}: {error.strerror}. Choose another --port or "
            "--host."
        ) from None


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
