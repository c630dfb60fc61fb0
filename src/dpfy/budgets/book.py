"""The book of a team: one budget for each data set, and a grant for each run.

Tests: tests/budgets/test_book.py.
"""

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dpfy._extras import require
from dpfy.accounting.filters import Filter
from dpfy.budgets.backend import Backend
from dpfy.budgets.declarations import Declaration
from dpfy.budgets.export import write_export
from dpfy.budgets.grant import Grant, ledger_bytes
from dpfy.budgets.values import DatasetState, Entry, GrantState, Request, whoever
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.ledger.events import Event, Repeated, run_lengths
from dpfy.ledger.journal import Head, Header
from dpfy.plans import Plan
from dpfy.types import Relation, Unit

if TYPE_CHECKING:
    from dpfy.budgets.runs import Booking

_PAGE = 500  # entries that are asked for at once

Planned = Plan | Header | Event | Iterable[Repeated]


class BudgetBook:
    """Keep the budgets of data sets for many runs, people and machines.

    A data set's budget is declared once and never raised. A run reserves its whole envelope before
    a record is read, and is charged in the end for what its ledger shows.

    *Formal guarantee*: the outputs of all runs under the book together, chosen adaptively and
    running at the same time, are (ε, δ)-differentially private at the ε and δ of the data set, for
    its unit and relation (``docs/proofs/budgets.md``, Theorem 2).

    *Assumes* that all that reads the data set has a grant of this book, that the book's storage
    keeps what it committed, and what every :class:`~dpfy.Run` assumes.

    Args:
        backend: who keeps the book; :meth:`open` finds it.

    >>> import dpfy, tempfile
    >>> plan = dpfy.dpsgd(rate=0.01, divisor=600, steps=100, noise_multiplier=1.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with BudgetBook.open(f"sqlite:///{folder}/team.db") as book:
    ...         book.create("admissions-2026", unit="record", epsilon=8.0, delta=1e-6)
    ...         grant = book.reserve("admissions-2026", plan, purpose="readmission")
    ...         book.show("admissions-2026").grants[0].state
    <State.RESERVED: 'reserved'>
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @classmethod
    def open(cls, url: str, *, actor: str | None = None) -> Self:
        """Open the book at an address; a SQLite file that does not exist is created.

        Args:
            url: ``sqlite:///team.db``, ``postgresql+psycopg://host/database``, or
                ``https://host`` for a service, with a token in ``DPFY_BUDGET_TOKEN``.
            actor: who writes, for the log. Default: the user of the operating system; for a
                service whoever the token is of.

        Returns:
            The book; close it, or use it as a context manager.

        Raises:
            InvalidArgument: if there can be no book at the address.
            BookUnavailable: if it cannot be reached.
        """
        if url.startswith(("http://", "https://")):
            from dpfy.budgets.client import Service

            return cls(Service(url))
        require("sqlalchemy", "budget")
        from dpfy.budgets.database import Database
        from dpfy.budgets.store import Store

        return cls(Database(Store(url), actor or whoever()))

    @property
    def name(self) -> str:
        """The address of the book, without passwords."""
        return self._backend.name

    @property
    def identity(self) -> str:
        """A random name, so that two books differ."""
        return self._backend.identity

    def create(
        self,
        name: str,
        *,
        unit: Unit | str,
        epsilon: float,
        delta: float,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        tranches: Iterable[float] = (),
        parts: Iterable[str] = (),
        reference: Planned | None = None,
        description: str = "",
    ) -> DatasetState:
        """Declare the budget of a data set; the same declaration twice is one.

        Args:
            name: the name of the data set, with its version.
            unit: ``record``, ``user`` or ``label``: what is protected.
            epsilon: the ε that all runs together keep.
            delta: the δ at which.
            relation: the neighbouring relation. Default: adding or removing one.
            tranches: the ε of each tranche, which add up to ``epsilon``; the first is open.
                Default: one.
            parts: the names of parts that have the whole budget each, if a public rule that looks
                at one record alone assigns it to a part. Default: none.
            reference: a plan, or its envelope, that is typical of what will run: the budget affords
                most of such. Default: full batches.
            description: what the data set is.

        Returns:
            The state of the data set.

        Raises:
            BookError: if the data set has another budget already.
            InvalidArgument: if a value is outside its domain.
        """
        declaration = Declaration.make(
            name,
            unit=unit,
            epsilon=epsilon,
            delta=delta,
            relation=relation,
            tranches=tuple(tranches),
            parts=tuple(parts),
            reference=() if reference is None else envelope_of(reference),
            description=description,
        )
        self._backend.create(declaration)
        return self.show(name)

    def datasets(self) -> tuple[DatasetState, ...]:
        """Return the state of all data sets, oldest first."""
        return self._backend.datasets()

    def show(self, name: str) -> DatasetState:
        """Return the state of one data set.

        Raises:
            GrantRefused: if it has no budget in this book.
        """
        return self._backend.show(name)

    def reserve(
        self,
        name: str,
        plan: Planned,
        *,
        purpose: str,
        holder: str | None = None,
        part: str | None = None,
        key: str | None = None,
    ) -> Grant:
        """Keep budget for a run, before a record is read.

        Args:
            name: the data set.
            plan: the plan of the run, the header of its ledger, or the events of what will be
                released.
            purpose: what the run is for.
            holder: who runs it. Default: the user of the operating system.
            part: the part of the data set that the run reads. Default: all of it.
            key: a name of the request: with the same key and the same request, the same grant is
                returned. Default: a random one.

        Returns:
            The grant, for ``grant=`` of :func:`dpfy.privatize` and others.

        Raises:
            BudgetExhausted: if the data set has no room for the run; nothing was read.
            GrantRefused: if the plan is for another unit or relation than the data set.
            UnsupportedEvent: if an event has no Rényi rule.
        """
        if not isinstance(purpose, str) or not purpose.strip():
            raise InvalidArgument(f"Expected purpose={purpose!r} to say what the run is for.")
        declared = plan if isinstance(plan, Plan | Header) else None
        rule = None if declared is None else declared.filter
        request = Request(
            dataset=name,
            envelope=envelope_of(plan),
            filter=rule.to_json() if isinstance(rule, Filter) else rule,
            unit=None if declared is None else declared.unit,
            relation=None if declared is None else declared.relation,
            purpose=purpose,
            holder=holder or whoever(),
            part=part,
            key=key or secrets.token_hex(16),
        )
        return Grant(self._backend, self._backend.reserve(request))

    def pay_for(
        self, name: str, ledger: str | Path, *, purpose: str, part: str | None = None
    ) -> "Booking":
        """Return what stands for a ledger that is paid for from the budget of a data set.

        Give it as ``ledger=`` to an estimator, to :func:`dpfy.estimators.describe`, to PATE or to a
        release of labels: once they know what they will release, they reserve it here, and open
        the ledger.

        Args:
            name: the data set.
            ledger: the path of the ledger.
            purpose: what the run is for.
            part: the part of the data set that it reads. Default: all of it.
        """
        from dpfy.budgets.runs import Booking  # it builds on this module

        return Booking(self, name, Path(ledger), purpose, part)

    def grant(self, grant: str) -> Grant:
        """Return a grant that was reserved before, by its name.

        Raises:
            GrantRefused: if there is none.
        """
        return Grant(self._backend, self._backend.terms(grant))

    def activate(
        self, grant: Grant | str, header_hash: str, ledger_id: str, *, ended: int | None = 0
    ) -> int:
        """Bind a grant to a ledger, and let a run begin; :meth:`dpfy.Ledger.open` does it.

        Args:
            grant: the grant.
            header_hash: the hash of the first line of the ledger.
            ledger_id: the identity of the ledger.
            ended: the number of the last run that has ended there. Default: 0, a new ledger.

        Returns:
            The number of the run.

        Raises:
            GrantRefused: if grant or ledger are bound otherwise, or the run before has no known
                end.
        """
        return self._backend.activate(
            _id(grant), header_hash, ledger_id, Head(), ended, secrets.token_hex(16)
        )

    def anchor(self, grant: Grant | str, head: Head) -> None:
        """Remember how far the ledger of a grant has come, so that older copies are noticed."""
        self._backend.anchor(_id(grant), head)

    def settle(self, grant: Grant | str, ledger: Ledger | str | Path) -> GrantState:
        """Charge a grant for what its ledger shows, and free the rest.

        Args:
            grant: the grant.
            ledger: the ledger, or its path. A copy of it is kept.

        Returns:
            The state of the grant.

        Raises:
            GrantRefused: if it is another ledger or an older copy, or if its last run has no known
                end.
            LedgerError: if it cannot be read.
        """
        return self._backend.settle(_id(grant), ledger_bytes(ledger))

    def reopen(self, grant: Grant | str, ledger: Ledger | str | Path) -> GrantState:
        """Let a grant go on after a run without a known end, at the price of what is left of it.

        A run that was killed has released what its ledger shows, unless the folder is an older
        copy. As nobody can tell, what the run may have released besides is charged too: all that
        the ledger does not show.

        Args:
            grant: the grant.
            ledger: the ledger, or its path.

        Returns:
            The state of the grant.

        Raises:
            BudgetExhausted: if the data set has no room for it.
            GrantRefused: if it is another ledger or an older copy than the book knows of.
        """
        return self._backend.reopen(_id(grant), ledger_bytes(ledger))

    def forfeit(self, grant: Grant | str, reason: str) -> GrantState:
        """Charge all that is kept for a grant, as its ledger is lost or its end is not known.

        Args:
            grant: the grant.
            reason: why, for the log.

        Returns:
            The state of the grant.

        Raises:
            GrantRefused: if the grant has ended.
        """
        return self._backend.forfeit(_id(grant), reason)

    def withdraw(self, grant: Grant | str) -> GrantState:
        """Free what is kept for a grant that no run has begun under.

        Raises:
            GrantRefused: if one has.
        """
        return self._backend.withdraw(_id(grant))

    def open_tranche(self, name: str) -> DatasetState:
        """Open the next tranche of a data set.

        Raises:
            GrantRefused: if all are open.
        """
        return self._backend.open_tranche(name, self.show(name).opened + 1)

    def log(self, name: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Yield the entries of one data set, or of all, in order.

        Args:
            name: the data set. Default: all.
            after: the number of the last entry that is known. Default: 0, none.

        Yields:
            The entries.
        """
        while page := self._backend.entries(name, after, _PAGE):
            yield from page
            after = page[-1].number

    def verify(self) -> int:
        """Check the chain of entries, every decision and every cost, and every settled ledger.

        Returns:
            The number of entries.

        Raises:
            BookDamaged: naming the first entry that does not hold.
        """
        return self._backend.verify()

    def export(self, path: str | Path) -> Path:
        """Write all entries and settled ledgers into one archive, for an auditor.

        Args:
            path: the ZIP file to write.

        Returns:
            The file.
        """
        return write_export(Path(path), self.log(), self._backend.ledger)

    def close(self) -> None:
        """Close what is open."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _id(grant: Grant | str) -> str:
    return grant if isinstance(grant, str) else grant.id


def envelope_of(planned: Planned) -> tuple[Repeated, ...]:
    """Return the events of a plan, of one event, or of a list of them."""
    if isinstance(planned, Plan) or (isinstance(planned, Header) and planned.filter is not None):
        return planned.envelope
    if isinstance(planned, Header):
        planned = planned.envelope
    if isinstance(planned, Event):
        return (Repeated(planned, 1),)
    if isinstance(planned, Repeated):
        return (planned,)
    found = run_lengths(planned)
    if not found:
        raise InvalidArgument(
            "Expected at least one event: a run that releases nothing needs none."
        )
    return found
