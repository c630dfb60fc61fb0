"""What may be asked of a book over HTTP, by whom, and what is done then.

One table: the routes of the application and its description are both made from it.

Tests: tests/budgets/service/test_app.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dpfy.budgets.backend import Backend
from dpfy.budgets.declarations import Declaration
from dpfy.budgets.service import schemas
from dpfy.budgets.tokens import Role, Tokens, TokenState
from dpfy.budgets.values import Request
from dpfy.errors import InvalidArgument
from dpfy.ledger.journal import Head

_T = TypeVar("_T")
_ALL = frozenset(Role)
_RUNNING = frozenset({Role.STEWARD, Role.TRAINER})
_STEWARD = frozenset({Role.STEWARD})


class Forbidden(Exception):
    """The token is good, and not for this."""


@dataclass(frozen=True)
class Call:
    """One request whose token was accepted.

    Args:
        book: The book, written to in the name of the token.
        tokens: The tokens of the book.
        token: Whose request it is.
        path: The values in the path.
        query: The values in the query.
        body: The JSON object or the bytes of the body.
    """

    book: Backend
    tokens: Tokens
    token: TokenState
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any

    def own(self) -> str:
        """Return the grant of the path, or refuse one that belongs to another trainer."""
        name = self.path["grant"]
        if self.token.role is not Role.STEWARD:
            holder = self.book.grant(name).holder
            if holder != self.token.name:
                raise Forbidden(
                    f"Grant {name} belongs to {holder!r}. Only its holder and stewards may change "
                    "it."
                )
        return name

    def key(self) -> str:
        """Return the idempotency key of the request, apart from those of other tokens."""
        return f"{self.token.name}/{self.body['key']}"


@dataclass(frozen=True)
class Endpoint:
    """One thing that may be asked.

    Args:
        method: The method.
        path: The path, below ``/v1``.
        roles: Who may ask.
        summary: What it does.
        answer: Does it; None answers without a body.
        body: The schema of the body: of JSON, of the bytes of a ledger, or None.
        query: The schemas of the values in the query.
    """

    method: str
    path: str
    roles: frozenset[Role]
    summary: str
    answer: Callable[[Call], Any]
    body: dict[str, Any] | None = None
    query: Mapping[str, dict[str, Any]] | None = None

    @property
    def takes_bytes(self) -> bool:
        """Whether the body is a ledger and not JSON."""
        return self.body is schemas.LEDGER


def _identity(call: Call) -> Any:
    return {"identity": call.book.identity, "name": call.token.name, "role": str(call.token.role)}


def _datasets(call: Call) -> Any:
    return {"datasets": [each.to_json() for each in call.book.datasets()]}


def _create(call: Call) -> Any:
    declaration = _read(Declaration.from_json, call.body)
    call.book.create(declaration)
    return call.book.show(declaration.name).to_json()


def _show(call: Call) -> Any:
    return call.book.show(call.path["name"]).to_json()


def _open_tranche(call: Call) -> Any:
    return call.book.open_tranche(call.path["name"], call.body["opened"]).to_json()


def _reserve(call: Call) -> Any:
    request = replace(_read(Request.from_json, call.body), key=call.key())
    if not request.envelope and request.filter is None:
        raise InvalidArgument(
            "Expected at least one event: a run that releases nothing needs none."
        )
    if call.token.role is not Role.STEWARD:
        request = replace(request, holder=call.token.name)
    return call.book.reserve(request).to_json()


def _grant(call: Call) -> Any:
    return call.book.grant(call.path["grant"]).to_json()


def _terms(call: Call) -> Any:
    return call.book.terms(call.path["grant"]).to_json()


def _activate(call: Call) -> Any:
    body = call.body
    run = call.book.activate(
        call.own(), body["header"], body["ledger"], Head(**body["head"]), body["ended"], call.key()
    )
    return {"run": run}


def _anchor(call: Call) -> Any:
    call.book.anchor(call.own(), Head(**call.body))


def _settle(call: Call) -> Any:
    return call.book.settle(call.own(), call.body).to_json()


def _reopen(call: Call) -> Any:
    return call.book.reopen(call.own(), call.body).to_json()


def _forfeit(call: Call) -> Any:
    return call.book.forfeit(call.own(), call.body["reason"]).to_json()


def _withdraw(call: Call) -> Any:
    return call.book.withdraw(call.own()).to_json()


def _ledger(call: Call) -> Any:
    return call.book.ledger(call.path["grant"])


def _log(call: Call) -> Any:
    after, limit = _whole(call.query, "after", 0), _whole(call.query, "limit", 100)
    found = call.book.entries(call.query.get("dataset"), after, limit)
    return {"entries": [entry.to_json() for entry in found]}


def _verify(call: Call) -> Any:
    return {"entries": call.book.verify()}


def _tokens(call: Call) -> Any:
    return {"tokens": [each.to_json() for each in call.tokens.tokens()]}


def _issue(call: Call) -> Any:
    return call.tokens.issue(**call.body).to_json()


def _revoke(call: Call) -> Any:
    return call.tokens.revoke(call.path["name"]).to_json()


ENDPOINTS = (
    Endpoint("GET", "/book", _ALL, "Say which book this is, and who asks.", _identity),
    Endpoint("GET", "/datasets", _ALL, "List all data sets.", _datasets),
    Endpoint("POST", "/datasets", _STEWARD, "Declare a budget.", _create, schemas.DECLARATION),
    Endpoint("GET", "/datasets/{name}", _ALL, "Show a data set.", _show),
    Endpoint(
        "POST",
        "/datasets/{name}/tranches",
        _STEWARD,
        "Open the next tranche.",
        _open_tranche,
        schemas.OPENED,
    ),
    Endpoint("POST", "/grants", _RUNNING, "Reserve budget for a run.", _reserve, schemas.REQUEST),
    Endpoint("GET", "/grants/{grant}", _ALL, "Show a grant.", _grant),
    Endpoint("GET", "/grants/{grant}/terms", _ALL, "Show what a grant permits.", _terms),
    Endpoint(
        "POST",
        "/grants/{grant}/activations",
        _RUNNING,
        "Let a run begin on a ledger.",
        _activate,
        schemas.ACTIVATION,
    ),
    Endpoint(
        "POST",
        "/grants/{grant}/anchors",
        _RUNNING,
        "Remember how far a ledger has come.",
        _anchor,
        schemas.HEAD,
    ),
    Endpoint(
        "POST",
        "/grants/{grant}/settlement",
        _RUNNING,
        "Charge what a ledger shows, and free the rest.",
        _settle,
        schemas.LEDGER,
    ),
    Endpoint(
        "POST",
        "/grants/{grant}/reopening",
        _RUNNING,
        "Pay for what a run without a known end may have spent.",
        _reopen,
        schemas.LEDGER,
    ),
    Endpoint(
        "POST",
        "/grants/{grant}/forfeit",
        _RUNNING,
        "Charge all that is kept for a grant.",
        _forfeit,
        schemas.REASON,
    ),
    Endpoint(
        "POST",
        "/grants/{grant}/withdrawal",
        _RUNNING,
        "Free what is kept for a grant that no run began under.",
        _withdraw,
        schemas.NOTHING,
    ),
    Endpoint("GET", "/grants/{grant}/ledger", _ALL, "Return the ledger that settled it.", _ledger),
    Endpoint("GET", "/log", _ALL, "List entries in order.", _log, query=schemas.PAGE),
    Endpoint("GET", "/verification", _ALL, "Replay the whole book.", _verify),
    Endpoint("GET", "/tokens", _STEWARD, "List tokens by their hashes.", _tokens),
    Endpoint("POST", "/tokens", _STEWARD, "Accept a token.", _issue, schemas.TOKEN),
    Endpoint("DELETE", "/tokens/{name}", _STEWARD, "Revoke a token.", _revoke),
)


def _read(read: Callable[[Any], _T], value: Any) -> _T:
    """Return what a JSON object says, or refuse one of another form."""
    try:
        return read(value)
    except (AttributeError, KeyError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            "Expected the JSON object that GET /v1/openapi.json describes: a field is missing, "
            "unknown or of another type."
        ) from None


def _whole(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    found = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    schemas.check(found, schemas.PAGE[name], name)
    return found
