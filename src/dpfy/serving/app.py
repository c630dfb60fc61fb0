"""The HTTP application: who may ask, how much, and what comes back."""

import logging
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dpfy import _validate
from dpfy.ensembles.predictor import PrivatePredictor
from dpfy.errors import DpfyError, InvalidArgument, LedgerLocked
from dpfy.web.answers import Handler, Refusal, answered, error_response, read_object
from dpfy.web.limits import Limits, RateLimit
from dpfy.web.tokens import admits

_LOG = logging.getLogger("dpfy.serving")


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
            raise Refusal(
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

    def guarded(handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            if not admits(request.headers.get("authorization"), digest):
                raise Refusal(HTTPStatus.UNAUTHORIZED, "unauthorized", "Expected the bearer token.")
            if not bucket.admit():
                raise Refusal(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too_many_requests",
                    f"Expected at most {limits.rate:g} requests a minute. Wait, and ask again.",
                )
            return await handler(request)

        return answered(checked, _LOG, _refused)

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


def _refused(error: DpfyError) -> Response | None:
    if isinstance(error, InvalidArgument):
        return error_response(HTTPStatus.BAD_REQUEST, "invalid_inputs", str(error))
    if isinstance(error, LedgerLocked):
        return error_response(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "busy",
            "Another process is answering. Nothing was spent; ask again.",
        )
    return None


async def _inputs(request: Request, limits: Limits) -> list[Any]:
    asked = await read_object(request, limits)
    inputs = asked.get("inputs") if asked is not None and len(asked) == 1 else None
    if not isinstance(inputs, list):
        raise Refusal(
            HTTPStatus.BAD_REQUEST,
            "invalid_json",
            'Expected the JSON object {"inputs": [[…], …]}, one list of numbers for each input.',
        )
    if len(inputs) > limits.rows:
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_many_rows",
            f"Expected at most {limits.rows} inputs in a request, got {len(inputs)}.",
        )
    return inputs


async def _not_found(request: Request, error: Exception) -> Response:
    status = HTTPStatus(getattr(error, "status_code", HTTPStatus.NOT_FOUND))
    return error_response(
        status, status.name.lower(), "Expected POST /predict, GET /budget or GET /health."
    )
