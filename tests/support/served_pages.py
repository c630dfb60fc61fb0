"""The page of a folder, served in this process, and a client that asks it."""

import http.client
import threading
import time
from contextlib import contextmanager

import uvicorn

from dpfy.page import make_app
from dpfy.page.server import HOST, _listener

PATIENCE = 120.0  # seconds until something that must happen counts as missing


class Served:
    """A running page.

    Args:
        port: Where it listens.
    """

    def __init__(self, port):
        self.port = port
        self.address = f"http://{HOST}:{port}"

    def ask(self, path, method="GET", **headers):
        """Return the status, the headers and the text of an answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()
        finally:
            connection.close()

    def until(self, path, wanted):
        """Ask until the answer contains a text, or until patience ends; return the answer."""
        end = time.monotonic() + PATIENCE
        while True:
            status, _, text = self.ask(path)
            assert status == 200
            if wanted in text:
                return text
            assert time.monotonic() < end, f"{wanted!r} never came; last was {text[-3000:]}"
            time.sleep(0.05)


@contextmanager
def served(folder, budget=None):
    """Serve the page of a folder on a free port."""
    listener = _listener(0)
    config = uvicorn.Config(
        make_app(folder, budget), log_level="critical", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Served(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
