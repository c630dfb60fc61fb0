"""JSON schemas of what the service takes, for its description.

Tests: tests/budgets/service/test_openapi.py.
"""

from collections.abc import Mapping
from typing import Any

from dpfy.budgets.tokens import Role
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
NAME = _text(100, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")
KEY = _text(64, pattern="^[A-Za-z0-9-]+$")

_STEP = {
    "type": "sampled",
    "policy": {"type": "poisson", "rate": 0.01},
    "queries": [{"l2_bound": 1.0, "stddev": 1.1}],
}
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
        "type": "array",
        "items": {"type": "object"},
        "minItems": 1,
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
