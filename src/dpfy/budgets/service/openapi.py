"""The OpenAPI description of the service, made from the table of its endpoints.

Tests: tests/budgets/service/test_openapi.py.
"""

import re
from typing import Any

from dpfy._version import __version__
from dpfy.budgets.service import schemas
from dpfy.budgets.service.endpoints import ENDPOINTS, Endpoint
from dpfy.budgets.wire import PREFIX

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
_REFUSALS = {
    "400": "The request is not of the form that is described here.",
    "401": "There is no token that the book accepts.",
    "403": "The token is not for this.",
    "404": "There is no such data set, grant or token.",
    "408": "The request did not arrive in time.",
    "409": "The book refuses; the code says why.",
    "413": "The request is too long.",
    "429": "Too many requests in a minute.",
    "503": "The database of the book cannot be reached; ask again.",
}


def description() -> dict[str, Any]:
    """Return the description of the service as OpenAPI 3.1.

    Returns:
        The description, as plain JSON values.
    """
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        place = paths.setdefault(PREFIX + endpoint.path, {})
        place[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Budget book", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": _ERROR},
        },
        "security": [{"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    in_path = re.findall(r"{(\w+)}", endpoint.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schemas.NAME} for name in in_path
    ] + [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in (endpoint.query or {}).items()
    ]
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "description": f"For {', '.join(sorted(endpoint.roles))}.",
        "operationId": f"{endpoint.method.lower()}{re.sub(r'[^a-z]+', '_', endpoint.path)}",
        "parameters": parameters,
        "responses": {
            "2XX": {"description": "What was asked."},
            **{
                status: {
                    "description": text,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}
                    },
                }
                for status, text in _REFUSALS.items()
            },
        },
    }
    if endpoint.body is not None:
        kind = "application/octet-stream" if endpoint.takes_bytes else "application/json"
        operation["requestBody"] = {"required": True, "content": {kind: {"schema": endpoint.body}}}
    return operation
