"""JSON schemas of what the service takes: its description shows them, and requests are checked.

Tests: tests/budgets/service/test_openapi.py.
"""

import operator
import re
from collections.abc import Mapping
from typing import Any

from dpfy.budgets.tokens import Role
from dpfy.errors import InvalidArgument
from dpfy.types import Relation, Unit

Schema = dict[str, Any]


def _text(most: int, **more: Any) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": most, **more}


def _object(**fields: Schema) -> Schema:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_POSITIVE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6}
_UNITS = [str(each) for each in Unit]
_RELATIONS = [str(each) for each in Relation]
_HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
NAME = _text(100)
KEY = _text(64, pattern="^[A-Za-z0-9-]+$")

_FILTER = {
    "type": "object",
    "description": "A Rényi filter, as dpfy.accounting.RenyiFilter writes it.",
}

HEAD = _object(count={"type": "integer", "minimum": 0}, hash=_HASH)
LEDGER: Schema = {"type": "string", "format": "binary"}
NOTHING = _object()
OPENED = _object(opened={"type": "integer", "minimum": 1})
REASON = _object(reason=_text(1000))
TOKEN = _object(
    name=_text(100, pattern="^[A-Za-z0-9._@-]+$"),
    role={"enum": [str(each) for each in Role]},
    sha256=_HASH,
)
ACTIVATION = _object(
    header=_HASH,
    ledger=_text(64),
    head=HEAD,
    ended=_or_null({"type": "integer", "minimum": 0}),
    key=KEY,
)
DECLARATION = _object(
    name=NAME,
    unit={"enum": _UNITS},
    relation={"enum": _RELATIONS},
    epsilon=_POSITIVE,
    delta={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    tranches={"type": "array", "items": _POSITIVE, "minItems": 1},
    parts={"type": "array", "items": NAME, "uniqueItems": True},
    filters={"type": "array", "items": _FILTER, "minItems": 1},
    description={"type": "string", "maxLength": 1000},
)
REQUEST = _object(
    dataset=NAME,
    envelope={
        "type": "object",
        "description": "Events with their counts, as the header of a ledger has them.",
    },
    filter=_or_null(_FILTER),
    unit=_or_null({"enum": _UNITS}),
    relation=_or_null({"enum": _RELATIONS}),
    purpose=_text(1000),
    holder=_text(100),
    part=_or_null(NAME),
    key=KEY,
)
PAGE: Mapping[str, Schema] = {
    "dataset": NAME,
    "after": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
}


def check(value: Any, schema: Schema, place: str = "the body") -> None:
    """Refuse a JSON value that is not of a schema.

    Args:
        value: The value.
        schema: The schema, of the words that are used above.
        place: How the error names the value.

    Raises:
        InvalidArgument: If it is not.
    """
    if "anyOf" in schema:
        if value is not None:
            check(value, schema["anyOf"][0], place)
        return
    if "enum" in schema:
        _expect(value in schema["enum"], place, f"one of {', '.join(schema['enum'])}")
        return
    kind = schema["type"]
    _expect(type(value) in _TYPES[kind], place, f"of type {kind}")
    if kind == "string":
        most = schema.get("maxLength", len(value))
        _expect(schema.get("minLength", 0) <= len(value) <= most, place, f"1 to {most} letters")
        if "pattern" in schema:
            _expect(re.fullmatch(schema["pattern"], value), place, f"like {schema['pattern']}")
    elif kind in ("integer", "number"):
        for word, holds in _BOUNDS.items():
            bound = schema.get(word, value)
            _expect(word not in schema or holds(value, bound), place, f"{word} {bound}")
    elif kind == "array":
        _expect(len(value) >= schema.get("minItems", 0), place, "of more items")
        for each in value:
            check(each, schema["items"], f"each of {place}")
    else:
        _check_fields(value, schema, place)


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}
_BOUNDS: dict[str, Any] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}


def _check_fields(value: Mapping[str, Any], schema: Schema, place: str) -> None:
    fields = schema.get("properties")
    if fields is None:
        return
    _expect(set(value) == set(fields), place, f"an object of {', '.join(fields) or 'no fields'}")
    for name, each in fields.items():
        check(value[name], each, name)


def _expect(condition: Any, place: str, what: str) -> None:
    if not condition:
        raise InvalidArgument(
            f"Expected {place} to be {what}. GET /v1/openapi.json describes all requests."
        )
