"""The HTTP application of a book: tokens, roles, limits, and errors with names."""

import logging
import math
import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dpfy.budgets.database import Database
from dpfy.budgets.service import schemas
from dpfy.budgets.service.endpoints import ENDPOINTS, Call, Endpoint, Forbidden
from dpfy.budgets.service.openapi import description
from dpfy.budgets.store import Store
from dpfy.budgets.tokens import Tokens, TokenState
from dpfy.budgets.wire import PREFIX, status_of, tag_of
from dpfy.errors import DpfyError, InvalidArgument
from dpfy.web.answers import Handler, Refusal, answered, error_response, read_body, read_object
from dpfy.web.limits import Limits, RateLimit

_LOG = logging.getLogger("dpfy.budgets.service")
LIMITS = Limits(body=2**26, rate=6000.0, seconds=60.0)
_MOST_STRANGERS = 600.0  # requests a minute whose token is not accepted


def make_app(store: Store, limits: Limits | None = None) -> Starlette:
    """Return the application that keeps a book.

    Every request but those for ``/v1/health`` and ``/v1/openapi.json`` needs a bearer token of the
    book, whose role says what it may do: 403 otherwise. Errors are ``{"error": {"code": …,
    "message": …}}``.

    *Formal guarantee*: that of the book, whatever clients send: costs are computed here, from the
    events and the ledgers that are sent. A request that is sent again with the same key, because
    its answer was lost, is not done twice.

    Args:
        store: The database of the book.
        limits: The limits of requests: of all together in size and time, of each token in rate.

    Returns:
        The application, for any ASGI server.
    """
    limits = limits or LIMITS
    door = _Door(store, limits.rate)

    def guarded(endpoint: Endpoint) -> Handler:
        async def checked(request: Request) -> Response:
            token = await run_in_threadpool(door.admitted, request.headers.get("authorization"))
            if token.role not in endpoint.roles:
                raise _forbidden(
                    f"The token of {token.name!r} has the role {token.role}. Expected "
                    f"{' or '.join(sorted(endpoint.roles))}."
                )
            call = Call(
                book=door.book.acting(token.name),
                tokens=Tokens(store, token.name),
                token=token,
                path=_storable(dict(request.path_params)),
                query=_storable(dict(request.query_params)),
                body=await _body(endpoint, request, limits),
            )
            try:
                found = await run_in_threadpool(endpoint.answer, call)
            except Forbidden as error:
                raise _forbidden(str(error)) from None
            return _answer(found)

        return answered(checked, _LOG, _refused)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    described = JSONResponse(description())

    async def openapi(request: Request) -> Response:
        return described

    app = Starlette(
        routes=[
            *(
                Route(PREFIX + endpoint.path, guarded(endpoint), methods=[endpoint.method])
                for endpoint in ENDPOINTS
            ),
            Route(f"{PREFIX}/health", health, methods=["GET"]),
            Route(f"{PREFIX}/openapi.json", openapi, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _not_found},
    )
    app.router.redirect_slashes = False  # a redirect would be an answer to who has no token
    return app


class _Door:
    """Lets in who has a token, and each of them so often."""

    def __init__(self, store: Store, rate: float) -> None:
        self.book = Database(store, "service")
        self._tokens = Tokens(store)
        self._rate = rate
        self._limits: dict[str, RateLimit] = {}
        self._strangers = RateLimit(_MOST_STRANGERS)
        self._counting = threading.Lock()

    def admitted(self, authorization: str | None) -> TokenState:
        """Return whose request it is."""
        scheme, _, token = (authorization or "").partition(" ")
        known = self._tokens.of(token.strip()) if scheme.lower() == "bearer" else None
        with self._counting:
            limit = self._strangers
            if known is not None:
                limit = self._limits.setdefault(known.name, RateLimit(self._rate))
            admitted = limit.admit()
        if not admitted:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_requests",
                "Too many requests in a minute. Wait, and ask again.",
            )
        if known is None:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "unauthorized",
                "Expected a bearer token of this book. A steward issues one: dpfy budget token.",
            )
        return known


async def _body(endpoint: Endpoint, request: Request, limits: Limits) -> Any:
    if endpoint.body is None:
        return None
    if endpoint.takes_bytes:
        return await read_body(request, limits)
    found = await read_object(request, limits)
    if found is None:
        raise Refusal(HTTPStatus.BAD_REQUEST, "invalid_json", "Expected a JSON object.")
    schemas.check(_storable(found), endpoint.body)
    return found


def _storable(value: Any) -> Any:
    """Return a JSON value that any database keeps: finite numbers and whole characters."""
    waiting: list[Any] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, str):
            if "\0" in each or any("\ud800" <= letter <= "\udfff" for letter in each):
                raise InvalidArgument("Expected texts without NUL and without half characters.")
        elif isinstance(each, float) and not math.isfinite(each):
            raise InvalidArgument("Expected finite numbers.")
        elif isinstance(each, int) and abs(each) >= 2**63:
            raise InvalidArgument("Expected whole numbers below 2**63.")
    return value


def _answer(found: Any) -> Response:
    if found is None:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    if isinstance(found, bytes):
        return Response(found, media_type="application/octet-stream")
    return JSONResponse(found)


def _refused(error: DpfyError) -> Response | None:
    status = status_of(error)
    return None if status is None else error_response(status, tag_of(type(error)), str(error))


def _forbidden(message: str) -> Refusal:
    return Refusal(HTTPStatus.FORBIDDEN, "forbidden", message)


async def _not_found(request: Request, error: Exception) -> Response:
    status = HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND))
    text = f"Expected a path and a method that {PREFIX}/openapi.json describes."
    response = error_response(status, status.name.lower(), text)
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(_methods(request.url.path))
    return response


def _methods(path: str) -> Iterable[str]:
    return sorted(
        {
            endpoint.method
            for endpoint in ENDPOINTS
            if Route(PREFIX + endpoint.path, _not_found).path_regex.match(path)
        }
    ) or ["GET"]
