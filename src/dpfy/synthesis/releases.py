"""Open the ledger of one synthetic table, and make its releases: each is on record before it reads.

Tests: tests/synthesis/test_releases.py.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from dpfy.accounting import EnvelopeGuard, Guarantee, account
from dpfy.accounting.filtered import declared_filter
from dpfy.errors import LedgerMismatch
from dpfy.ledger import Header, Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.events import Envelope
from dpfy.ledger.guard import Guard
from dpfy.reporting.modes import SYNTHETIC_TABLE
from dpfy.types import Budget, Relation

if TYPE_CHECKING:
    from dpfy.mechanisms.one_shot.base import Releasable

StrPath = str | os.PathLike[str]
RELATION = Relation.ADD_OR_REMOVE_ONE

_SECRET_KEYS = ("os", "operating system")
_GROUNDS = (
    Ground(
        Kind.THEOREM,
        "isolation",
        "A row adds 1 to one cell of each marginal, and changes nothing else",
        "Cells follow from the schema and from released values; each row is put into its cells by "
        "itself: docs/proofs/synthesis.md, Lemma 1.",
    ),
    Ground(
        Kind.THEOREM,
        "rounding_of_sums",
        "Counts and scores are whole numbers",
        "Rows are counted, and distances from expected counts are summed, without rounding: "
        "docs/proofs/synthesis.md, Lemma 2.",
    ),
    Ground(
        Kind.DECLARATION,
        "features",
        "The schema is public",
        "Columns, bounds, categories and knots were declared, and not read off the rows. The "
        "number of rows is private: the synthetic table has as many as noisy counts tell.",
    ),
)

Values = TypeVar("Values")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Declared:
    """What is public about a synthetic table before a row is read.

    Args:
        method: The name of the method.
        parameters: Its public parameters, as plain JSON values.
        budget: The ε and δ that it may spend.
        envelope: The events, in order, if they are known in advance.
        filter: The filter that admits them if they are not, as plain JSON values.
    """

    method: str
    parameters: dict[str, Any]
    budget: Budget
    envelope: Envelope = ()
    filter: dict[str, Any] | None = None

    @property
    def guard(self) -> Guard:
        """A fresh guard of the budget."""
        if self.filter is not None:
            return declared_filter(self.filter).guard(RELATION)
        return EnvelopeGuard(self.envelope, self.budget, RELATION)

    @property
    def plan(self) -> dict[str, Any]:
        """The declaration as the header of a ledger keeps it."""
        return {"kind": SYNTHETIC_TABLE, "method": self.method, "parameters": self.parameters}


class Releases:
    """The releases of one synthetic table, from one ledger that belongs to it alone.

    *Formal guarantee*: the list of events, or the filter that admits them, is on the ledger before
    a row is read, and each event is reserved durably before its own counts are computed. A ledger
    that has paid for anything is refused, so what an interrupted table reserved stays spent.

    *Assumes* that rows are read by the functions given to :meth:`make` alone, and that what these
    return meets the bound of their mechanism.

    Args:
        declared: What is public about the table.
        ledger: An open ledger, the path of one, or None for one in memory.
        insecure_test_key: A key that makes the noise reproducible, and the table not private.

    Raises:
        LedgerMismatch: If the ledger was begun for something else, or has paid for anything.
    """

    def __init__(
        self,
        declared: Declared,
        ledger: Ledger | StrPath | None,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        from dpfy.noise import SecureStream

        self.declared = declared
        self._stream = SecureStream(insecure_test_key=insecure_test_key)
        self._given = ledger
        self.ledger = self._open()
        try:
            self._register()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the ledger, unless it was given open, or lives in memory."""
        if self.ledger is not self._given:
            self.ledger.close()

    def make(
        self,
        mechanism: "Releasable[Values, Answer]",
        compute: Callable[[], Values],
        *,
        adaptive: bool = False,
    ) -> Answer:
        """Reserve a mechanism's event, then compute its values, and return its answer.

        Args:
            mechanism: What is released.
            compute: A function that reads the rows and returns the exact values.
            adaptive: Whether the mechanism was chosen from earlier answers.

        Returns:
            The answer, with noise.

        Raises:
            BudgetExhausted: If the ledger does not admit it; no row was read.
        """
        from dpfy.mechanisms.one_shot import release

        def silent() -> Values:
            # a warning about a row would be an output
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return compute()

        return release(mechanism, self.ledger, silent, self._stream, adaptive=adaptive)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the table."""
        return account(self.ledger)

    def _open(self) -> Ledger:
        if isinstance(self._given, Ledger):
            return self._given
        return Ledger.in_memory() if self._given is None else Ledger.open(self._given)

    def _register(self) -> None:
        """Declare what the ledger is for, and what the guarantee rests on."""
        declared, ledger = self.declared, self.ledger
        if ledger.count:
            raise LedgerMismatch(
                f"{ledger.path or 'The ledger'} has paid for releases already. A synthetic table "
                "has a ledger of its own, and an interrupted one is not taken up again: what it "
                "reserved stays spent. Begin a new ledger; the costs of both add up."
            )
        ledger.register(
            declared.guard,
            Header(
                relation=RELATION,
                plan=declared.plan,
                envelope=declared.envelope,
                key_source=self._stream.key_source,
                filter=declared.filter,
            ),
        )
        ledger.record_basis({"grounds": [ground.to_json() for ground in _GROUNDS]})
