"""Privacy reports of fits and of summaries.

Tests: tests/estimators/test_description.py.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.grant import Booking
from dpfy.types import Relation

_ISOLATION = Ground(
    Kind.THEOREM,
    "isolation",
    "A row adds at most its bound to each released sum, and changes nothing else",
    "Rows are encoded, bounded and evaluated one by one, at released parameters: "
    "docs/proofs/estimators.md.",
)
_ROUNDING = Ground(
    Kind.THEOREM,
    "rounding_of_sums",
    "What rows do to each other's rounding is bounded",
    "Rows share the arithmetic of float64 sums; what one row can change of the others' rounding is "
    "in the noise scale: docs/proofs/estimators.md, Lemma 1.",
)
SUMS = (_ISOLATION, _ROUNDING)
"""What is proved about releases of sums over rows."""


def count_ground(relation: Relation, records: int) -> Ground:
    """Return how the number of rows is known, as the ledger keeps it.

    Args:
        relation: The neighbouring relation.
        records: The public number of rows, or the declared one.

    Returns:
        The ground.
    """
    text = (
        "The number of rows is public: neighbours have the same."
        if relation is Relation.ZERO_OUT
        else f"The number of rows is private. It was declared to be about {records}, and at most "
        "twice that, on which the bound of rounding rests."
    )
    return Ground(Kind.DECLARATION, "records", "How many rows there are", text)


def write_report(
    folder: str | os.PathLike[str],
    ledger: Ledger | str | os.PathLike[str] | Booking,
    delta: float,
    name: str,
    parameters: Mapping[str, Any],
    released: str,
) -> tuple[Path, Path, Path]:
    """Write the privacy report of a ledger of fits into a folder.

    Args:
        folder: The folder; it is created if it does not exist.
        ledger: The ledger, open or the path of one.
        delta: The δ of the report.
        name: What was fitted.
        parameters: The public parameters, as plain JSON values.
        released: What leaves, in words.

    Returns:
        The paths of the report in Markdown, JSON and HTML.
    """
    from dpfy.reporting import RunFacts, report

    scalars = {
        key: value if isinstance(value, int | float | bool | None) else str(value)[:200]
        for key, value in parameters.items()
    }
    facts = RunFacts(
        name=name,
        record="one row of the table",
        released=released,
        model=name,
        engine="numpy",
        isolation=_ISOLATION.text,
        hyperparameters=scalars,
    )
    return report(ledger, delta, facts).write(folder)
