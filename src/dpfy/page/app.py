"""The HTTP application: pages that are made here, one stream of events, and nothing to change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from dpfy.page import views
from dpfy.page.budgets import all_budgets
from dpfy.page.layout import document
from dpfy.page.planner import answer, contours, planner
from dpfy.page.runs import State
from dpfy.page.style import SHEET
from dpfy.page.watcher import Watcher
from dpfy.page.words import clean

_OPEN = 200  # pages that may be connected at once
_HEARTBEAT = 15.0  # seconds after which a stream says that it is alive
_SIDE_BY_SIDE = 6  # runs; more lines cannot be told apart
_STATIC = {
    "page.css": ("text/css", lambda: SHEET),
    "page.js": ("text/javascript", lambda: _file("page.js")),
    "plan.js": ("text/javascript", lambda: _file("plan.js")),
}
_HEADERS = {
    # Figures of reports carry style attributes; scripts come from files of this server alone.
    "content-security-policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def make_app(folder: Path, budget: str | None = None) -> Starlette:
    """Return the application that shows runs, budgets and plans.

    *Formal guarantee*: it answers GET and HEAD alone, changes no run and no book, takes no lock of
    a ledger, and shows what ledgers record, what runs released or measured on public data, and
    what was declared. Its pages ask no other host for anything.

    Args:
        folder: The folder of runs.
        budget: The address of a book of budgets, or None.

    Returns:
        The application, for any ASGI server.
    """
    watcher = Watcher(folder, budget)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watcher.start()
        yield
        await run_in_threadpool(watcher.stop)

    pages = _Pages(watcher)
    routes = [
        Route("/", pages.runs),
        Route("/runs/{key}", pages.run),
        Route("/compare", pages.compare),
        Route("/budgets", pages.budgets),
        Route("/plan", pages.plan),
        Route("/plan/answer", pages.plan_answer),
        Route("/plan/contours", pages.plan_contours),
        Route("/events", pages.events),
        Route("/static/{name}", _static),
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(_WithHeaders), hosts],
        exception_handlers={404: _not_found, 500: _broken},
    )


class _Pages:
    """The pages, and what each of them shows."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._accountant = asyncio.Semaphore(1)  # one computation at a time for all who plan

    async def runs(self, request: Request) -> Response:
        version = await self._fresh("runs")
        body = views.all_runs(self._watcher.root, self._watcher.runs())
        return self._page("Runs", "runs", body, "runs", version)

    async def run(self, request: Request) -> Response:
        topic = f"run-{request.path_params['key']}"
        version = await self._fresh(topic)
        state = self._watcher.run(request.path_params["key"])
        if state is None:
            return _missing("There is no such run. It may have been moved or deleted.")
        shown = state.state not in (State.REFUSED, State.READING)
        rendered = self._watcher.reports.of(state) if shown else None
        body = views.one_run(state, rendered)
        return self._page(clean(state.name), "runs", body, topic, version)

    async def compare(self, request: Request) -> Response:
        version = await self._fresh("runs")
        found = (self._watcher.run(key) for key in request.query_params.getlist("run"))
        chosen = list({state.key: state for state in found if state is not None}.values())
        body = views.comparison(chosen[:_SIDE_BY_SIDE])
        return self._page("Compare runs", "runs", body, "runs", version)

    async def budgets(self, request: Request) -> Response:
        version = await self._fresh("budgets")
        body = all_budgets(self._watcher.budgets)
        return self._page("Budgets", "budgets", body, "budgets", version)

    async def plan(self, request: Request) -> Response:
        body = await self._accounted(planner, request)
        return self._page("Plan", "plan", body)

    async def plan_answer(self, request: Request) -> Response:
        return HTMLResponse(await self._accounted(answer, request))

    async def plan_contours(self, request: Request) -> Response:
        return HTMLResponse(await self._accounted(contours, request))

    async def events(self, request: Request) -> Response:
        topic, since = (request.query_params.get(each, "") for each in ("topic", "since"))
        # After a break a browser says itself which version it saw last.
        seen = request.headers.get("last-event-id", since)
        if self._watcher.open_pages >= _OPEN:
            return Response("Too many pages are open.", 503, media_type="text/plain")
        return StreamingResponse(self._changes(topic, seen), media_type="text/event-stream")

    async def _changes(self, topic: str, seen: str) -> AsyncIterator[str]:
        with self._watcher.listening():
            yield "retry: 2000\n\n"
            while True:
                version = await self._watcher.hub.wait(topic, seen, _HEARTBEAT)
                yield f"id: {version}\ndata: changed\n\n" if version != seen else ": alive\n\n"
                seen = version

    async def _fresh(self, topic: str) -> str:
        """Look at what has changed; return the version that is shown, or an earlier one."""
        await run_in_threadpool(self._watcher.refresh)
        return self._watcher.hub.version(topic)

    async def _accounted(self, make: Callable[[Any], str], request: Request) -> str:
        async with self._accountant:
            if await request.is_disconnected():  # a slider has moved on
                return ""
            return await run_in_threadpool(make, dict(request.query_params))

    def _page(
        self, title: str, here: str, body: str, topic: str = "", version: str = ""
    ) -> Response:
        known = self._watcher.budgets is not None
        page = document(title, here, body, topic=topic, version=version, budgets=known)
        return HTMLResponse(page)


async def _static(request: Request) -> Response:
    found = _STATIC.get(request.path_params["name"])
    if found is None:
        return _missing("There is no such file.")
    kind, content = found
    return Response(content(), media_type=kind)


def _file(name: str) -> str:
    return files("dpfy.page").joinpath(name).read_text(encoding="utf-8")


def _missing(sentence: str) -> Response:
    body = f"<h1>Not found</h1><p>{sentence} <a href='/'>All runs</a></p>"
    return HTMLResponse(document("Not found", "", body), 404)


async def _not_found(request: Request, error: Exception) -> Response:
    return _missing("There is no such page.")


async def _broken(request: Request, error: Exception) -> Response:
    body = "<h1>This page is broken</h1><p>The fault is in dpfy; no run is touched by it.</p>"
    return HTMLResponse(document("Broken", "", body), 500)


_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class _WithHeaders:
    """Adds the headers that keep a page to itself to every answer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)
