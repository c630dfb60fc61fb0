"""A book in a database that this process opens itself: each operation is one transaction.

Tests: tests/budgets/test_book.py.
"""

import hashlib
import secrets
import zlib
from typing import Any

from dpfy.budgets.costs import Cost, nothing, planned_cost, plus
from dpfy.budgets.declarations import WHOLE, Declaration
from dpfy.budgets.records import DatasetRecord, GrantRecord, rolled_back
from dpfy.budgets.store import Store, Transaction
from dpfy.budgets.values import DatasetState, Entry, GrantState, Request, State, Terms
from dpfy.errors import BookError, GrantRefused
from dpfy.ledger import Ledger
from dpfy.ledger.events import canonical_json
from dpfy.ledger.journal import Head


class Database:
    """Keep a book in a database.

    *Formal guarantee*: at every instant, over any interleaving and any crash of clients and of the
    database, what was charged and what is kept for outstanding grants is within the filter of each
    data set (``docs/proofs/budgets.md``, Theorem 1).

    *Assumes* that the database keeps what it committed, and that clients compute costs as this
    library does; behind a service only the service has to.

    Args:
        store: the database.
        actor: who writes, for the log.
    """

    def __init__(self, store: Store, actor: str) -> None:
        self._store = store
        self._actor = actor
        self._declarations: dict[str, Declaration] = {}
        self.name = store.name
        self.identity = store.identity

    def acting(self, actor: str) -> "Database":
        """Return the same book, written to by somebody else."""
        return Database(self._store, actor)

    def _declared(self, name: str) -> Declaration:
        """Return the declaration of a data set, which never changes."""
        if name not in self._declarations:
            self._declarations[name] = self._store.read(lambda book: _declaration(book, name))
        return self._declarations[name]

    def create(self, declaration: Declaration) -> None:
        """Declare a data set."""

        def change(book: Transaction) -> None:
            last = book.last_of(declaration.name)
            facts = declaration.to_json()
            if last is None:
                body = {"declaration": facts, "record": DatasetRecord.new(declaration).to_json()}
                book.append("create", body, actor=self._actor, dataset=declaration.name)
            elif canonical_json(_declaration(book, declaration.name).to_json()) != canonical_json(
                facts
            ):
                raise BookError(
                    f"{declaration.name!r} has a budget already, which is never changed. A new "
                    "version of the data gets a new name."
                )

        self._store.write(change)

    def datasets(self) -> tuple[DatasetState, ...]:
        """Return all data sets."""
        return self._store.read(
            lambda book: tuple(_shown(book, each.dataset) for each in book.first_of("create"))
        )

    def show(self, name: str) -> DatasetState:
        """Return one data set."""
        return self._store.read(lambda book: _shown(book, name))

    def grant(self, grant: str) -> GrantState:
        """Return one grant."""

        def question(book: Transaction) -> GrantState:
            return _told(book, _grant(book, grant)[0])

        return self._store.read(question)

    def terms(self, grant: str) -> Terms:
        """Return what a grant permits."""
        return self._store.read(lambda book: self._terms(book, _grant(book, grant)[1]))

    def reserve(self, request: Request) -> Terms:
        """Keep budget for a run."""
        declaration = self._declared(request.dataset)
        _check_fits(request, declaration)
        cost = planned_cost(
            request.envelope, request.filter, declaration.orders, declaration.relation
        )  # before anybody else has to wait
        asked = {**request.to_json(), "key": ""}

        def change(book: Transaction) -> Terms:
            granted = book.with_key(request.key)
            if granted is not None:
                if granted.body.get("request") != asked:
                    raise _used(request.key)
                return self._terms(book, _grant(book, granted.grant)[1])
            dataset = _dataset(book, request.dataset, declaration)
            account = WHOLE if request.part is None else request.part
            record = GrantRecord(
                id=secrets.token_hex(8),
                dataset=request.dataset,
                account=account,
                purpose=request.purpose,
                holder=request.holder,
                state=State.RESERVED,
                cost=cost,
                lost=nothing(declaration.orders),
                charged=None,
            )
            self._append(
                book,
                "reserve",
                record,
                dataset.keeping(account, cost),
                request=asked,
                key=request.key,
            )
            return self._terms_of(record, declaration, request)

        return self._store.write(change)

    def activate(
        self, grant: str, header_hash: str, ledger_id: str, head: Head, ended: int | None, key: str
    ) -> int:
        """Let a run begin on a ledger, and return its number."""

        def change(book: Transaction) -> int:
            _, record = _grant(book, grant)
            if (done := book.with_key(key)) is not None:
                if (done.kind, done.grant) != ("activate", grant):
                    raise _used(key)
                return GrantRecord.from_json(done.body["grant"]).sessions
            bound = book.bound_to(ledger_id, header_hash)
            if bound is not None and bound.grant != grant:
                raise GrantRefused(
                    f"The ledger {ledger_id} is bound to grant {bound.grant}, got {grant}. One "
                    "ledger is paid for by one grant: begin a new ledger."
                )
            found = record.bind(ledger_id, header_hash, head, ended)
            binds = {"ledger": ledger_id, "header": header_hash} if bound is None else {}
            self._append(book, "activate", found, binds=binds, key=key)
            return found.sessions

        return self._store.write(change)

    def anchor(self, grant: str, head: Head) -> None:
        """Remember how far a ledger has come."""

        def change(book: Transaction) -> None:
            _, record = _grant(book, grant)
            if (found := record.anchored(head)) is not record:
                self._append(book, "anchor", found)

        self._store.write(change)

    def settle(self, grant: str, ledger: bytes) -> GrantState:
        """Charge what a ledger shows, and free the rest."""
        digest, packed = hashlib.sha256(ledger).hexdigest(), zlib.compress(ledger)
        found, used = self._used(grant, ledger)

        def change(book: Transaction) -> GrantState:
            entry, record = _grant(book, grant)
            declaration = _declaration(book, record.dataset)
            kept = book.ledger(grant)
            if kept is not None and kept[0] == digest:
                return _told(book, entry)
            record.expect(State.ACTIVE)
            _expect_bound(found, record)
            if found.ended_session != record.sessions:
                raise GrantRefused(
                    f"The last run on the ledger of grant {grant} has no known end, so it may have "
                    "released more than this copy of its ledger shows. Forfeit the grant, or go on "
                    "with the run after reopening it."
                )
            charged = plus(used, record.lost)
            dataset = _dataset(book, record.dataset, declaration).settling(record, charged)
            book.keep_ledger(grant, digest, packed)
            head = Head(found.lines, found.head_hash)
            ended = record.ended(State.SETTLED, charged, head)
            entry = self._append(book, "settle", ended, dataset, sha256=digest)
            return _told(book, entry)

        return self._store.write(change)

    def reopen(self, grant: str, ledger: bytes) -> GrantState:
        """Pay for what a run without a known end may have spent."""
        found = self._read(grant, ledger)

        def change(book: Transaction) -> GrantState:
            entry, record = _grant(book, grant)
            declaration = _declaration(book, record.dataset)
            record.expect(State.ACTIVE)
            _expect_bound(found, record)
            head = Head(found.lines, found.head_hash)
            if found.ended_session == record.sessions or (record.reopened and record.head == head):
                return _told(book, entry)  # its end is known, or it was paid for
            used = declaration.charge_finished(found.uses, record.cost)
            reopened = record.repaid(used, head)
            more = plus(reopened.lost, record.lost, -1)
            dataset = _dataset(book, record.dataset, declaration).keeping(record.account, more)
            entry = self._append(book, "reopen", reopened, dataset)
            return _told(book, entry)

        return self._store.write(change)

    def forfeit(self, grant: str, reason: str) -> GrantState:
        """Charge all that was kept."""
        return self._ended(grant, State.FORFEITED, (State.RESERVED, State.ACTIVE), reason)

    def withdraw(self, grant: str) -> GrantState:
        """Free what was kept for a grant that no run has begun under."""
        return self._ended(grant, State.WITHDRAWN, (State.RESERVED,), "")

    def open_tranche(self, name: str, opened: int) -> DatasetState:
        """Open the next tranche of a data set of which so many are open."""

        def change(book: Transaction) -> DatasetState:
            dataset = _dataset(book, name, _declaration(book, name))
            if dataset.opened not in (opened, opened + 1):
                raise GrantRefused(
                    f"{dataset.opened} tranches of {name!r} are open, got {opened}. Look again."
                )
            if dataset.opened == opened:  # or it was done before the connection was lost
                body = {"record": dataset.opening().to_json()}
                book.append("open_tranche", body, actor=self._actor, dataset=name)
            return _shown(book, name)

        return self._store.write(change)

    def entries(self, name: str | None, after: int, limit: int) -> list[Entry]:
        """Return entries in order."""
        return self._store.read(lambda book: book.entries(name, after, limit))

    def ledger(self, grant: str) -> bytes | None:
        """Return the ledger that settled a grant."""
        kept = self._store.read(lambda book: book.ledger(grant))
        return None if kept is None else zlib.decompress(kept[1])

    def verify(self) -> int:
        """Check everything, and return the number of entries."""
        from dpfy.budgets.verify import verify

        return self._store.read(verify)

    def close(self) -> None:
        """Close all connections."""
        self._store.close()

    def _ended(
        self, grant: str, state: State, allowed: tuple[State, ...], reason: str
    ) -> GrantState:
        def change(book: Transaction) -> GrantState:
            entry, record = _grant(book, grant)
            declaration = _declaration(book, record.dataset)
            if record.state is state:
                return _told(book, entry)
            record.expect(*allowed)
            nought = nothing(declaration.orders)
            charged = nought if state is State.WITHDRAWN else record.kept
            dataset = _dataset(book, record.dataset, declaration).settling(record, charged)
            ended = record.ended(state, charged)
            entry = self._append(book, _KINDS[state], ended, dataset, reason=reason)
            return _told(book, entry)

        return self._store.write(change)

    @staticmethod
    def _read(grant: str, data: bytes) -> Ledger:
        return Ledger.from_bytes(data, f"the ledger of grant {grant}")

    def _used(self, grant: str, data: bytes) -> tuple[Ledger, Cost]:
        """Read a ledger and compute what it cost, before anybody else has to wait."""
        found = self._read(grant, data)
        record = self._store.read(lambda book: _grant(book, grant)[1])  # its cost never changes
        return found, self._declared(record.dataset).charge(found.uses, record.cost)

    def _append(
        self,
        book: Transaction,
        kind: str,
        record: GrantRecord,
        dataset: DatasetRecord | None = None,
        **facts: object,
    ) -> Entry:
        """Append what happened to a grant, and to the budget of its data set if that moved."""
        body = {"grant": record.to_json(), **{name: fact for name, fact in facts.items() if fact}}
        body["record"] = (
            _newest(book, record.dataset)["record"] if dataset is None else dataset.to_json()
        )
        return book.append(kind, body, actor=self._actor, dataset=record.dataset, grant=record.id)

    def _terms(self, book: Transaction, record: GrantRecord) -> Terms:
        request = Request.from_json(book.reservation(record.id).body["request"])
        return self._terms_of(record, _declaration(book, record.dataset), request)

    def _terms_of(self, record: GrantRecord, declaration: Declaration, request: Request) -> Terms:
        return Terms(
            book=self.identity,
            id=record.id,
            dataset=record.dataset,
            part=record.account or None,
            unit=declaration.unit,
            relation=declaration.relation,
            envelope=request.envelope,
            filter=request.filter,
            orders=declaration.orders,
            limits=declaration.limited,
            cost=record.cost,
        )


