"""Draw noisy labels once: reserve the event, draw, save beside the ledger, and read ever after."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from dpfy import _validate
from dpfy.accounting import EnvelopeGuard, account
from dpfy.errors import BudgetExhausted, CheckpointError, LedgerMismatch
from dpfy.ledger import Header, Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.events import Event, Repeated
from dpfy.noise import SecureStream
from dpfy.run.state_file import read_state, write_state
from dpfy.types import Relation, Unit

StrPath = str | os.PathLike[str]
Parts = dict[str, torch.Tensor]

SUFFIX = ".labels"
"""What is added to the name of a ledger, before the number of a part, for its noisy labels."""

_SURE, _UP = 1e-9, 1 + 1e-9  # the δ at which the cost is checked, and the accountant's rounding
_GROUNDS = (
    Ground(
        Kind.THEOREM,
        "isolation",
        "A label decides its own noisy answer or count, and nothing else",
        "Labels are read one by one, and what is no class counts as class 0: "
        "docs/proofs/labels.md.",
    ),
    Ground(
        Kind.DECLARATION,
        "features",
        "Features are public",
        "Features, their order and the number of records are public: neither noise nor accounting "
        "protects them.",
    ),
    Ground(
        Kind.DECLARATION,
        "classes",
        "Which classes there are",
        "The number of classes was declared, and not read off the labels.",
    ),
)


@dataclass(frozen=True)
class Declared:
    """What is public about a release of labels before it begins.

    Args:
        method: The name of the mechanism.
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the whole release.
        records: The public number of records.
        event: What the whole release costs.
        parameters: Further public parameters, as plain JSON values.

    Raises:
        InvalidArgument: If a number is out of its range.
    """

    method: str
    classes: int
    epsilon: float
    records: int
    event: Event
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.count("classes", self.classes, minimum=2)
        _validate.epsilon(self.epsilon)
        _validate.count("records", self.records, minimum=0)

    @property
    def plan(self) -> dict[str, Any]:
        """The declaration as the header of a ledger keeps it."""
        return {
            "labels": self.method,
            "classes": self.classes,
            "epsilon": self.epsilon,
            "records": self.records,
            "parameters": self.parameters,
        }


class LabelRelease:
    """Hold the noisy labels of one ledger: drawn once, and read ever after.

    A release has one part or several, on disjoint records, that one event pays for. Each part is
    marked as begun on the ledger before a label is read for it, and saved beside the ledger before
    anybody sees it.

    *Formal guarantee*: a label has a say in at most one draw for a ledger in a file, whatever
    crashes and whoever calls how often; so all that is ever returned is one answer of the event. A
    part that was begun and not saved is lost: drawing it again would be a second answer, and is
    refused. For a ledger in memory the same holds while it lives.

    *Assumes* that labels are read by the functions given to :meth:`once` alone, and that the event
    describes what these draw.

    Args:
        declared: What is public about the release.
        ledger: The path of a ledger, or an open one.
        insecure_test_key: A key that makes the draw reproducible, and the labels not private.

    Raises:
        LedgerMismatch: If the ledger was begun for something else.
        BudgetExhausted: If the event costs more than the declared ε.
    """

    def __init__(
        self,
        declared: Declared,
        ledger: Ledger | StrPath,
        insecure_test_key: int | bytes | None = None,
    ) -> None:
        self.declared = declared
        self._stream = SecureStream(insecure_test_key=insecure_test_key)
        self._given = ledger
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
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
        """Close the ledger, unless it was given open."""
        if self.ledger is not self._given:
            self.ledger.close()

    def once(self, part: int, draw: Callable[[SecureStream], Parts]) -> Parts:
        """Return a part of the noisy labels, drawn if this is the first time.

        Args:
            part: The number of the part, from 0.
            draw: A function that reads the labels of the part and returns noisy tensors, by name.

        Returns:
            The noisy tensors, of the first time.

        Raises:
            BudgetExhausted: If they were drawn before, and are lost.
            LedgerMismatch: If the file beside the ledger belongs to another ledger.
        """
        saved = self._saved(part)
        if saved is not None:
            return saved
        if self._begun(part):
            raise BudgetExhausted(
                f"{self._name} has paid for these noisy labels, and they are not there: a crash "
                "lost them before they were saved, the file was removed, or the ledger lives in "
                "memory. Drawing them again would tell more about the labels than was declared. "
                "Restore the file, or begin a new ledger; the costs of both add up."
            )
        if not self.ledger.count:
            self.ledger.reserve(self.declared.event)
        self.ledger.record_basis(self._mark(part))
        self._stream.refresh()  # a restored copy of the machine has the old key
        drawn = draw(self._stream)
        if (file := self._file(part)) is not None:
            write_state(file, {"ledger": self._identity, "parts": drawn})
        return drawn

    def drawn(self, part: int) -> bool:
        """Tell whether a part has been drawn and saved, without reading a label."""
        return self._saved(part) is not None

    def _register(self) -> None:
        declared, known = self.declared, self.ledger.header
        envelope = (Repeated(declared.event, 1),)
        header = Header(
            unit=Unit.LABEL,
            relation=Relation.REPLACE_ONE,
            plan=declared.plan,
            envelope=envelope,
            key_source=self._stream.key_source,
        )
        if account(envelope, relation=Relation.REPLACE_ONE).claim(_SURE) > declared.epsilon * _UP:
            raise BudgetExhausted(
                f"Expected the event of {declared.method} to cost at most the declared ε = "
                f"{declared.epsilon!r}."
            )
        if known is not None and known.plan != declared.plan and "labels" in (known.plan or {}):
            raise LedgerMismatch(
                f"{self._name} holds noisy labels by {known.plan}, got {declared.plan}. Labels are "
                "drawn once: ask for the same again, or begin a new ledger, whose cost adds up."
            )
        self.ledger.register(EnvelopeGuard(envelope, None, Relation.REPLACE_ONE), header)

    def _mark(self, part: int) -> dict[str, Any]:
        return {"grounds": [ground.to_json() for ground in _GROUNDS], "labels_begun": part}

    def _begun(self, part: int) -> bool:
        return any(facts.get("labels_begun") == part for facts in self.ledger.basis)

    def _file(self, part: int) -> Path | None:
        path = self.ledger.path
        return None if path is None else path.with_name(f"{path.name}{SUFFIX}{part}")

    def _saved(self, part: int) -> Parts | None:
        file = self._file(part)
        if file is None or not file.exists():
            return None
        state = read_state(file)
        if state.get("ledger") != self._identity or not self._begun(part):
            raise LedgerMismatch(
                f"{file} holds noisy labels that {self._name} has not paid for. Move it away, or "
                "use the ledger that it belongs to."
            )
        parts = state.get("parts")
        if not isinstance(parts, dict):
            raise CheckpointError(f"{file} holds no noisy labels. Restore it from a copy.")
        return parts

    @property
    def _identity(self) -> str:
        assert self.ledger.header is not None  # registered
        return self.ledger.header.identity

    @property
    def _name(self) -> str:
        return str(self.ledger.path or "The ledger")
