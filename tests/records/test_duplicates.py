"""The owner is told how many units share a text."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.records import Users, find_duplicates

TEXTS = ["Call me.", "call  ME!", "Goodbye", "Call me.", "Goodbye", ""]


def test_texts_are_compared_to_the_letter_and_word_for_word() -> None:
    found = find_duplicates(TEXTS)
    assert found.units == 6
    exact, similar = found.exact, found.similar
    assert (exact.texts, exact.units, exact.most) == (2, 4, 2)
    assert exact.groups == ((0, 3), (2, 4))
    assert (similar.texts, similar.units, similar.most) == (2, 5, 3)
    assert similar.groups == ((0, 1, 3), (2, 4))


def test_a_unit_may_repeat_itself() -> None:
    # The same author of rows 0, 1 and 3: only Goodbye is in two units.
    found = find_duplicates(TEXTS, unit_of=["a", "a", "a", "a", "b", "c"])
    assert found.units == 3
    assert (found.exact.texts, found.exact.units, found.exact.most) == (1, 2, 2)
    assert found.similar == found.exact


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 4)), max_size=12))
def test_counts_are_those_of_comparing_all_pairs(items) -> None:
    texts, owners = [text for text, _ in items], [owner for _, owner in items]
    found = find_duplicates(texts, unit_of=np.array(owners, dtype=np.int64)).exact
    shared = {
        text: {owners[row] for row, each in enumerate(texts) if each == text} for text in texts
    }
    shared = {text: units for text, units in shared.items() if len(units) > 1}
    assert found.texts == len(shared)
    assert found.units == len(set().union(*shared.values()))
    assert found.most == max(map(len, shared.values()), default=0)


def test_users_of_sorted_rows_and_rows_without_a_user() -> None:
    assert find_duplicates(["a", "b", "a"], Users.sorted([0, 2, 3])).exact.units == 2
    found = find_duplicates(["a", "a", "a"], unit_of=[None, 1, 2])
    assert found.exact.groups == ((1, 2),)
    with pytest.raises(InvalidArgument, match="Its length is not that of the data set"):
        find_duplicates(["a"], unit_of=[1, 2])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), torch.tensor([1.0, 2.0])),
        (torch.zeros(2, 1), torch.zeros(1, 2)),
        (np.array([1, 2]), np.array([[1, 2]])),
        (("ab", "c"), ("a", "bc")),
        ({"text": "a", "label": 1}, {"text": "a", "label": 2}),
        ((b"a", 1), (b"a", 2)),
    ],
    ids=str,
)
def test_records_of_any_kind_are_compared_as_they_are(one, other) -> None:
    assert find_duplicates([one, other]).exact.texts == 0
    assert find_duplicates([one, other, one]).exact.groups == ((0, 2),)


def test_one_field_is_compared() -> None:
    by_name = [{"text": "a", "label": 1}, {"text": "a", "label": 2}]
    assert find_duplicates(by_name, field="text").exact.units == 2
    by_place = [("a", 1), ("a", 2), ("b", 1)]
    assert find_duplicates(by_place, field=0).exact.groups == ((0, 1),)


def test_row_that_does_not_load_counts_for_nothing() -> None:
    class Broken(list):
        def __getitem__(self, index):
            if index == 1:
                raise OSError("bad sector")
            return super().__getitem__(index)

    assert find_duplicates(Broken(["a", "a", "a"])).exact.groups == ((0, 2),)
