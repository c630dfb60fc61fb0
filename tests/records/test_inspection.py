"""The owner's tool names bad records; it is the only place that does."""

import torch

from dpfy.records.inspection import inspect_records


class Faulty(list):
    def __getitem__(self, index):
        if index == 2:
            raise ValueError("row 2 is malformed")
        return super().__getitem__(index)


def test_every_kind_of_bad_record_is_named():
    records = Faulty(
        [torch.ones(3), torch.full((3,), float("inf")), torch.ones(3), torch.ones(4), torch.ones(3)]
    )
    found = {finding.index: finding.problem for finding in inspect_records(records)}
    assert sorted(found) == [1, 2, 3]
    assert "infinite" in found[1] and "row 2 is malformed" in found[2] and "shape" in found[3]


def test_records_that_cannot_be_collated_are_named():
    problems = [finding.problem for finding in inspect_records([torch.ones(1), object()])]
    assert any("collated" in problem for problem in problems)


def test_good_data_has_no_findings():
    assert not list(inspect_records([torch.ones(3)] * 4)) and not list(inspect_records([]))
