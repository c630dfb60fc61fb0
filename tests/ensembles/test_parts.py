"""Each record draws its parts by itself, and always the same ones under the same key."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dpfy.ensembles import Partition
from dpfy.errors import InvalidArgument

KEY = bytes(range(32))
GROUPS = ("strict", "open")


def parts_of(partition: Partition, units: list, **options) -> dict:
    """Return the parts of each unit."""
    divided = partition.draw(len(units), KEY, unit_of=units, **options)
    found: dict = {unit: set() for unit in units}
    for part, rows in enumerate(divided):
        for row in rows:
            found[units[row]].add(part)
    return found


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 9), st.data())
def test_removing_records_moves_no_other(units, parts, data):
    before = parts_of(Partition(parts), units)
    gone = data.draw(st.sampled_from(units))
    after = parts_of(Partition(parts), [unit for unit in units if unit != gone])
    assert after == {unit: found for unit, found in before.items() if unit != gone}
    assert all(len(found) == 1 for found in before.values())


def test_later_records_move_no_earlier_one():
    few, many = Partition(7).draw(90, KEY), Partition(7).draw(100, KEY)
    assert all((large[large < 90] == small).all() for small, large in zip(few, many, strict=True))


def test_parts_are_about_equally_large():
    sizes = [len(rows) for rows in Partition(10).draw(20_000, KEY)]
    assert all(abs(size - 2000) < 6 * 2000**0.5 for size in sizes)  # false alarms: 10 · 2e-9


@settings(deadline=None)
@given(st.lists(st.sampled_from([*GROUPS, "unknown", None]), max_size=60), st.integers(1, 5))
def test_a_record_is_in_as_many_parts_as_its_group_has_copies(groups, copies):
    partition = Partition(5, {"strict": 1, "open": copies})
    divided = partition.draw(len(groups), KEY, group_of=groups)
    often = np.bincount(np.concatenate([*divided, []]).astype(int), minlength=len(groups))
    expected = {"strict": 1, "open": copies}
    assert often.tolist() == [expected.get(group, 0) for group in groups]


def test_groups_with_teachers_of_their_own_share_none():
    partition = Partition({"strict": 2, "open": 3})
    groups = ["strict", "open", "unknown"] * 40
    divided = partition.draw(len(groups), KEY, group_of=groups)
    assert partition.owners == ("strict", "strict", "open", "open", "open")
    for owner, rows in zip(partition.owners, divided, strict=True):
        assert {groups[row] for row in rows} == {owner}
    assert sum(map(len, divided)) == 80


class Nameless:
    """A unit that cannot be written."""

    def __str__(self):
        raise ValueError("a record")


@pytest.mark.parametrize(
    "odd", [0.5, math.nan, "ann", None, -1, 10**5000, "\udc80", Nameless()], ids=type
)
def test_no_units_type_moves_another(odd):
    units = [2**53 + 1, 2**53, 2**53 + 3, 7]
    before, after = (Partition(99).draw(len(u), KEY, unit_of=u) for u in (units, [*units, odd]))
    assert [rows.tolist() for rows in before] == [rows[rows < 4].tolist() for rows in after]


@pytest.mark.parametrize("odd", ["1", 1.0, None, ["1"], {}, np.str_("1")])
def test_no_groups_type_moves_another(odd):
    groups = [1, "1", 2, "a", b"1"]
    partition = Partition({"1": 3, "a": 2})
    before, after = (
        partition.draw(len(each), KEY, group_of=each) for each in (groups, [*groups, odd])
    )
    assert [rows.tolist() for rows in before] == [rows[rows < 5].tolist() for rows in after]
    assert sorted(np.concatenate(before)) == [1, 3]
    assert (5 in np.concatenate(after)) == isinstance(odd, str)


def test_equal_numbers_are_one_unit():
    same = [3, 3.0, np.int64(3), np.float32(3), torch.tensor(3), np.array(3.0)]
    assert [len(rows) for rows in Partition(99).draw(6, KEY, unit_of=same) if len(rows)] == [6]
    for column in (np.array([3, 4]), torch.tensor([3, 4]), np.array([3.0, 4], dtype=object)):
        expected = Partition(99).draw(2, KEY, unit_of=[3, 4])
        found = Partition(99).draw(2, KEY, unit_of=column)
        assert [rows.tolist() for rows in found] == [rows.tolist() for rows in expected]


def test_another_key_gives_other_parts():
    first, second = (Partition(50).draw(500, key) for key in (KEY, bytes(32)))
    assert any(a.tolist() != b.tolist() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("partition", [Partition(5), Partition({"a": 2}), Partition(5, {"a": 2})])
def test_json_round_trip(partition):
    assert Partition.from_json(partition.to_json()) == partition


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Partition(0), "parts=0"),
        (lambda: Partition({}), "groups with a name"),
        (lambda: Partition({"a": 0}), "parts of group 'a'"),
        (lambda: Partition({"a": 1}, {"a": 1}), "got both"),
        (lambda: Partition(2, {"a": 3}), "at most the 2 parts"),
        (lambda: Partition(2).draw(3, b"short"), "32 bytes"),
        (lambda: Partition(2).draw(3, KEY, group_of="abc"), "has none"),
        (lambda: Partition({"a": 2}).draw(3, KEY), "pass group_of="),
        (lambda: Partition(2).draw(3, KEY, unit_of=[1]), "one entry for each record"),
        (
            lambda: Partition({"a": 2}).draw(1, KEY, unit_of=[1], group_of=["a"]),
            "cannot be combined",
        ),
    ],
)
def test_what_does_not_fit_is_refused(wrong, said):
    with pytest.raises(InvalidArgument, match=said):
        wrong()
