"""Open the ledger of a run: one that exists, a new one, or one that has nothing left.

Tests: tests/run/test_run.py.
"""

import sys
from itertools import count
from pathlib import Path

from dpfy._version import __version__
from dpfy.errors import InvalidArgument
from dpfy.ledger import Header, Ledger
from dpfy.ledger.grant import Booking, Grant
from dpfy.plans import Plan


def open_ledger(
    ledger: str | Path | Ledger | Booking,
    plan: Plan,
    key_source: str,
    anchor: str | Path | None,
    block: int,
    strict: bool,
    grant: Grant | None = None,
) -> Ledger:
    """Open the ledger as its only writer, or add the plan to one that is open."""
    guard, rule = plan.guard(), plan.filter
    # Under a filter nothing but the filter is claimed, and a list of steps would not hold those
    # chosen from outputs.
    header = Header(
        unit=plan.unit,
        relation=plan.relation,
        plan=plan.to_json(),
        key_source=key_source,
        guard=guard.describe(),
        envelope=plan.envelope if rule is None else (),
        filter=None if rule is None else rule.to_json(),
        library=__version__,
        strict=strict,
    )
    if isinstance(ledger, Ledger):
        if anchor is not None or block != 1 or grant is not None:
            raise InvalidArgument(
                "anchor=, block= and grant= belong to Ledger.open; this ledger is open already."
            )
        ledger.register(guard, header)
        return ledger
    place = ledger if isinstance(ledger, Booking) else Path(ledger)
    return Ledger.open(place, guard, header, anchor=anchor, block=block, grant=grant)


def new_path(ledger: str | Path | Ledger | Booking, anchor: str | Path | None) -> Path:
    """Return a path on which there is no ledger: the given one, or the first free one like it."""
    if isinstance(ledger, Ledger | Booking) or anchor is not None:
        raise InvalidArgument(
            "if_exists='new' chooses another file if need be: expected ledger= to be a path, and "
            "no anchor=, which belongs to one ledger."
        )
    first = path = Path(ledger)
    numbers = count(2)
    while path.exists():
        path = first.with_stem(f"{first.stem}-{next(numbers)}")
    if path != first:
        sys.stdout.write(
            f"{first} exists: the ledger of this run is {path}. What was trained on the same "
            "records costs the ε of all their ledgers together.\n"
        )
    return path


def nothing_left(plan: Plan, ledger: str | Path | Ledger | Booking, taken: int) -> str:
    """Say that a ledger has no step left for a run, and what to do."""
    name = (ledger.path or "in memory") if isinstance(ledger, Ledger) else ledger
    spent = (
        f"All {plan.steps} steps of the plan were spent on the ledger {name} before"
        if taken >= plan.steps
        else f"The filter of the ledger {name} has no room for another step of the plan"
    )
    return (
        f"{spent}: the model would stay as it is. If you want the model that was trained then, "
        "load what you saved; dpfy.resume restores a checkpoint. If you want to train another one, "
        "which costs its ε once more, give another path as ledger=, or if_exists='new'."
    )
