"""The policy that names groups of records: what it says, and what it refuses."""

import pytest

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Policy
from dpfy.ledger.individual import Individual

GROUPS = Individual(("strict", "open"), (0.01, 0.03), (0.5, 2.0), (0.25, 0.75))


def test_it_survives_a_ledger() -> None:
    assert Policy.from_json(GROUPS.to_json()) == GROUPS


def test_its_rate_is_that_of_a_record_drawn_at_random() -> None:
    assert GROUPS.rate == pytest.approx(0.25 * 0.01 + 0.75 * 0.03)


def test_groups_are_found_by_name() -> None:
    assert GROUPS.number("open") == 1
    with pytest.raises(InvalidArgument, match="strict"):
        GROUPS.number("secret")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ("strict", "strict")}, "none of them twice"),
        ({"names": ("strict", "")}, "with a name each"),
        ({"names": (), "rates": (), "bounds": (), "shares": ()}, "with a name each"),
        ({"rates": (0.1,)}, "one of rates for each of the 2 groups"),
        ({"rates": (0.1, 1.1)}, "rate of group 'open'"),
        ({"bounds": (0.0, 1.0)}, "bound of group 'strict'"),
        ({"shares": (0.3, 0.3)}, "add up to 1, got 0.6"),
        ({"shares": (-0.5, 1.5)}, "share of group 'strict'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message) -> None:
    given = {name: getattr(GROUPS, name) for name in ("names", "rates", "bounds", "shares")}
    with pytest.raises(InvalidArgument, match=message):
        Individual(**given | change)
