"""Show a book of budgets: what each data set has left, who holds it, and the log."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dpfy._extras import require
from dpfy.errors import DpfyError, InvalidArgument
from dpfy.page import words
from dpfy.page.layout import live, table, tiles
from dpfy.page.words import name, text
from dpfy.reporting.numbers import delta_text, epsilon_text, plain

if TYPE_CHECKING:
    from dpfy.budgets import DatasetState, Entry, GrantState

_SHOWN = 200  # entries of the log, the newest


class BudgetReader:
    """Keeps what a book says up to date; used by one thread.

    The log is asked for entries that are new; only if there are some, everything is read again.

    Args:
        url: The address of the book.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._book: Any = None
        self._last = 0
        self._begun = False
        self.datasets: tuple[DatasetState, ...] = ()
        self.entries: deque[Entry] = deque(maxlen=_SHOWN)
        self.refusal = ""

    def look(self) -> bool:
        """Read what is new; return whether anything is."""
        before = self.refusal
        try:
            new = list(self._open().log(after=self._last))
            if new or not self._begun or before:
                self.datasets = tuple(self._book.datasets())
            self._begun, self.refusal = True, ""
        except DpfyError as error:
            self._fail(str(error))
            new = []
        except Exception as error:
            self._fail(f"The book cannot be read ({type(error).__name__}).")
            new = []
        for entry in new:
            self._last = entry.number
            self.entries.appendleft(entry)
        return bool(new) or self.refusal != before

    def close(self) -> None:
        """Close the connection."""
        book, self._book = self._book, None
        if book is not None:
            book.close()

    def _open(self) -> Any:
        if self._book is None:
            from dpfy.budgets import BudgetBook  # it needs packages that other pages do without

            _check_there(self._url)
            self._book = BudgetBook.open(self._url)
        return self._book

    def _fail(self, reason: str) -> None:
        """Keep why there is nothing to show, without the password of the address."""
        secret = urlsplit(self._url).password
        self.refusal = reason.replace(secret, "…") if secret else reason


def _check_there(url: str) -> None:
    """Refuse a database without a book: who looks must not begin one in it."""
    if url.startswith(("http://", "https://")):
        return
    require("sqlalchemy", "budget")
    from sqlalchemy import create_engine, inspect, make_url
    from sqlalchemy.exc import SQLAlchemyError

    from dpfy.budgets.tables import metadata

    try:
        address = make_url(url)
        if address.get_backend_name() == "sqlite":  # which creates files that do not exist
            address = make_url(f"sqlite:///file:{address.database}?mode=ro&uri=true")
        engine = create_engine(address)
        try:
            found = set(inspect(engine).get_table_names())
        finally:
            engine.dispose()
    except SQLAlchemyError:
        found = set()
    if not found.issuperset(metadata.tables):
        raise InvalidArgument(
            "There is no book of budgets that can be read at this address. Check it, or begin a "
            "book with dpfy.budgets."
        )


def all_budgets(reader: BudgetReader | None) -> str:
    """Return the content of the page of budgets."""
    if reader is None:
        hint = "<p>Start the page with <code>--budget URL</code> to see the budgets of a book.</p>"
        return f"<h1>Budgets</h1>{hint}"
    if reader.refusal:
        refused = f'<p class="refusal" role="alert">{text(reader.refusal)}</p>'
        return f"<h1>Budgets</h1>{live('datasets', refused)}"
    datasets = reader.datasets
    body = "".join(map(_dataset, datasets)) or "<p>The book has no data set yet.</p>"
    return (
        f"<h1>Budgets</h1>{live('datasets', body)}<h2>Log</h2>"
        f"{live('log', _log(list(reader.entries)))}"
    )


def _dataset(state: "DatasetState") -> str:
    described = f"<p>{text(state.description)}</p>" if state.description else ""
    relation = str(state.relation).replace("_", " ")
    facts = [
        ("Spent", epsilon_text(state.spent), "Of runs that are settled or lost."),
        ("Reserved", epsilon_text(state.reserved), "What outstanding grants add to it."),
        ("Free", _down(state.free), "What new runs can reserve now."),
        (
            "Limit",
            f"{plain(state.epsilon)} at δ = {delta_text(state.delta)}",
            f"For one {state.unit}, {relation}; of all runs together.",
        ),
        *(
            [("Tranches", f"{state.opened} of {len(state.tranches)} open", "")]
            if len(state.tranches) > 1
            else []
        ),
    ]
    return (
        f'<section class="dataset"><h2>{name(state.name)}</h2>{described}{_bar(state)}'
        f"{tiles(facts)}<h3>Grants</h3>{_grants(state.grants, state.name)}</section>"
    )


def _down(value: float) -> str:
    """Return a number of what is left, rounded down."""
    return epsilon_text(value, lower=True) if value > 0 else "0"


def _bar(state: "DatasetState") -> str:
    """Return a bar of what is spent and reserved of the limit."""
    whole = max(state.epsilon, 1e-12)
    spent = min(100.0, 100 * state.spent / whole)
    reserved = min(100.0 - spent, 100 * state.reserved / whole)
    label = (
        f"{epsilon_text(state.spent)} spent, {epsilon_text(state.reserved)} reserved, "
        f"of {plain(state.epsilon)}"
    )
    return (
        f'<div class="budget-bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}"><rect class="key-free" width="100" height="10"/>'
        f'<rect class="key-spent" width="{spent:.2f}" height="10"/>'
        f'<rect class="key-reserved" x="{spent:.2f}" width="{reserved:.2f}" height="10"/>'
        "</svg></div>"
    )


def _grants(grants: Sequence["GrantState"], dataset: str) -> str:
    if not grants:
        return "<p>None yet.</p>"
    rows = [
        (
            f"{name(each.purpose)}<span class='under'>{text(each.id)}</span>",
            name(each.holder),
            text(each.state),
            text(epsilon_text(each.epsilon)),
            text(each.part or "all"),
            f"<code>{text((each.ledger or '–')[:12])}</code>",
            text(each.updated[:16].replace("T", " ")),
        )
        for each in reversed(grants)
    ]
    columns = ("Purpose", "Holder", "State", "ε", "Part", "Ledger", "Changed")
    return table(f"Grants of {words.clean(dataset)}", columns, rows)


def _log(entries: Sequence["Entry"]) -> str:
    if not entries:
        return "<p>Nothing is on record yet.</p>"
    rows = [
        (
            words.count(each.number),
            text(each.time[:19].replace("T", " ")),
            name(each.kind),
            name(each.dataset or "–"),
            f"<code>{text(each.grant or '–')}</code>",
            name(each.actor),
            f"<code>{text(each.hash[:12])}</code>",
        )
        for each in entries
    ]
    columns = ("Entry", "Time, UTC", "What", "Data set", "Grant", "By", "Hash")
    return table(f"The newest {_SHOWN} entries of the log", columns, rows)
