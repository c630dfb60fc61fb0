"""Requests to an ASGI application in this process, as a server would make them."""

import asyncio
import json
from urllib.parse import unquote


def send(app, method, path, body=b"", headers=None, parts=None):
    """Return the status, the headers and the body of the answer to one request.

    ``parts`` are those of a client that never says that the last one was the last.
    """
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    waiting = list(parts if parts is not None else [body])
    sent = []

    async def receive():
        if not waiting:
            await asyncio.sleep(3600)  # a client that never ends
        part = waiting.pop(0)
        more = bool(waiting) or parts is not None
        return {"type": "http.request", "body": part, "more_body": more}

    async def answer(message):
        sent.append(message)

    asyncio.run(app(scope, receive, answer))
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return int(sent[0]["status"]), found, b"".join(each.get("body", b"") for each in sent)


def call(app, method, path, body=b"", headers=None, parts=None):
    """Return the status and the parsed body of one request."""
    status, _, text = send(app, method, path, body, headers, parts)
    return status, json.loads(text) if text else None
