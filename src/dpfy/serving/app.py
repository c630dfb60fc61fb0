"""The HTTP application: who may ask, how much, and what comes back."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dpfy import _validate
from dpfy.ensembles.predictor import PrivatePredictor
from dpfy.errors import DpfyError, InvalidArgument, LedgerLocked
from dpfy.serving.limits import Limits, RateLimit
from dpfy.serving.tokens import admits

_LOG = logging.getLogger("dpfy.serving")
_Handler = Callable[[Request], Awaitable[Response]]


class _Refusal(Exception):
    """An answer other than the one that was asked for."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.response = _error(status, code, message)


def make_app(
    predictor: PrivatePredictor, digest: str, limits: Limits | None = None, workers: int = 1
) -> Starlette:
    """Return the application of a service.

    ``POST /predict`` takes ``{"inputs": [[…], …]}`` and returns ``{"answers": […]}``, with null
    where the budget was empty, or status 403 if that is all. ``GET /budget`` says what is left.
    Both need the bearer token. ``GET /health`` needs none and tells nothing but that it answers.
    Errors are ``{"error": {"code": …, "message": …}}``.

    *Formal guarantee*: what leaves are answers of the predictor, the state of its ledger, and
    errors that depend on the request and the ledger alone. Neither inputs nor answers are logged.

    Args:
        predictor: What answers.
        digest: The hash of the bearer token.
        limits: The limits of requests.
        workers: The number of processes that share the rate.

    Returns:
        The application, for any ASGI server.

    Raises:
        InvalidArgument: If ``workers`` is no whole number of at least 1.
    """
    limits = limits or Limits()
    bucket = RateLimit(limits.rate / _validate.count("workers", workers))

    async def predict(request: Request) -> Response:
        inputs = await _inputs(request, limits)
        answers = await run_in_threadpool(predictor.predict_each, inputs)
        if inputs and all(answer is None for answer in answers):
            raise _Refusal(
                HTTPStatus.FORBIDDEN,
                "budget_exhausted",
                "The privacy budget is used up. Only inputs that were answered before are "
                "answered.",
            )
        return JSONResponse({"answers": answers})

    async def budget(request: Request) -> Response:
        left, more = await run_in_threadpool(lambda: (predictor.left, predictor.answers_left))
        plan = predictor.plan
        facts = {"epsilon": plan.epsilon, "delta": plan.delta, "left": left, "answers_left": more}
        return JSONResponse(facts)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    def guarded(handler: _Handler) -> _Handler:
        async def checked(request: Request) -> Response:
            if not admits(request.headers.get("authorization"), digest):
                raise _Refusal(
                    HTTPStatus.UNAUTHORIZED, "unauthorized", "Expected the bearer token."
                )
            if not bucket.admit():
                raise _Refusal(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too_many_requests",
                    f"Expected at most {limits.rate:g} requests a minute. Wait, and ask again.",
                )
            return await handler(request)

        return _with_errors(checked)

    app = Starlette(
        routes=[
            Route("/predict", guarded(predict), methods=["POST"]),
            Route("/budget", guarded(budget), methods=["GET"]),
            Route("/health", health, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _not_found},
    )
    app.router.redirect_slashes = False  # a redirect would be an answer to who has no token
    return app


def _with_errors(handler: _Handler) -> _Handler:
    """Turn what a handler raises into JSON.

    Nothing may reach the server above, which would log a traceback, and with it values.
    """

    async def answered(request: Request) -> Response:
        try:
            return await handler(request)
        except _Refusal as refusal:
            return refusal.response
        except InvalidArgument as error:
            return _error(HTTPStatus.BAD_REQUEST, "invalid_inputs", str(error))
        except LedgerLocked:
            return _error(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "busy",
                "Another process is answering. Nothing was spent; ask again.",
            )
        except ClientDisconnect:
            return _error(HTTPStatus.BAD_REQUEST, "disconnected", "The request has no end.")
        except DpfyError as error:  # whose texts quote nothing private
            _LOG.error("%s: %s", type(error).__name__, error)
        except Exception as error:
            _LOG.error("An unexpected %s; its text may quote values.", type(error).__name__)
        return _error(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "internal",
            "The service cannot answer; its log says why. What may have been spent is on record.",
        )

    return answered


async def _inputs(request: Request, limits: Limits) -> list[Any]:
    """Return the inputs of a request, of which no more is read than the limits allow."""
    try:
        async with asyncio.timeout(limits.seconds):
            body = await _body(request, limits.body)
    except TimeoutError:
        raise _Refusal(
            HTTPStatus.REQUEST_TIMEOUT, "slow_request", "The request did not arrive in time."
        ) from None
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    inputs = asked.get("inputs") if isinstance(asked, dict) and len(asked) == 1 else None
    if not isinstance(inputs, list):
        raise _Refusal(
            HTTPStatus.BAD_REQUEST,
            "invalid_json",
            'Expected the JSON object {"inputs": [[…], …]}, one list of numbers for each input.',
        )
    if len(inputs) > limits.rows:
        raise _Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_many_rows",
            f"Expected at most {limits.rows} inputs in a request, got {len(inputs)}.",
        )
    return inputs


async def _body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise _Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too_large",
                f"Expected a request of at most {most} bytes.",
            )
    return bytes(body)


def _error(status: HTTPStatus, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)


async def _not_found(request: Request, error: Exception) -> Response:
    status = HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND))
    return _error(
        status, status.name.lower(), "Expected POST /predict, GET /budget or GET /health."
    )