_KINDS = {State.FORFEITED: "forfeit", State.WITHDRAWN: "withdraw"}


def _declaration(book: Transaction, name: str) -> Declaration:
    return _declared(book, name)[0]


def _declared(book: Transaction, name: str) -> tuple[Declaration, str]:
    """Return the declaration of a data set, and when it was made."""
    entry = book.first(name)
    if entry is None:
        known = ", ".join(repr(each.dataset) for each in book.first_of("create")) or "none"
        raise GrantRefused(
            f"Expected a data set that has a budget in this book ({known}), got {name!r}. A "
            "steward declares one with create."
        )
    return Declaration.from_json(entry.body["declaration"]), entry.time


def _dataset(book: Transaction, name: str, declaration: Declaration) -> DatasetRecord:
    """Return what was charged to a data set and is kept for it: each entry says it anew."""
    return DatasetRecord.from_json(declaration, _newest(book, name)["record"])


def _newest(book: Transaction, name: str) -> dict[str, Any]:
    entry = book.last_of(name)
    assert entry is not None  # its declaration is an entry
    return entry.body


def _grant(book: Transaction, grant: str) -> tuple[Entry, GrantRecord]:
    entry = book.last_of_grant(grant)
    if entry is None:
        raise GrantRefused(f"This book has no grant {grant!r}. Reserve one.")
    return entry, GrantRecord.from_json(entry.body["grant"])


