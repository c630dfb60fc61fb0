"""Say what a budget book knows of the data set of a run, and what is not known without one.

Tests: tests/reporting/test_budgets.py.
"""

from dpfy.reporting.facts import RunFacts
from dpfy.reporting.numbers import delta_text, epsilon_text
from dpfy.reporting.record import LedgerRecord

OTHERS_UNKNOWN = (
    "Other ledgers of this data are not known. Costs add up: releases recorded in another ledger "
    "on the same people compose with this one, and no budget book adds them up."
)
OTHERS_KNOWN = (
    "The budget book of the data set adds up the ledgers that it gave a grant to. Releases from "
    "the same people without a grant of this book, or from another data set with the same people, "
    "compose with these."
)


def state(facts: RunFacts, record: LedgerRecord) -> str:
    """Return the state of the data set beside the run's."""
    if record.grant is None:
        return "Other ledgers of this data are not known: the run was under no budget book."
    grant = record.grant
    part = f", part {grant['part']!r}" if "part" in grant else ""
    named = (
        f"The run is on the data set {grant['dataset']!r}{part}, under grant {grant['grant']} of "
        f"the budget book {grant['book']}."
    )
    if facts.book is None:
        return f"{named} What the book said of the data set is not in this report."
    book = {name: float(facts.book[name] or 0.0) for name in ("epsilon", "spent", "reserved")}
    return (
        f"{named} All runs under the book together keep ε = {epsilon_text(book['epsilon'])} at δ = "
        f"{delta_text(float(facts.book['delta'] or 0.0))}. When this report was written, "
        f"{facts.book['grants']} grants had been reserved, this one was {facts.book['state']}, ε = "
        f"{epsilon_text(book['spent'])} was spent, and outstanding grants would add "
        f"{epsilon_text(book['reserved'])}."
    )
