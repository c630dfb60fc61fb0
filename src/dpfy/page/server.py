"""Serve the page on this machine alone."""

import socket
from collections.abc import Callable
from pathlib import Path

from dpfy.errors import InvalidArgument

HOST = "127.0.0.1"


def serve(
    folder: Path,
    budget: str | None = None,
    port: int = 8765,
    ready: Callable[[str], object] = lambda address: None,
) -> None:
    """Serve the page until interrupted.

    Args:
        folder: The folder of runs.
        budget: The address of a book of budgets, or None.
        port: The port to listen at; 0 takes a free one.
        ready: Is called with the address of the page once it can be opened.

    Raises:
        InvalidArgument: If the folder is a file, or the port is taken.
    """
    import uvicorn

    from dpfy.page.app import make_app

    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"Expected {folder} to be a folder of runs. Give the one above it.")
    listener = _listener(port)
    config = uvicorn.Config(
        make_app(folder, budget),
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,  # streams of events do not end by themselves
    )
    ready(f"http://{HOST}:{listener.getsockname()[1]}/")
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError):
        listener.close()
        raise InvalidArgument(
            f"Port {port} cannot be used. Choose another one, or --port 0 for a free one."
        ) from None
    listener.listen()  # from here on a browser can connect
    return listener
