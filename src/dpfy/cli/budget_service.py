"""``dpfy budget serve`` and ``dpfy budget token``: a book behind HTTP, and who may ask it.

Tests: tests/cli/test_budget.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfy._extras import require
from dpfy.cli._options import JsonOption
from dpfy.errors import InvalidArgument

if TYPE_CHECKING:
    from dpfy.budgets import BudgetBook
    from dpfy.budgets.store import Store

BookOption = Annotated[
    str,
    typer.Option(
        "--book",
        envvar="DPFY_BUDGET_BOOK",
        help="Address of the book, such as sqlite:///team.db, postgresql+psycopg://host/database, "
        "or https://host of its service, which also needs a token in DPFY_BUDGET_TOKEN. Can be "
        "left in the environment variable DPFY_BUDGET_BOOK.",
        show_default=False,
        show_envvar=False,
    ),
]


@contextmanager
def opened(address: str) -> "Iterator[BudgetBook]":
    """Open a book, and close it afterwards."""
    from dpfy.budgets import BudgetBook

    with BudgetBook.open(address) as book:
        yield book


def serve(
    book: BookOption,
    host: Annotated[
        str, typer.Option(help="Address to listen at; the default is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 for any free one.")] = 8470,
    certfile: Annotated[
        Path | None,
        typer.Option(
            help="Certificate that encrypts requests, as PEM; with --keyfile.", show_default=False
        ),
    ] = None,
    keyfile: Annotated[
        Path | None,
        typer.Option(help="Private key of the certificate, as PEM.", show_default=False),
    ] = None,
    behind_proxy: Annotated[
        bool,
        typer.Option(
            "--behind-proxy", help="Listen at --host without a certificate: a proxy encrypts."
        ),
    ] = False,
    body: Annotated[int, typer.Option(help="Most bytes of a request.")] = 2**26,
    rate: Annotated[float, typer.Option(help="Most requests a minute with one token.")] = 6000.0,
) -> None:
    """Keep a book behind HTTP, for trainers who are not to reach its database.

    Every request needs a token, whose role says what it may do; the first one is issued at the
    database with dpfy budget token. Costs are computed here, from the plans and ledgers that
    clients send.

    Examples:
    dpfy budget serve --book sqlite:///team.db

    dpfy budget serve --host 0.0.0.0 --certfile budget.pem --keyfile budget.key
    """
    from dpfy.budgets.service import serve as listen
    from dpfy.budgets.service.app import LIMITS

    with _database(book) as store:
        listen(
            store,
            host=host,
            port=port,
            certfile=certfile,
            keyfile=keyfile,
            behind_proxy=behind_proxy,
            limits=replace(LIMITS, body=body, rate=rate),
            tell=lambda address: typer.echo(f"listening at {address}"),
        )


def token(
    book: BookOption,
    name: Annotated[
        str | None,
        typer.Argument(help="Who gets the token. Default: list all of them.", show_default=False),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(
            help="Role of a new token: steward (everything), trainer (runs under grants of their "
            "own) or auditor (reads).",
            show_default=False,
        ),
    ] = None,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Accept the token of this name no longer.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Issue a token for the service of a book, revoke one, or list them by their hashes.

    A new token is shown once. The book keeps its hash alone.

    Examples:
    dpfy budget token anna --role trainer

    dpfy budget token anna --revoke

    dpfy budget token
    """
    from dpfy.budgets.tokens import new_token
    from dpfy.web.tokens import digest_of

    if (name is None) != (role is None and not revoke) or (role is not None and revoke):
        raise InvalidArgument(
            "Expected a name with --role, a name with --revoke, or neither to list all tokens."
        )
    secret = new_token()
    with _keeper(book) as keeper:
        if name is None:
            _say_tokens(keeper.tokens(), as_json)
        elif revoke:
            state = keeper.revoke(name)
            _say(state.to_json(), as_json, f"the token of {name} is revoked")
        else:
            state = keeper.issue(name, role, digest_of(secret))
            facts = {**state.to_json(), "token": secret}
            _say(facts, as_json, f"token of {name} ({state.role}), shown once: {secret}")


@contextmanager
def _database(address: str) -> "Iterator[Store]":
    require("sqlalchemy", "budget")
    from dpfy.budgets.store import Store

    if address.startswith(("http://", "https://")):
        raise InvalidArgument(
            f"Expected the address of a database, got {address}: a service is not served again."
        )
    with Store(address) as store:
        yield store


@contextmanager
def _keeper(address: str) -> Iterator[Any]:
    """Open what issues tokens: the database of a book, or its service."""
    if address.startswith(("http://", "https://")):
        from dpfy.budgets.client import Service

        service = Service(address)
        try:
            yield service
        finally:
            service.close()
        return
    from dpfy.budgets.tokens import Tokens

    with _database(address) as store:
        yield Tokens(store)


def _say_tokens(tokens: Any, as_json: bool) -> None:
    from dpfy.cli._output import print_json

    if as_json:
        print_json({"tokens": [each.to_json() for each in tokens]})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "role", "SHA-256", "issued", "revoked")
    for each in tokens:
        table.add_row(each.name, str(each.role), each.sha256, each.created, each.revoked or "")
    Console().print(table)


def _say(values: dict[str, Any], as_json: bool, words: str) -> None:
    from dpfy.cli._output import print_json

    print_json(values) if as_json else typer.echo(words)
