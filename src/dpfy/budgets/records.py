"""Records: what the book keeps of a grant and of a data set, and how each step changes them.

Nothing here touches a database: the book reads the newest records, asks for the next ones, and
appends these to its chain. ``verify`` asks again.

Tests: tests/budgets/test_records.py.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from dpfy.budgets.costs import Cost, nothing, plus
from dpfy.budgets.declarations import WHOLE, Declaration
from dpfy.budgets.values import GrantState, State
from dpfy.errors import BudgetExhausted, GrantRefused
from dpfy.ledger.journal import Head


@dataclass(frozen=True)
class Account:
    """What was charged to a data set, or to a part of it, and what is kept for its grants."""

    charged: Cost
    kept: Cost

    @property
    def total(self) -> Cost:
        """All of it."""
        return plus(self.charged, self.kept)


@dataclass(frozen=True)
class GrantRecord:
    """All that the book knows of a grant.

    Args:
        id: its name.
        dataset: the data set.
        account: the part of the data set, or an empty string for all of it.
        purpose: what the run is for.
        holder: who runs it.
        state: how far it has come.
        cost: what its envelope costs: no run under it spends more.
        lost: what runs without a known end may have spent beyond their ledgers.
        charged: what it was charged in the end.
        ledger: the identity of its ledger.
        header: the hash of the first line of its ledger.
        sessions: how many runs were let begin on its ledger.
        reopened: whether what the last of them may have spent was paid for, though its end is not
            known, and no other has begun since.
        head: the newest head that is known of its ledger.
    """

    id: str
    dataset: str
    account: str
    purpose: str
    holder: str
    state: State
    cost: Cost
    lost: Cost
    charged: Cost | None
    ledger: str | None = None
    header: str | None = None
    sessions: int = 0
    reopened: bool = False
    head: Head = field(default_factory=Head)

    @property
    def kept(self) -> Cost:
        """What is kept for it: all that its runs may have spent or may yet spend."""
        return plus(self.cost, self.lost)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return {**vars(self), "state": str(self.state), "head": vars(self.head)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the record that :meth:`to_json` wrote."""
        known = {field.name: value[field.name] for field in fields(cls)}
        charged = known["charged"]
        return cls(
            **{
                **known,
                "state": State(known["state"]),
                "cost": tuple(known["cost"]),
                "lost": tuple(known["lost"]),
                "charged": None if charged is None else tuple(charged),
                "head": Head(**known["head"]),
            }
        )

    def shown(self, declaration: Declaration, created: str, updated: str) -> GrantState:
        """Return what people are told of it."""
        return GrantState(
            id=self.id,
            dataset=self.dataset,
            part=self.account or None,
            purpose=self.purpose,
            holder=self.holder,
            state=self.state,
            epsilon=declaration.epsilon_of(self.kept if self.charged is None else self.charged),
            ledger=self.ledger,
            head=self.head,
            created=created,
            updated=updated,
        )

    def expect(self, *states: State) -> None:
        """Raise unless the grant is in one of these states."""
        if self.state not in states:
            raise GrantRefused(
                f"Grant {self.id} is {self.state}, expected {' or '.join(states)}. Reserve another "
                "one."
            )

    def bind(self, ledger: str, header: str, head: Head, ended: int | None) -> "GrantRecord":
        """Return the record after a run was let begin on the ledger.

        ``ended`` is the number of the last run of the ledger, if its end is on record there.
        """
        self.expect(State.RESERVED, State.ACTIVE)
        if self.ledger is not None and (self.ledger, self.header) != (ledger, header):
            raise GrantRefused(
                f"Grant {self.id} is bound to the ledger {self.ledger}, got {ledger}. One grant "
                "pays for one ledger: go on with that one, or reserve another grant."
            )
        self.expect_prefix(head)
        if ended != self.sessions and not self.reopened:
            raise GrantRefused(
                f"Run {self.sessions} on the ledger of grant {self.id} has no known end in this "
                "ledger: it was killed, is still running, or the folder is an older copy, whose "
                "steps would be taken twice. Reopen the grant, which reserves the rest of its "
                "envelope once more, or forfeit it."
            )
        return replace(
            self,
            state=State.ACTIVE,
            ledger=ledger,
            header=header,
            head=head,
            sessions=self.sessions + 1,
            reopened=False,
        )

    def expect_prefix(self, head: Head) -> None:
        """Raise if a ledger with this head is shorter than the book knows it to be."""
        if head.count < self.head.count or (
            head.count == self.head.count and self.head.count and head.hash != self.head.hash
        ):
            raise rolled_back(self, head.count)

    def anchored(self, head: Head) -> "GrantRecord":
        """Return the record after the ledger has grown; an older head changes nothing."""
        self.expect(State.ACTIVE)
        return self if head.count <= self.head.count else replace(self, head=head)

    def repaid(self, used: Cost, head: Head) -> "GrantRecord":
        """Return the record after a run without a known end was paid for.

        It may have spent all that its ledger does not show.
        """
        rest = tuple(max(0, part) for part in plus(self.cost, used, -1))
        return replace(self, lost=plus(self.lost, rest), head=head, reopened=True)

    def ended(self, state: State, charged: Cost, head: Head | None = None) -> "GrantRecord":
        """Return the record after the grant was charged for good."""
        return replace(self, state=state, charged=charged, head=head or self.head)


