"""The hunt: random private steps on neighbouring data, none of which moves a sum by more than was
paid for.

A case that fails prints as one line: ``check(Case(…))`` is the test to write for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count, islice

import pytest
from hunt_cases import ENGINES, Case, drawn, shrunk
from hunt_pairs import Leak, Verdict, check

SHORT, ALL, PARTS = 40, 2000, 20
REFUSED = {"auto": 0.1, "loop": 0.1, "bookkeeping": 0.15, "ghost": 0.15, "vmap": 0.35}
"""The largest part of harmless cases that may be refused: torch cannot vectorise recurrent layers,
for example.
"""


def leaks(case: Case) -> bool:
    try:
        check(case)
    except Leak:
        return True
    return False


@dataclass
class Tally:
    """What became of the cases, so that a library that refuses or silences everything does not
    pass.
    """

    verdicts: list[tuple[Case, Verdict]] = field(default_factory=list)

    def take(self, number: int) -> None:
        case = drawn(number)
        try:
            self.verdicts.append((case, check(case)))
        except Leak:
            small = shrunk(case, leaks)
            check(small)  # raises, and says what it found
            raise

    def judge(self) -> None:
        harmless = [(case, verdict) for case, verdict in self.verdicts if case.benign]
        for engine in ENGINES:
            refused = [verdict.refusal for case, verdict in harmless if case.engine == engine]
            share = sum(map(bool, refused)) / max(1, len(refused))
            assert share <= REFUSED[engine], (
                f"{engine} refuses {share:.0%} of harmless cases: {sorted(set(refused))}"
            )
        done = [
            (case, verdict) for case, verdict in harmless if not verdict.refusal and not case.random
        ]
        silent = [case for case, verdict in done if verdict.largest == 0]
        assert len(silent) <= 0.1 * len(done), f"nobody contributes anything: {silent}"
        moved = [verdict.moved for _, verdict in done]
        assert sum(each > 0.5 for each in moved) >= 0.2 * len(moved), (
            "the odd records hardly move a sum"
        )


def hunt(numbers: Iterable[int]) -> None:
    tally = Tally()
    for number in numbers:
        tally.take(number)
    tally.judge()


@pytest.mark.apart
def test_no_neighbour_is_seen_in_a_short_hunt():
    quick = (
        number for number in count() if "two threads" not in drawn(number).ambient
    )  # these wait for each other
    hunt(islice(quick, SHORT))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_neighbour_is_seen_in_a_long_hunt(part):
    hunt(range(part * ALL // PARTS, (part + 1) * ALL // PARTS))


def test_a_failure_shrinks_to_what_it_needs():
    """A shrinker that gives up early, or keeps what does not matter, would hide the cause."""
    number = next(
        n for n in range(1000) if "autocast" in drawn(n).ambient and drawn(n).engine == "ghost"
    )
    small = shrunk(
        drawn(number), lambda case: "autocast" in case.ambient and case.engine == "ghost"
    )
    assert small == Case(ambient=("autocast",), engine="ghost")
    assert repr(small) == "Case(ambient=('autocast',), engine='ghost')"
    assert eval(repr(small), {"Case": Case}) == small
