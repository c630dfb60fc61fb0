"""The audit of the audit: planted mistakes are noticed, and the correct pipeline is left alone."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dpfy.auditing.mutants import MUTANTS
from dpfy.auditing.promises import readings


@dataclass(frozen=True)
class Verdict:
    """Whether a pipeline was flagged, and by what."""

    mutant: str
    flagged: bool
    evidence: str

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain JSON values."""
        return asdict(self)


def self_test(repeats: int = 1, keys: Iterator[int | None] | None = None,
              tell: Callable[[str], None] = lambda name: None) -> list[Verdict]:
    """Check the correct pipeline ``repeats`` times and every mutant once; return a verdict for each.

    ``keys`` make it repeatable; by default every run draws a fresh one. ``tell`` is called before each.
    """
    keys = itertools.repeat(None) if keys is None else keys
    verdicts = []
    for name, mutant in MUTANTS.items():
        found = []
        for _ in range(repeats if name == "none" else 1):
            tell(name)
            with mutant():
                found += [reading for reading in readings(keys) if reading.broken]
        evidence = str(max(found, key=lambda reading: reading.excess)) if found else "every reading is within its limit"
        verdicts.append(Verdict(name, bool(found), evidence))
    return verdicts