@dataclass(frozen=True)
class DatasetRecord:
    """All that the book knows of a data set.

    *Formal guarantee*: :meth:`keeping` returns a record only if, for every part, what was charged
    or is kept for it and for the whole is within the open tranches and within all; no other method
    makes any total larger than what a grant has kept.

    Args:
        declaration: what was declared.
        opened: the number of open tranches.
        accounts: what was charged and is kept, for the whole and for each part.
    """

    declaration: Declaration
    opened: int
    accounts: dict[str, Account]

    @classmethod
    def new(cls, declaration: Declaration) -> Self:
        """Return the record of a data set that nobody has read."""
        zero = nothing(declaration.orders)
        return cls(declaration, 1, {name: Account(zero, zero) for name in declaration.accounts})

    def to_json(self) -> dict[str, Any]:
        """Return what changes of the record as plain JSON values."""
        return {
            "opened": self.opened,
            "accounts": {name: vars(account) for name, account in self.accounts.items()},
        }

    @classmethod
    def from_json(cls, declaration: Declaration, value: dict[str, Any]) -> Self:
        """Return the record that :meth:`to_json` wrote."""
        accounts = {
            name: Account(tuple(each["charged"]), tuple(each["kept"]))
            for name, each in value["accounts"].items()
        }
        return cls(declaration, value["opened"], accounts)

    @property
    def charged(self) -> list[Cost]:
        """What was charged to a record, for each account that it may be in."""
        return [self._of(name).charged for name in self.accounts]

    @property
    def totals(self) -> list[Cost]:
        """What was charged or is kept for a record, for each account that it may be in."""
        return [self._of(name).total for name in self.accounts]

    def keeping(self, account: str, cost: Cost) -> "DatasetRecord":
        """Return the record with so much more kept for a grant.

        Raises:
            BudgetExhausted: if there is no room for it; nothing was read then.
        """
        found = self._moved(account, nothing(self.declaration.orders), cost)
        if not all(self.declaration.admits(total, self.opened) for total in found.totals):
            raise BudgetExhausted(self._refusal(found))
        return found

    def settling(self, record: GrantRecord, charged: Cost) -> "DatasetRecord":
        """Return the record after a grant was charged, and its rest is free again."""
        zero = nothing(self.declaration.orders)
        return self._moved(record.account, charged, plus(zero, record.kept, -1))

    def opening(self) -> "DatasetRecord":
        """Return the record with one more tranche open.

        Raises:
            GrantRefused: if all are.
        """
        if self.opened == len(self.declaration.tranches):
            raise GrantRefused(
                f"All {self.opened} tranches of {self.declaration.name!r} are open. A budget is "
                "never raised: declare a new version of the data set instead."
            )
        return replace(self, opened=self.opened + 1)

    def _of(self, account: str) -> Account:
        """Return the account of the records of a part: its own, and that of the whole."""
        own, whole = self.accounts[account], self.accounts[WHOLE]
        if account == WHOLE:
            return whole
        return Account(plus(own.charged, whole.charged), plus(own.kept, whole.kept))

    def _moved(self, account: str, charged: Cost, kept: Cost) -> "DatasetRecord":
        if account not in self.accounts:
            parts = ", ".join(map(repr, self.declaration.parts)) or "none"
            raise GrantRefused(
                f"Expected a part of {self.declaration.name!r} ({parts}), got {account!r}."
            )
        now = self.accounts[account]
        moved = Account(plus(now.charged, charged), plus(now.kept, kept))
        return replace(self, accounts={**self.accounts, account: moved})

    def _refusal(self, found: "DatasetRecord") -> str:
        declaration = self.declaration
        limit = sum(declaration.tranches[: self.opened])
        now, then = (max(map(declaration.epsilon_of, each.totals)) for each in (self, found))
        remedy = (
            "open the next tranche, or wait until grants are settled"
            if self.opened < len(declaration.tranches)
            else "plan a run that costs less, or wait until grants are settled"
        )
        return (
            f"The budget of {declaration.name!r} has no room for this run: of epsilon={limit:g} at "
            f"delta={declaration.delta:g}, {now:.4g} are spent or reserved, and would be "
            f"{then:.4g} with it. Nothing was read; {remedy}."
        )


def rolled_back(record: GrantRecord, count: int) -> GrantRefused:
    """Return the error for a ledger that the book knows to have been longer."""
    return GrantRefused(
        f"The ledger of grant {record.id} was rolled back or replaced: it has {count} lines, and "
        f"the book remembers line {record.head.count} of it otherwise. Restore the newest copy, or "
        "forfeit the grant."
    )
