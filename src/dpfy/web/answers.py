"""Read requests of limited size, and turn whatever a handler raises into JSON.

Errors are ``{"error": {"code": …, "message": …}}``. Rooms that answer requests say which extra is
missing before they import this module.

Tests: tests/serving/test_app.py.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from dpfy.errors import DpfyError
from dpfy.web.limits import Limits

Handler = Callable[[Request], Awaitable[Response]]


class Refusal(Exception):
    """An answer other than the one that was asked for.

    Args:
        status: The status of the answer.
        code: A short name of what is wrong, for programs.
        message: What is wrong and what to do, for people.
    """

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.response = error_response(status, code, message)


def error_response(status: HTTPStatus, code: str, message: str) -> Response:
    """Return an error as JSON.

    Args:
        status: The status of the answer.
        code: A short name of what is wrong, for programs.
        message: What is wrong and what to do, for people.

    Returns:
        The answer.
    """
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)


def answered(
    handler: Handler,
    log: logging.Logger,
    refused: Callable[[DpfyError], Response | None] = lambda error: None,
) -> Handler:
    """Return a handler that answers with JSON whatever the given one raises.

    Nothing may reach the server above, which would log a traceback, and with it values.

    Args:
        handler: What answers requests.
        log: Where unexpected errors are noted: their type, and the text of dpfy's own.
        refused: Returns the answer to an error of dpfy's, or None if the service itself failed.

    Returns:
        The handler.
    """

    async def safely(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as refusal:
            return refusal.response
        except ClientDisconnect:
            return error_response(HTTPStatus.BAD_REQUEST, "disconnected", "The request has no end.")
        except DpfyError as error:  # whose texts quote nothing private
            if (response := refused(error)) is not None:
                return response
            log.error("%s: %s", type(error).__name__, error)
        except Exception as error:
            log.error("An unexpected %s; its text may quote values.", type(error).__name__)
        return error_response(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "internal",
            "The service cannot answer; its log says why. What may have been spent is on record.",
        )

    return safely


async def read_body(request: Request, limits: Limits) -> bytes:
    """Return the body of a request, of which no more is read than the limits allow.

    Args:
        request: The request.
        limits: How long it may be, and how long it may take.

    Returns:
        The body.

    Raises:
        Refusal: It is too long, or too slow.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                body += part
                if len(body) > limits.body:
                    raise Refusal(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        "too_large",
                        f"Expected a request of at most {limits.body} bytes.",
                    )
    except TimeoutError:
        raise Refusal(
            HTTPStatus.REQUEST_TIMEOUT, "slow_request", "The request did not arrive in time."
        ) from None
    return bytes(body)


async def read_object(request: Request, limits: Limits) -> Mapping[str, Any] | None:
    """Return the JSON object that a request holds, or None if it holds something else.

    Args:
        request: The request.
        limits: How long it may be, and how long it may take.

    Returns:
        The object.

    Raises:
        Refusal: It is too long, or too slow.
    """
    try:
        found = json.loads(await read_body(request, limits))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
