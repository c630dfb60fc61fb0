"""``dpfy budget``: the budgets of a team's data sets, and the grants of its runs.

Tests: tests/cli/test_budget.py.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dpfy.cli._options import JsonOption, RelationOption
from dpfy.cli.budget_service import BookOption, opened, serve, token
from dpfy.errors import InvalidArgument
from dpfy.types import Relation, Unit

if TYPE_CHECKING:
    from dpfy.budgets import DatasetState, GrantState
    from dpfy.ledger.events import Envelope
    from dpfy.plans import Plan

budget_app = typer.Typer(
    help="Keep one budget for each data set of a team, and grant it to runs.",
    no_args_is_help=True,
)

NameArgument = Annotated[
    str, typer.Argument(help="Data set, such as admissions-2026.", show_default=False)
]
GrantArgument = Annotated[str, typer.Argument(help="Name of the grant.", show_default=False)]
RunLedgerArgument = Annotated[
    Path, typer.Argument(help="Ledger of the run, or the folder of the run.", show_default=False)
]


@budget_app.command()
def create(
    name: NameArgument,
    epsilon: Annotated[
        float,
        typer.Option(help="The ε that all runs together keep, such as 8.", show_default=False),
    ],
    delta: Annotated[
        float, typer.Option(help="The δ at which, in (0, 1), such as 1e-6.", show_default=False)
    ],
    book: BookOption,
    unit: Annotated[Unit, typer.Option(help="Unit of privacy.")] = Unit.RECORD,
    relation: RelationOption = Relation.ADD_OR_REMOVE_ONE,
    tranche: Annotated[
        list[float] | None,
        typer.Option(
            help="The ε of a tranche; give the option once for each, in order. They add up to "
            "--epsilon, and the first is open. Default: one tranche.",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a part that has the whole budget, if a public rule assigns each record "
            "to one part; give the option once for each. Default: none.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Plan or ledger that is typical of what will run, so that most of such runs have "
            "room. Default: full batches.",
            show_default=False,
        ),
    ] = None,
    description: Annotated[
        str | None, typer.Option(help="What the data set is. Default: none.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Declare the budget of a data set, once: it is never raised.

    Examples:
    dpfy budget create admissions-2026 --unit user --epsilon 8 --delta 1e-6

    dpfy budget create visits-2026 --epsilon 8 --delta 1e-6 --tranche 4 --tranche 4
    """
    with opened(book) as found:
        state = found.create(
            name,
            unit=unit,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            tranches=tranche or (),
            parts=part or (),
            reference=None if reference is None else _planned(reference),
            description=description or "",
        )
    _say(state.to_json(), as_json, lambda: _show(state))


@budget_app.command(name="list")
def list_datasets(book: BookOption, as_json: JsonOption = False) -> None:
    """List the data sets of a book, with what is left of their budgets.

    Examples:
    dpfy budget list --book sqlite:///team.db
    """
    with opened(book) as found:
        states = found.datasets()
    values = {"datasets": [state.to_json() for state in states]}
    _say(values, as_json, lambda: _list(states))


@budget_app.command()
def show(name: NameArgument, book: BookOption, as_json: JsonOption = False) -> None:
    """Show the budget of a data set, and its grants.

    Examples:
    dpfy budget show admissions-2026

    dpfy budget show admissions-2026 --json
    """
    with opened(book) as found:
        state = found.show(name)
    _say(state.to_json(), as_json, lambda: _show(state))


@budget_app.command()
def open_tranche(name: NameArgument, book: BookOption, as_json: JsonOption = False) -> None:
    """Open the next tranche of a data set.

    Examples:
    dpfy budget open-tranche visits-2026
    """
    with opened(book) as found:
        state = found.open_tranche(name)
    _say(state.to_json(), as_json, lambda: _show(state))


