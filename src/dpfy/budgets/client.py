"""A book that a service keeps: the backend that asks it.

Tests: tests/budgets/test_client.py.
"""

import http.client
import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from dpfy._version import __version__
from dpfy.budgets.declarations import Declaration
from dpfy.budgets.tokens import Role, TokenState
from dpfy.budgets.values import DatasetState, Entry, GrantState, Request, Terms
from dpfy.budgets.wire import KINDS, PREFIX, TOKEN
from dpfy.errors import BookError, BookUnavailable, DpfyError, InvalidArgument
from dpfy.ledger.journal import Head

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PAUSES = (0.1, 0.4, 1.6, None)  # seconds before a request is sent again
_REACHED = 10.0  # seconds until a connection is made
_SECONDS = 60.0  # that an answer may take
_AGAIN = (  # answers after which the same request may be sent again
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


class Service:
    """Ask the service that keeps a book.

    Requests whose answer is lost are sent again with the same key, or are such that twice is once.

    *Assumes* that the service is the one that the address names: over ``https`` its certificate is
    checked, against the authorities of the system or of ``SSL_CERT_FILE``.

    Args:
        url: The address of the service; ``http`` on this machine only.
        token: The bearer token. Default: the environment variable ``DPFY_BUDGET_TOKEN``.
        pause: Waits for so many seconds before a request is sent again.

    Raises:
        InvalidArgument: If the address is not one of a service, or if there is no token.
        BookUnavailable: If the service cannot be reached.
        BookError: If it refuses the token.
    """

    def __init__(
        self, url: str, token: str | None = None, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._address = _address(url)
        self._token = _token(token)
        self._pause = pause
        self._connections: dict[int, http.client.HTTPConnection] = {}  # by threads
        self._pid = os.getpid()
        self.name = url.rstrip("/")
        found = self._get("/book")
        self.identity = str(found["identity"])
        self.actor = str(found["name"])

    def create(self, declaration: Declaration) -> None:
        """Declare a data set."""
        self._post("/datasets", declaration.to_json())

    def datasets(self) -> tuple[DatasetState, ...]:
        """Return all data sets."""
        return tuple(map(DatasetState.from_json, self._get("/datasets")["datasets"]))

    def show(self, name: str) -> DatasetState:
        """Return one data set."""
        return DatasetState.from_json(self._get(f"/datasets/{_quoted(name)}"))

    def grant(self, grant: str) -> GrantState:
        """Return one grant."""
        return GrantState.from_json(self._get(f"/grants/{_quoted(grant)}"))

    def terms(self, grant: str) -> Terms:
        """Return what a grant permits."""
        return Terms.from_json(self._get(f"/grants/{_quoted(grant)}/terms"))

    def reserve(self, request: Request) -> Terms:
        """Keep budget for a run."""
        return Terms.from_json(self._post("/grants", request.to_json()))

    def activate(
        self, grant: str, header_hash: str, ledger_id: str, head: Head, ended: int | None, key: str
    ) -> int:
        """Let a run begin on a ledger, and return its number."""
        asked = {
            "header": header_hash,
            "ledger": ledger_id,
            "head": _head(head),
            "ended": ended,
            "key": key,
        }
        return int(self._post(f"/grants/{_quoted(grant)}/activations", asked)["run"])

    def anchor(self, grant: str, head: Head) -> None:
        """Remember how far a ledger has come."""
        self._post(f"/grants/{_quoted(grant)}/anchors", _head(head))

    def settle(self, grant: str, ledger: bytes) -> GrantState:
        """Charge what a ledger shows, and free the rest."""
        return GrantState.from_json(self._post(f"/grants/{_quoted(grant)}/settlement", ledger))

    def reopen(self, grant: str, ledger: bytes) -> GrantState:
        """Pay for what a run without a known end may have spent."""
        return GrantState.from_json(self._post(f"/grants/{_quoted(grant)}/reopening", ledger))

    def forfeit(self, grant: str, reason: str) -> GrantState:
        """Charge all that was kept."""
        asked = {"reason": reason}
        return GrantState.from_json(self._post(f"/grants/{_quoted(grant)}/forfeit", asked))

    def withdraw(self, grant: str) -> GrantState:
        """Free what was kept for a grant that no run has begun under."""
        return GrantState.from_json(self._post(f"/grants/{_quoted(grant)}/withdrawal", {}))

    def open_tranche(self, name: str, opened: int) -> DatasetState:
        """Open the next tranche of a data set, so that so many are open."""
        asked = {"opened": opened}
        return DatasetState.from_json(self._post(f"/datasets/{_quoted(name)}/tranches", asked))

    def entries(self, name: str | None, after: int, limit: int) -> list[Entry]:
        """Return entries in order."""
        asked = {"after": after, "limit": limit} | ({} if name is None else {"dataset": name})
        found = self._get(f"/log?{urlencode(asked)}")["entries"]
        return [Entry(**entry) for entry in found]

    def ledger(self, grant: str) -> bytes | None:
        """Return the ledger that settled a grant."""
        found = self._ask("GET", f"/grants/{_quoted(grant)}/ledger")
        return found if isinstance(found, bytes) else None

    def verify(self) -> int:
        """Let the service check everything, and return the number of entries."""
        return int(self._get("/verification")["entries"])

    def tokens(self) -> tuple[TokenState, ...]:
        """Return all tokens of the book."""
        return tuple(map(TokenState.from_json, self._get("/tokens")["tokens"]))

    def issue(self, name: str, role: Role | str, sha256: str) -> TokenState:
        """Accept a token from now on."""
        asked = {"name": name, "role": str(role), "sha256": sha256}
        return TokenState.from_json(self._post("/tokens", asked))

    def revoke(self, name: str) -> TokenState:
        """Accept the token of a name no longer."""
        return TokenState.from_json(self._ask("DELETE", f"/tokens/{_quoted(name)}"))

    def close(self) -> None:
        """Close all connections."""
        while self._connections:
            self._connections.popitem()[1].close()

    def _get(self, path: str) -> Any:
        return self._ask("GET", path)

    def _post(self, path: str, value: dict[str, Any] | bytes) -> Any:
        return self._ask("POST", path, value)

    def _ask(self, method: str, path: str, value: dict[str, Any] | bytes | None = None) -> Any:
        """Return the answer to a request, which is sent again as long as it has none."""
        reason = ""
        for pause in _PAUSES:
            try:
                status, kind, answer = self._sent(method, path, value)
            except (OSError, http.client.HTTPException) as error:
                self._dropped()
                if isinstance(error, ssl.SSLCertVerificationError):
                    raise InvalidArgument(
                        f"The certificate of {self.name} is not accepted: {error.verify_message}. "
                        "Name its authority in the environment variable SSL_CERT_FILE."
                    ) from None
                reason = type(error).__name__
            else:
                if status < HTTPStatus.BAD_REQUEST:
                    return _parsed(kind, answer)
                if status not in _AGAIN:
                    raise _error(status, answer)
                reason = str(_error(status, answer))
            if pause is not None:
                self._pause(pause)
        raise BookUnavailable(
            f"The service at {self.name} cannot be reached: {reason}. Nothing was granted that is "
            "not on record there; try again."
        )

    def _sent(
        self, method: str, path: str, value: dict[str, Any] | bytes | None
    ) -> tuple[int, str, bytes]:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "User-Agent": f"dpfy/{__version__}",
        }
        body = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        if body is not None:
            kind = "octet-stream" if isinstance(value, bytes) else "json"
            headers["Content-Type"] = f"application/{kind}"
        connection = self._connection()
        connection.request(method, self._address.path.rstrip("/") + PREFIX + path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers.get("Content-Type", ""), response.read()

    def _connection(self) -> http.client.HTTPConnection:
        """Return the connection of this thread; those of a parent process are not for a child."""
        if os.getpid() != self._pid:
            self.close()
            self._pid = os.getpid()
        found = self._connections.get(threading.get_ident())
        if found is None:
            found = self._opened()
            self._connections[threading.get_ident()] = found
        return found

    def _opened(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "https":
            context = ssl.create_default_context()
            found = http.client.HTTPSConnection(host, port, timeout=_REACHED, context=context)
        else:
            found = http.client.HTTPConnection(host, port, timeout=_REACHED)
        found.connect()
        found.sock.settimeout(_SECONDS)
        return found

    def _dropped(self) -> None:
        found = self._connections.pop(threading.get_ident(), None)
        if found is not None:
            found.close()


def _address(url: str) -> Any:
    found = urlsplit(url)
    if found.scheme not in ("http", "https") or not found.hostname or found.query or found.fragment:
        raise InvalidArgument(
            f"Expected the address of a service, such as https://budget.example, got {url!r}."
        )
    if found.username is not None or found.password is not None:
        raise InvalidArgument(
            f"Expected an address without a name or password. Keep the token in {TOKEN}."
        )
    if found.scheme == "http" and found.hostname not in _LOOPBACK:
        raise InvalidArgument(
            f"Expected https:// to reach {found.hostname}: the token would travel in the clear."
        )
    return found


def _token(token: str | None) -> str:
    found = token or os.environ.get(TOKEN, "")
    if not found or not found.isascii() or not found.isprintable():
        raise InvalidArgument(
            f"Expected a token in the environment variable {TOKEN}. A steward issues one with "
            "`dpfy budget token`."
        )
    return found


def _head(head: Head) -> dict[str, Any]:
    return {"count": head.count, "hash": head.hash}


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _parsed(kind: str, answer: bytes) -> Any:
    if not answer:
        return None
    return json.loads(answer) if kind.startswith("application/json") else answer


def _error(status: int, answer: bytes) -> DpfyError:
    """Return the error that the service raised, under its own name."""
    try:
        found = json.loads(answer)["error"]
        code, message = str(found["code"]), str(found["message"])
    except (ValueError, TypeError, KeyError):
        return BookError(f"The service answered with status {status} and no reason.")
    return KINDS.get(code, BookError)(message)
