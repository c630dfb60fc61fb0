"""Labels of groups: who is in which group, in every form, and errors that read no record."""

import numpy as np
import pytest
import torch

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson
from dpfy.ledger.individual import Individual
from dpfy.records.membership import Membership
from dpfy.records.records import Records
from dpfy.records.users import UserRecords, Users

POLICY = Individual(("strict", "open"), (0.1, 0.2), (1.0, 1.0), (0.5, 0.5))
LABELS = ["open", "strict", "other", "open"]
NUMBERS = [1, 0, -1, 1]


class Unread:
    """A data set whose records must not be read."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise AssertionError("a record was read")


def numbers(group_of, size=4, **options):
    return Membership.of(group_of, POLICY, Records(Unread(size), None, 0), **options).numbers


def failing(index):
    if index == 2:
        raise SystemExit(f"record {index} stops the run")
    return LABELS[index]


@pytest.mark.parametrize(
    "group_of",
    [
        LABELS,
        tuple(LABELS),
        np.array(LABELS),
        np.array(LABELS, dtype=object),
        dict(enumerate(LABELS)),
        {0: "open", 1: "strict", 3: "open"},
        LABELS.__getitem__,
        failing,
        [1, 0, 7, 1],
        [1, 0, -1, 1],
        [1, 0, True, 1],
        [1, 0, None, 1],
        [1, 0, float("nan"), 1],
        np.array([1, 0, 2, 1], dtype=np.uint64),
        np.array([1, 0, -1, 1], dtype=np.int8),
        torch.tensor([1, 0, -2, 1]),
        lambda index: np.str_(LABELS[index]),
    ],
)
def test_every_form_of_labels_means_the_same_groups(group_of):
    """A label that is no group's, missing, or whose function fails is that of nobody."""
    assert numbers(group_of).tolist() == NUMBERS


def test_a_wrong_number_of_labels_is_refused_with_public_numbers_alone():
    with pytest.raises(
        InvalidArgument, match="3 labels do not fit the data set; the plan declares 5"
    ) as error:
        numbers(LABELS[:3], size=4, declared=5)
    assert "4" not in str(error.value)


@pytest.mark.parametrize("group_of", [[0, 1], np.array([0, 1]), lambda index: index])
def test_positions_are_refused_where_names_are_other_numbers(group_of):
    """People with the label 0 would be in the group "1", and be drawn more often than promised."""
    swapped = Individual(("1", "0"), (0.3, 0.1), (1.0, 1.0), (0.5, 0.5))
    records = Records(Unread(2), None, 0)
    with pytest.raises(InvalidArgument, match="group '1' has position 0"):
        Membership.of(group_of, swapped, records)
    assert Membership.of(["0", "1"], swapped, records).numbers.tolist() == [1, 0]


def test_a_group_that_never_occurs_is_named():
    with pytest.raises(InvalidArgument, match="No label of group_of says 'strict'"):
        numbers(["open", "Strict", "open", "open"])


@pytest.mark.parametrize(
    ("group_of", "text"),
    [
        ("open", "Got a str"),
        (3, "Got a int"),
        (np.zeros((4, 1), dtype=int), "array of int64 with 2 axes"),
        (torch.zeros(4), "array of float32"),
        (np.array(LABELS, dtype="S"), r"array of \|S6"),
    ],
)
def test_what_labels_nobody_is_refused(group_of, text):
    with pytest.raises(InvalidArgument, match=text):
        numbers(group_of)


def test_labels_and_plan_have_to_go_together():
    records = Records(Unread(4), None, 0)
    with pytest.raises(InvalidArgument, match="groups strict, open, and nothing says who"):
        Membership.of(None, POLICY, records)
    with pytest.raises(InvalidArgument, match="this one has poisson sampling of all alike"):
        Membership.of(LABELS, Poisson(0.1), records)
    assert Membership.of(None, Poisson(0.1), records) is None


def of_users(group_of, unit_of):
    records = UserRecords(Unread(5), None, 0, unit_of, 2)
    return Membership.of(group_of, POLICY, records, unit_of).numbers.tolist()


@pytest.mark.parametrize(
    "unit_of",
    [
        ["b", "a", "b", None, "c"],
        np.array(["b", "a", "b", "", "c"], dtype=object),
        lambda row: ["b", "a", "b", 1.5, "c"][row],
    ],
)
def test_users_are_labelled_by_their_ids(unit_of):
    """A mapping by id does not depend on the order in which users are numbered."""
    labels = {"a": "open", "c": "strict", "": "strict"}
    assert of_users(labels, unit_of)[-3:] == [1, -1, 0]
    assert of_users(labels.get, unit_of)[-3:] == [1, -1, 0]


def test_numbers_of_users_are_labelled_by_ids_of_any_whole_number():
    unit_of = torch.tensor([30, 10, 30, 20, 20])
    assert of_users({10: 1, 30: 0}, unit_of) == [1, -1, 0]


def test_a_sequence_of_labels_fits_users_whose_rows_are_sorted_and_no_others():
    assert of_users(["open", "strict"], Users.sorted([0, 2, 5])) == [1, 0]
    for labels in (["open"] * 3, ["open"] * 5):
        with pytest.raises(InvalidArgument, match="label each user: a function or mapping"):
            of_users(labels, [7, 8, 7, 9, 9])
    with pytest.raises(InvalidArgument, match="5 labels do not fit"):
        of_users(["open"] * 5, Users.sorted([0, 2, 5]))


def test_nothing_of_the_groups_is_printed_and_equal_groups_have_equal_digests():
    records = Records(Unread(4), None, 0)
    one, other = (Membership.of(labels, POLICY, records) for labels in (LABELS, [1, 0, 0, 1]))
    assert repr(one) == "Membership(sensitive)"
    assert one.digest() == Membership(np.array(NUMBERS, dtype=np.int32)).digest() != other.digest()
