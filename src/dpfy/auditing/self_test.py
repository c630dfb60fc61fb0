"""The test of the audit: it notices planted mistakes, and passes the correct pipeline."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from dpfy.auditing.invariants import readings
from dpfy.auditing.mutants import MUTANTS, Mutant


@dataclass(frozen=True)
class Verdict:
    """Whether a pipeline was flagged, and by which evidence.

    Args:
        mutant: the name of the planted mistake, or "none".
        flagged: whether a reading crossed its limit.
        evidence: the reading that crossed it furthest.
    """

    mutant: str
    flagged: bool
    evidence: str

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain JSON values."""
        return asdict(self)


def self_test(
    repeats: int = 1,
    keys: Iterator[int | None] | None = None,
    tell: Callable[[str], None] = lambda name: None,
) -> list[Verdict]:
    """Check the correct pipeline ``repeats`` times and every mutant once.

    Args:
        repeats: the number of checks of the correct pipeline.
        keys: public keys that make the test repeatable; by default every run draws a secret one.
        tell: is called with the name of each pipeline before it is checked.

    Returns:
        One verdict for each pipeline.
    """
    keys = itertools.repeat(None) if keys is None else keys
    verdicts, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # a second thread only slows down such small sums
    try:
        for name, mutant in MUTANTS.items():
            verdicts.append(_verdict(name, mutant, repeats if name == "none" else 1, keys, tell))
    finally:
        torch.set_num_threads(threads)
    return verdicts


def _verdict(
    name: str, mutant: Mutant, repeats: int, keys: Iterator[int | None], tell: Callable[[str], None]
) -> Verdict:
    found = []
    for _ in range(repeats):
        tell(name)
        with mutant():
            found += [reading for reading in readings(keys) if reading.broken]
    evidence = (
        str(max(found, key=lambda reading: reading.excess))
        if found
        else "every reading is within its limit"
    )
    return Verdict(name, bool(found), evidence)
