"""data[i] depends on record i alone, as far as that can be seen."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import dpfy
from dpfy.checks.mixing import check_data_set

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(3))


class Plain(Dataset):
    """Rows that are what they are."""

    example_input = torch.zeros(1, 3)

    def __init__(self, rows=ROWS):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Augmented(Plain):
    def __getitem__(self, index):
        return self.rows[index] * (1 + torch.rand(1) + np.random.rand() + random.random())


class SeededByIndex(Plain):
    """Known, and the same at every step, but nobody else's business."""

    def __getitem__(self, index):
        torch.manual_seed(index)
        return self.rows[index] + torch.randn(3)


class Entropy(Plain):
    def __getitem__(self, index):
        return self.rows[index] + torch.from_numpy(np.random.default_rng().normal(size=3)).float()


class Cached(Plain):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def __getitem__(self, index):
        return self.kept.setdefault(index, self.rows[index] * 2)


class Windows(Plain):
    """A record is four rows of a longer tensor."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return self.rows[4 * index : 4 * index + 4].mean(0)


class Mixup(Plain):
    def __getitem__(self, index):
        return (self.rows[index] + self.rows[random.randrange(len(self))]) / 2


class MixupOfItems(Plain):
    def __init__(self, depth=0):
        super().__init__()
        self.depth = depth

    def __getitem__(self, index):
        if self.depth:
            return self.rows[index]
        self.depth = 1
        try:
            return self.rows[index] * 0.5 + self[random.randrange(len(self))]
        finally:
            self.depth = 0


class MixupOfWrapped(Plain):
    def __init__(self):
        self.inner = Subset(TensorDataset(ROWS), range(40))

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.inner[index][0] + self.inner[(index + 1) % 40][0]


class Standardised(Plain):
    def __getitem__(self, index):
        return self.rows[index] - self.rows.mean(0)


class OwnGenerator(Plain):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index):
        return self.rows[index] + torch.randn(3, generator=self.generator)


class OwnNumpy(OwnGenerator):
    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index):
        return self.rows[index] + float(self.generator.normal())


GLOBAL = random.Random(0)


class GlobalGenerator(Plain):
    def __getitem__(self, index):
        return self.rows[index] + GLOBAL.random()


class Running(Plain):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(3)

    def __getitem__(self, index):
        self.mean = 0.9 * self.mean + 0.1 * self.rows[index]
        return self.rows[index] - self.mean


FINE = [Plain, Augmented, SeededByIndex, Entropy, Cached, Windows]
READING = [Mixup, MixupOfItems, MixupOfWrapped, Standardised]
CHANGING = [OwnGenerator, OwnNumpy, GlobalGenerator, Running]


@pytest.mark.parametrize("kind", FINE)
def test_data_sets_that_treat_records_alone_pass(started, kind):
    before = torch.get_rng_state(), random.getstate()
    check_data_set(kind())
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert started(kind(), engine="loop").release().any()


@pytest.mark.parametrize(
    ("kind", "says"),
    [(kind, "reads other records") for kind in READING]
    + [(kind, "asked again") for kind in CHANGING],
)
def test_data_sets_that_mix_are_refused_by_the_owner_and_in_a_run(started, kind, says):
    with pytest.raises(dpfy.DataError, match=says):
        check_data_set(kind())
    s = started(kind(), engine="loop")
    with pytest.raises(dpfy.DataError, match=says):
        s.release()
    assert s.ledger.count == 1  # records were read


def test_workers_look_if_they_load(started):
    with pytest.raises(dpfy.DataError, match="reads other records"):
        started(Mixup(), num_workers=1).release()


class Few(Plain):
    """Some records read others."""

    def __init__(self, mixing, rows=ROWS):
        super().__init__(rows)
        self.mixing = mixing

    def __getitem__(self, index):
        return self.rows[index] + (self.rows[index - 1] if index in self.mixing else 0)


@pytest.mark.parametrize(
    ("mixing", "rows", "refused"),
    [
        ({0, 39}, 40, False),
        ({0, 1}, 2, False),
        ({0, 1, 2}, 3, True),
        ({0, 1, 2}, 8, False),
        (set(range(20)), 40, True),
    ],
)
def test_one_record_cannot_stop_a_run_for_mixing(started, mixing, rows, refused):
    """Three witnesses are needed, and half of those that load; the owner is told of one."""
    data = Few(mixing, ROWS[:rows])
    with pytest.raises(dpfy.DataError, match="reads other"):
        check_data_set(data)
    if refused:
        with pytest.raises(dpfy.DataError, match="reads other"):
            started(data).release()
    else:
        assert started(data).release().any()


class Deadly(Plain):
    def __getitem__(self, index):
        if index == 0:
            import os

            os._exit(1)
        return self.rows[index]


def test_a_record_that_ends_its_process_does_not_end_the_check(started):
    check_data_set(Deadly())
    assert started(Deadly(), num_workers=1).release().any()


def test_the_class_of_a_data_set_is_as_it_was():
    before = vars(TensorDataset)["__getitem__"]
    check_data_set(MixupOfWrapped.__mro__[1]())
    assert vars(TensorDataset)["__getitem__"] is before and "__getitem__" in vars(Plain)


class Stored(torch.utils.data.Dataset):
    """Keeps records as a list, an array or a tensor, and mixes each with its neighbour or not."""

    def __init__(self, kind, mixes):
        rows = torch.arange(24.0).reshape(8, 3)
        self.kind, self.mixes = kind, mixes
        self.rows = {"list": [*rows], "array": rows.numpy(), "select": rows}[kind]

    def __len__(self):
        return len(self.rows)

    def row(self, index):
        if self.kind == "select":
            return self.rows.index_select(0, torch.tensor([index]))[0]
        return torch.as_tensor(self.rows[index])

    def __getitem__(self, index):
        return self.row(index) + (self.row((index + 1) % len(self)) if self.mixes else 0)


@pytest.mark.parametrize("kind", ["list", "array", "select"])
def test_other_records_in_lists_arrays_and_by_functions_of_torch_are_noticed(kind):
    """They were read unseen: mixup of a list or by index_select moved the sum by 3.5 bounds."""
    honest = Stored(kind, mixes=False)
    dpfy.check_data_set(honest)
    assert (
        type(honest.rows) in (list, torch.Tensor) or type(honest.rows).__name__ == "ndarray"
    )  # as it was
    with pytest.raises(dpfy.DataError, match="reads other records"):
        dpfy.check_data_set(Stored(kind, mixes=True))


class Fetching(Plain):
    """Several records are loaded at once, each as it is alone."""

    def __init__(self, rows=ROWS):
        super().__init__(rows)
        self.calls = []

    def __getitems__(self, indices):
        self.calls.append(len(indices))
        return [self.given(index, indices) for index in indices]

    def given(self, index, indices):
        return self.rows[index]


class Padded(Fetching):
    """Records are cut where their zeros begin, and padded to the longest of those that come along;
    only the first one is shorter.
    """

    def __getitem__(self, index):
        return self.rows[index][: 2 if index == 0 else 3]

    def given(self, index, indices):
        return self.rows[index] * torch.tensor([1, 1, index != 0])


class Centred(Fetching):
    def given(self, index, indices):
        return self.rows[index] - self.rows[list(indices)].mean(0)


class InOrder(Fetching):
    def __getitems__(self, indices):
        return super().__getitems__(sorted(indices))


@pytest.mark.parametrize("kind", [Padded, Centred, InOrder])
@pytest.mark.parametrize("workers", [0, 1])
def test_records_that_differ_in_company_are_loaded_alone(started, kind, workers):
    """One record is enough, and does not show: the release is that of the records alone."""

    class Alone(kind):
        __getitems__ = None

    data = kind()
    release = started(data, num_workers=workers).release()
    assert torch.equal(release, started(Alone()).release())
    assert data.calls == ([] if workers else [16])  # the check alone
    with pytest.raises(dpfy.DataError, match="__getitems__"):
        check_data_set(data)


def test_records_that_are_the_same_in_company_are_loaded_together(started):
    data = Fetching()
    check_data_set(data)
    assert torch.equal(started(data).release(), started(Plain()).release())
    assert data.calls[:2] == [16, 16] and sum(data.calls[2:]) == 40  # after two checks, all records