def _told(book: Transaction, entry: Entry) -> GrantState:
    """Return what people are told of a grant after an entry of it."""
    record = GrantRecord.from_json(entry.body["grant"])
    created = book.reservation(record.id).time
    return record.shown(_declaration(book, record.dataset), created, entry.time)


def _shown(book: Transaction, name: str) -> DatasetState:
    declaration, created = _declared(book, name)
    dataset = _dataset(book, name, declaration)
    spent = max(map(declaration.epsilon_of, dataset.charged))
    total = max(map(declaration.epsilon_of, dataset.totals))
    return DatasetState(
        name=name,
        unit=declaration.unit,
        relation=declaration.relation,
        epsilon=declaration.epsilon,
        delta=declaration.delta,
        spent=spent,
        reserved=total - spent,
        free=max(0.0, declaration.epsilon - total),
        opened=dataset.opened,
        tranches=declaration.tranches,
        parts=declaration.parts,
        grants=tuple(
            GrantRecord.from_json(last.body["grant"]).shown(declaration, first.time, last.time)
            for first, last in book.grants_of(name)
        ),
        description=declaration.description,
        created=created,
    )


def _used(key: str) -> GrantRefused:
    return GrantRefused(f"The key {key!r} was used for another request. Use a new one.")


def _check_fits(request: Request, declaration: Declaration) -> None:
    """Refuse a run that protects something else than the data set's budget does."""
    for label, given, expected in (
        ("unit", request.unit, declaration.unit),
        ("relation", request.relation, declaration.relation),
    ):
        if given is not None and given != expected:
            raise GrantRefused(
                f"The budget of {declaration.name!r} is for the {label} {expected}, and the plan "
                f"is for {given}. Make a plan for {expected}."
            )


def _expect_bound(found: Ledger, record: GrantRecord) -> None:
    """Refuse a ledger that is not that of a grant, or not the newest that the book knows of."""
    if found.header is None or (found.header.identity, found.hash_at(1)) != (
        record.ledger,
        record.header,
    ):
        raise GrantRefused(
            f"Grant {record.id} is bound to the ledger {record.ledger}, got "
            f"{found.header and found.header.identity}. Give the ledger of the run."
        )
    if found.hash_at(record.head.count) != record.head.hash:
        raise rolled_back(record, found.lines)
