"""The ledger of one person: which reports were sent, and what they cost together.

Tests: tests/local/test_person.py.
"""

import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from dpfy import _validate
from dpfy.accounting import EnvelopeGuard
from dpfy.ledger import Header, Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.events import Repeated, Sampled
from dpfy.ledger.one_shot import LabelAnswer
from dpfy.mechanisms.one_shot.base import once
from dpfy.noise import SecureStream
from dpfy.reporting.modes import LOCAL_REPORTS
from dpfy.types import Relation, Unit

Answer = TypeVar("Answer")
StrPath = str | os.PathLike[str]

LEAST_EPSILON, MOST_EPSILON = 1e-9, 700.0
"""Between these the odds of a lie, rounded, are apart from those of the truth, and above 0."""

_GROUNDS = (
    Ground(
        Kind.THEOREM,
        "isolation",
        "A report is drawn from its own value alone",
        "A value that is none of the declared ones counts as the first: docs/proofs/local.md.",
    ),
    Ground(
        Kind.THEOREM,
        "rounding_of_sums",
        "Coins have exact odds",
        "Reports are drawn by fair bits and fractions, without rounding: docs/proofs/local.md.",
    ),
    Ground(
        Kind.DECLARATION,
        "classes",
        "Which values there are",
        "The number of values and of reports was declared, and not read off the values.",
    ),
)


def check_declared(values: int, epsilon: float, reports: int) -> None:
    """Check what a question declares.

    Raises:
        InvalidArgument: If a number is out of its range.
    """
    _validate.count("values", values, minimum=2)
    _validate.real("epsilon", epsilon, LEAST_EPSILON, MOST_EPSILON)
    _validate.count("reports", reports)


def report_event(epsilon: float) -> Sampled:
    """Return the event of one report that is ε-private for replacing its value."""
    return once(LabelAnswer(epsilon, "report"))


def own_value(value: object, values: int) -> int:
    """Return a value as a number below ``values``; whatever is none counts as 0, silently.

    >>> own_value(2, 3), own_value(7, 3), own_value(float("nan"), 3), own_value("no", 3)
    (2, 0, 0, 0)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = int(value)  # type: ignore[call-overload]
    except Exception:  # a value may be any object, and none may announce itself
        return 0
    return found if 0 <= found < values else 0


def send(
    ledger: Ledger | StrPath,
    plan: dict[str, Any],
    epsilon: float,
    reports: int,
    draw: Callable[[SecureStream], Answer],
    insecure_test_key: int | bytes | None,
) -> Answer:
    """Reserve one report on the ledger of a person, then draw it.

    *Formal guarantee*: the event is on stable storage before the value is read, and at most
    ``reports`` are ever drawn for one ledger.

    *Assumes* that ``draw`` alone reads the value, and is ``epsilon``-differentially private for
    replacing it.

    Args:
        ledger: The ledger of the person, open or the path of one.
        plan: What is reported, as plain JSON values.
        epsilon: The ε of one report.
        reports: The most reports that the person sends.
        draw: A function that reads the value and returns the report.
        insecure_test_key: A key that makes the draw reproducible, and the report not private.

    Returns:
        The report.

    Raises:
        BudgetExhausted: If all reports were sent; the value was not read.
        LedgerMismatch: If the ledger was begun for something else.
    """
    stream = SecureStream(insecure_test_key=insecure_test_key)
    event = report_event(epsilon)
    envelope = (Repeated(event, reports),)
    header = Header(
        unit=Unit.REPORT,
        relation=Relation.REPLACE_ONE,
        plan={"kind": LOCAL_REPORTS, "epsilon": epsilon, "reports": reports, **plan},
        envelope=envelope,
        key_source=stream.key_source,
    )
    opened = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
    try:
        opened.register(EnvelopeGuard(envelope, None, Relation.REPLACE_ONE), header)
        opened.record_basis({"grounds": [ground.to_json() for ground in _GROUNDS]})
        opened.reserve(event)
        stream.refresh()  # a restored copy of the machine has the old key
        report = draw(stream)
        opened.require_opener()  # what gives the value may have forked
        return report
    finally:
        if opened is not ledger:
            opened.close()
