"""Services for tests: workers that are forked and can be killed, and clients that ask them."""

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

TOKEN = "a token for tests"


class Killable:
    """Two workers that share a port, each forked from a process that has loaded everything.

    A process without threads of its own forks them, so that no lock is copied while it is held. The
    port outlives the workers: who asks while none is there waits for the next ones.
    """

    def __init__(self, make_app: Callable[[], Any], workers: int = 2) -> None:
        self._workers = workers
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(64)
        self.port = self._socket.getsockname()[1]
        self._orders, orders = os.pipe()[::-1]
        reports, self._reports = os.pipe()
        self._pids: list[int] = []
        self._parent = os.fork()
        if self._parent == 0:
            try:
                self._fork_at(orders, make_app)
            finally:
                os._exit(0)
        os.close(orders)
        os.close(self._reports)
        self._reports = reports

    def start(self) -> None:
        """Fork the workers."""
        os.write(self._orders, b"+")
        self._pids = json.loads(os.read(self._reports, 4096))

    def kill(self) -> None:
        """End all workers at once, whatever they are doing."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        os.close(self._orders)
        os.close(self._reports)
        os.waitpid(self._parent, 0)
        self._socket.close()

    def _fork_at(self, orders: int, make_app: Callable[[], Any]) -> None:
        os.close(self._orders)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are killed
        while os.read(orders, 1):
            pids = [self._forked(make_app) for _ in range(self._workers)]
            os.write(self._reports, json.dumps(pids).encode())

    def _forked(self, make_app: Callable[[], Any]) -> int:
        import uvicorn

        if pid := os.fork():
            return pid
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            config = uvicorn.Config(make_app(), log_level="critical", access_log=False)
            uvicorn.Server(config).run(sockets=[self._socket])
        finally:
            os._exit(0)


def ask(port: int, inputs: Any, token: str = TOKEN, path: str = "/predict") -> tuple[int, Any]:
    """Return the status and the parsed answer of one request by a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        if inputs is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, json.dumps({"inputs": inputs}), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


class Clients:
    """Threads that ask over and over, and remember every answer that they got.

    Args:
        port: Where to ask.
        inputs: Returns the inputs of the next request of a client, given its number and a count.
        number: The number of threads.
    """

    def __init__(self, port: int, inputs: Callable[[int, int], list[Any]], number: int = 4) -> None:
        self.answers: list[tuple[tuple[float, ...], Any]] = []
        self.statuses: list[int] = []
        self._port, self._inputs = port, inputs
        self._changed, self._stopped = threading.Condition(), threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(each,)) for each in range(number)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, more: int) -> None:
        """Wait until so many more requests were answered."""
        with self._changed:
            target = len(self.statuses) + more
            assert self._changed.wait_for(lambda: len(self.statuses) >= target, timeout=120)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, client: int) -> None:
        count = 0
        while not self._stopped.is_set():
            inputs = self._inputs(client, count)
            count += 1
            try:
                status, found = ask(self._port, inputs)
            except (OSError, http.client.HTTPException, ValueError):
                continue  # the worker was killed
            with self._changed:
                self.statuses.append(status)
                if status == 200:
                    pairs = zip(map(tuple, inputs), found["answers"], strict=True)
                    self.answers += [pair for pair in pairs if pair[1] is not None]
                self._changed.notify_all()
