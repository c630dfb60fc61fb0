"""Verification: read a book again from its first entry, and make every decision once more.

Tests: tests/budgets/test_verify.py.
"""

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

from dpfy.budgets.costs import Cost, nothing, planned_cost, plus
from dpfy.budgets.declarations import Declaration
from dpfy.budgets.records import DatasetRecord, GrantRecord
from dpfy.budgets.store import BOOK, Transaction
from dpfy.budgets.values import Entry, Request, State
from dpfy.errors import BookDamaged, DpfyError
from dpfy.ledger import Ledger
from dpfy.ledger.events import canonical_json
from dpfy.ledger.journal import GENESIS

_PAGE = 500
_CLOSE = 1e-9  # relative: another version of the libraries may round a cost otherwise


def verify(book: Transaction) -> int:
    """Check the chain, every decision, every cost and every ledger; return the number of entries.

    Raises:
        BookDamaged: naming the first entry that does not hold.
    """
    replay = _Replay(book)
    last = replay.number
    while page := book.entries(None, last, _PAGE):
        for entry in page:
            replay.feed(entry)
        last = replay.number
    replay.finish()
    return last


class _Replay:
    """What a book must contain after the entries that were fed."""

    def __init__(self, book: Transaction) -> None:
        self.number = 0
        self._book = book
        self._hash = GENESIS
        self._heads: dict[str, tuple[int, str]] = {}
        self._datasets: dict[str, DatasetRecord] = {}
        self._grants: dict[str, GrantRecord] = {}
        self._requests: dict[str, Request] = {}

    def feed(self, entry: Entry) -> None:
        """Take in the next entry."""
        if entry.number != self.number + 1:
            raise _damaged(self.number + 1, "it is missing")
        if entry.previous != self._hash:
            raise _damaged(entry.number, "it does not follow the entry before, which was edited")
        try:
            self._follow(entry)
        except BookDamaged:
            raise
        except (DpfyError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(entry.number, f"what it says is not allowed there: {error}") from error
        self.number, self._hash = entry.number, entry.hash
        for name in {BOOK, entry.dataset}:
            self._heads[name] = (entry.number, entry.hash)

    def finish(self) -> None:
        """Check that no entry is missing at the end."""
        for name, (number, digest) in self._book.heads().items():
            if self._heads.get(name) != (number, digest):
                raise _damaged(number, "it is missing, or not the last one")

    def _follow(self, entry: Entry) -> None:
        if entry.kind == "create":
            declaration = Declaration.from_json(entry.body["declaration"])
            _expect(entry, entry.dataset not in self._datasets, "the data set exists already")
            self._datasets[entry.dataset] = DatasetRecord.new(declaration)
        elif entry.kind == "open_tranche":
            self._datasets[entry.dataset] = self._datasets[entry.dataset].opening()
        elif entry.grant:
            self._decide(entry)
        else:
            _expect(entry, not entry.dataset, f"{entry.kind!r} is no kind of entry")
            return
        same = canonical_json(self._datasets[entry.dataset].to_json()) == canonical_json(
            entry.body["record"]
        )
        _expect(entry, same, "the budget does not follow from the entries before")

    def _decide(self, entry: Entry) -> None:
        """Make the decision about a grant once more."""
        dataset, found = self._datasets[entry.dataset], GrantRecord.from_json(entry.body["grant"])
        before = self._grants.get(entry.grant)
        if entry.kind == "reserve":
            _expect(entry, before is None, "the grant exists already")
            self._reserve(entry, dataset, found)
        else:
            assert before is not None
            _CHECKS[entry.kind](self, entry, before, found)
            same = (before.id, before.dataset, before.account, before.cost)
            _expect(
                entry, same == (found.id, found.dataset, found.account, found.cost), "it changed"
            )
        self._grants[entry.grant] = found

    def _reserve(self, entry: Entry, dataset: DatasetRecord, found: GrantRecord) -> None:
        request = Request.from_json(entry.body["request"])
        declaration = dataset.declaration
        cost = planned_cost(
            request.envelope, request.filter, declaration.orders, declaration.relation
        )
        _expect(entry, _close(cost, found.cost), "the cost is not that of its events")
        _expect(entry, found.state is State.RESERVED and not any(found.lost), "it is not new")
        self._datasets[entry.dataset] = dataset.keeping(found.account, found.cost)

    def _activate(self, entry: Entry, before: GrantRecord, found: GrantRecord) -> None:
        assert found.ledger is not None and found.header is not None
        ended = None if before.reopened else before.sessions
        bound = before.bind(found.ledger, found.header, found.head, ended)
        _expect(entry, bound == found, "the grant does not follow")

    def _anchor(self, entry: Entry, before: GrantRecord, found: GrantRecord) -> None:
        _expect(entry, before.anchored(found.head) == found, "the grant does not follow")

    def _reopen(self, entry: Entry, before: GrantRecord, found: GrantRecord) -> None:
        more = plus(found.lost, before.lost, -1)
        _expect(entry, min(more) >= 0 and before.state is State.ACTIVE, "it pays for nothing")
        self._datasets[entry.dataset] = self._datasets[entry.dataset].keeping(found.account, more)

    def _settle(self, entry: Entry, before: GrantRecord, found: GrantRecord) -> None:
        kept = self._book.ledger(entry.grant)
        if kept is None:
            raise _damaged(entry.number, "the ledger that it was settled by is missing")
        data = zlib.decompress(kept[1])
        digest = hashlib.sha256(data).hexdigest()
        _expect(entry, digest == entry.body["sha256"] == kept[0], "its ledger was edited")
        ledger = Ledger.from_bytes(data, f"the ledger of grant {entry.grant}")
        declaration = self._datasets[entry.dataset].declaration
        charged = plus(declaration.charge(ledger.uses, before.cost), before.lost)
        _expect(entry, before.state is State.ACTIVE, "it had ended")
        self._charge(entry, before, found, charged)

    def _forfeit(self, entry: Entry, before: GrantRecord, found: GrantRecord) -> None:
        _expect(entry, before.state.outstanding, "it had ended")
        self._charge(entry, before, found, before.kept)

    def _withdraw(self, entry: Entry, before: GrantRecord, found: GrantRecord) -> None:
        _expect(entry, before.state is State.RESERVED, "a run had begun")
        zero = nothing(self._datasets[entry.dataset].declaration.orders)
        self._charge(entry, before, found, zero)

    def _charge(self, entry: Entry, before: GrantRecord, found: GrantRecord, charged: Cost) -> None:
        dataset = self._datasets[entry.dataset]
        given = found.charged
        _expect(entry, given is not None and _close(charged, given), "the charge is another")
        assert given is not None
        self._datasets[entry.dataset] = dataset.settling(before, given)


_CHECKS: dict[str, Callable[[_Replay, Entry, GrantRecord, GrantRecord], None]] = {
    "activate": _Replay._activate,
    "anchor": _Replay._anchor,
    "reopen": _Replay._reopen,
    "settle": _Replay._settle,
    "forfeit": _Replay._forfeit,
    "withdraw": _Replay._withdraw,
}


def _close(cost: Cost, other: Cost) -> bool:
    return len(cost) == len(other) and all(
        abs(mine - theirs) <= _CLOSE * max(mine, theirs)
        for mine, theirs in zip(cost, other, strict=True)
    )


def _expect(entry: Entry, condition: Any, reason: str) -> None:
    if not condition:
        raise _damaged(entry.number, reason)


def _damaged(number: int, reason: str) -> BookDamaged:
    return BookDamaged(
        f"Entry {number} of the book does not hold: {reason}. Grant nothing from it; restore its "
        "database, or compare it with an export."
    )