@budget_app.command()
def reserve(
    name: NameArgument,
    plan: Annotated[
        Path,
        typer.Argument(
            help="What will run: JSON of a plan or of a list of events, or a ledger that registers "
            "them.",
            show_default=False,
        ),
    ],
    purpose: Annotated[str, typer.Option(help="What the run is for.", show_default=False)],
    book: BookOption,
    holder: Annotated[
        str | None,
        typer.Option(
            help="Who runs it. Default: the user, or whoever the token is of.", show_default=False
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="Part of the data set that the run reads. Default: all of it.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="Name of this request, so that a script that calls twice reserves once. Default: "
            "a random one.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep budget for a run, before a record is read, and print the name of the grant.

    Examples:
    dpfy budget reserve admissions-2026 plan.json --purpose "readmission v3"
    """
    with opened(book) as found:
        grant = found.reserve(
            name, _planned(plan), purpose=purpose, holder=holder, part=part, key=key
        ).show()
    _say(grant.to_json(), as_json, lambda: _grant(grant))


@budget_app.command()
def settle(
    grant: GrantArgument, ledger: RunLedgerArgument, book: BookOption, as_json: JsonOption = False
) -> None:
    """Charge a grant for what its ledger shows, and free the rest.

    Examples:
    dpfy budget settle 3f1c9a0b52d4e687 runs/readmission
    """
    from dpfy.cli._options import ledger_file

    with opened(book) as found:
        state = found.settle(grant, ledger_file(ledger))
    _say(state.to_json(), as_json, lambda: _grant(state))


@budget_app.command()
def reopen(
    grant: GrantArgument, ledger: RunLedgerArgument, book: BookOption, as_json: JsonOption = False
) -> None:
    """Let a grant go on after a run without a known end, and pay for what it may have released.

    Examples:
    dpfy budget reopen 3f1c9a0b52d4e687 runs/readmission
    """
    from dpfy.cli._options import ledger_file

    with opened(book) as found:
        state = found.reopen(grant, ledger_file(ledger))
    _say(state.to_json(), as_json, lambda: _grant(state))


@budget_app.command()
def forfeit(
    grant: GrantArgument,
    reason: Annotated[str, typer.Option(help="Why, for the log.", show_default=False)],
    book: BookOption,
    as_json: JsonOption = False,
) -> None:
    """Charge all that is kept for a grant whose ledger is lost.

    Examples:
    dpfy budget forfeit 3f1c9a0b52d4e687 --reason "the machine and its disk are gone"
    """
    with opened(book) as found:
        state = found.forfeit(grant, reason)
    _say(state.to_json(), as_json, lambda: _grant(state))


@budget_app.command()
def withdraw(grant: GrantArgument, book: BookOption, as_json: JsonOption = False) -> None:
    """Free what is kept for a grant that no run has begun under.

    Examples:
    dpfy budget withdraw 3f1c9a0b52d4e687
    """
    with opened(book) as found:
        state = found.withdraw(grant)
    _say(state.to_json(), as_json, lambda: _grant(state))


@budget_app.command()
def log(
    book: BookOption,
    name: Annotated[
        str | None, typer.Argument(help="Data set. Default: all.", show_default=False)
    ] = None,
    after: Annotated[int, typer.Option(help="Number of the last entry that is known already.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the entries of a book in order: who did what, when.

    Examples:
    dpfy budget log

    dpfy budget log admissions-2026 --after 120 --json
    """
    with opened(book) as found:
        if as_json:
            for entry in found.log(name, after):
                typer.echo(json.dumps(entry.to_json()))
            return
        table = Table("no.", "time", "who", "what", "data set")
        table.add_column("grant", no_wrap=True)
        for entry in found.log(name, after):
            cells = (entry.time, entry.actor, entry.kind, entry.dataset, entry.grant)
            table.add_row(str(entry.number), *map(escape, cells))
    Console().print(table)


@budget_app.command()
def verify(book: BookOption, as_json: JsonOption = False) -> None:
    """Replay a book: its chain of entries, every cost and decision, and every settled ledger.

    Examples:
    dpfy budget verify --book sqlite:///team.db
    """
    with opened(book) as found, _waiting("replaying the book"):
        entries = found.verify()
        name = found.name
    values = {"book": name, "entries": entries, "verified": True}
    _say(values, as_json, lambda: typer.echo(f"{name}: {entries} entries, all of which hold"))


@budget_app.command()
def export(
    path: Annotated[Path, typer.Argument(help="ZIP file to write.", show_default=False)],
    book: BookOption,
    as_json: JsonOption = False,
) -> None:
    """Write all entries and settled ledgers into one archive, for an auditor.

    Examples:
    dpfy budget export admissions.zip
    """
    if path.exists():
        raise InvalidArgument(f"{path} exists. Choose another name, or remove it.")
    with opened(book) as found, _waiting("collecting entries and ledgers"):
        found.export(path)
    _say({"path": str(path)}, as_json, lambda: typer.echo(f"archive: {path}"))


budget_app.command()(serve)
budget_app.command()(token)


def _planned(path: Path) -> "Plan | Envelope":
    """Return what a file says will run."""
    from dpfy.accounting.sources import read_source
    from dpfy.plans import Plan

    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None  # a ledger, which has several lines of JSON
    if isinstance(value, dict) and "sampling" in value:
        return Plan.from_json(value)
    source = read_source(path / "ledger.dpl" if path.is_dir() else path)
    return source.registered or source.events


def _say(values: dict[str, Any], as_json: bool, speak: Any) -> None:
    from dpfy.cli._output import print_json

    print_json(values) if as_json else speak()


@contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Say on standard error what takes long, where somebody watches."""
    with Console(stderr=True).status(what):
        yield


def _list(states: "tuple[DatasetState, ...]") -> None:
    table = Table("data set", "unit", "budget", "spent", "reserved", "free", "grants")
    for state in states:
        table.add_row(
            escape(state.name),
            str(state.unit),
            f"({state.epsilon:g}, {state.delta:g})",
            *map(_shown, (state.spent, state.reserved, state.free)),
            str(len(state.grants)),
        )
    Console().print(table)


def _show(state: "DatasetState") -> None:
    table = Table(show_header=False, box=None)
    rows = {
        "data set": state.name,
        "description": state.description,
        "budget": f"({state.epsilon:g}, {state.delta:g})-differential privacy for one {state.unit}"
        f", {str(state.relation).replace('_', ' ')}",
        "spent": _shown(state.spent),
        "reserved": _shown(state.reserved),
        "free": _shown(state.free),
        "tranches": ", ".join(
            f"{each:g}{'' if number < state.opened else ' (closed)'}"
            for number, each in enumerate(state.tranches)
        ),
        "parts": ", ".join(state.parts),
        "declared": state.created,
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, escape(value))
    Console().print(table)
    if state.grants:
        Console().print(_grants(state.grants))


def _grants(grants: "tuple[GrantState, ...]") -> Table:
    table = Table()
    table.add_column("grant", no_wrap=True, min_width=max(len(grant.id) for grant in grants))
    parts = any(grant.part for grant in grants)
    for name in ("purpose", "holder", *(("part",) if parts else ()), "state", "epsilon"):
        table.add_column(name)
    for grant in grants:
        cells = (grant.purpose, grant.holder, *((grant.part or "",) if parts else ()))
        table.add_row(grant.id, *map(escape, cells), str(grant.state), _shown(grant.epsilon))
    return table


def _grant(state: "GrantState") -> None:
    typer.echo(
        f"grant {state.id} of {state.dataset}: {state.state}, epsilon {_shown(state.epsilon)}, "
        f"for {state.purpose} by {state.holder}"
    )


def _shown(epsilon: float) -> str:
    from dpfy.cli._output import round_up

    return f"{round_up(epsilon):.4f}"
