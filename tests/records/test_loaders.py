"""A loader is taken for the policy whose law it has, or refused with the reason."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dpfy.errors import DataError
from dpfy.ledger.events import Cyclic, Shuffled
from dpfy.records.loaders import policy_of_loader

RECORDS = 7919
DATA, SMALLER, EMPTY = (TensorDataset(torch.zeros(n, 2)) for n in (RECORDS, 100, 0))


@pytest.mark.parametrize(
    "loader, policy",
    [
        (DataLoader(DATA, batch_size=64, shuffle=True), Shuffled(64, RECORDS)),
        (DataLoader(DATA, batch_size=64), Cyclic(64, RECORDS)),
        (DataLoader(DATA, batch_size=64, sampler=RandomSampler(DATA)), Shuffled(64, RECORDS)),
        (
            DataLoader(DATA, batch_size=64, sampler=RandomSampler(DATA, num_samples=RECORDS)),
            Shuffled(64, RECORDS),
        ),
        (
            DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 64, False)),
            Cyclic(64, RECORDS),
        ),
        (DataLoader(SMALLER, batch_size=20, shuffle=True, drop_last=True), Shuffled(20, 100)),
        (DataLoader(SMALLER, batch_size=200, shuffle=True), Shuffled(100, 100)),
        (DataLoader(DATA), Cyclic(1, RECORDS)),
    ],
)
def test_laws_that_are_known(loader, policy):
    assert policy_of_loader(loader) == policy


class Backwards(SequentialSampler):
    def __iter__(self):
        return iter(range(len(self.data_source) - 1, -1, -1))


class Own(Sampler):
    def __iter__(self):
        return iter([0, 0, 0])

    def __len__(self):
        return 3


class OwnBatches(BatchSampler):
    pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    "loader, reason",
    [
        (
            lambda: DataLoader(DATA, 64, sampler=RandomSampler(DATA, replacement=True)),
            "several times.*FixedSize",
        ),
        (
            lambda: DataLoader(DATA, 64, sampler=RandomSampler(DATA, num_samples=100)),
            "once through.*num_samples",
        ),
        (
            lambda: DataLoader(DATA, 64, sampler=RandomSampler(DATA, num_samples=2 * RECORDS)),
            "once through",
        ),
        (lambda: DataLoader(DATA, 64, sampler=RandomSampler(SMALLER)), "same data set"),
        (lambda: DataLoader(DATA, 64, shuffle=True, drop_last=True), "drop_last=True.*divides"),
        (lambda: DataLoader(DATA, 64, drop_last=True), "drop_last=True"),
        (
            lambda: DataLoader(
                DATA, 64, sampler=WeightedRandomSampler(torch.ones(RECORDS), RECORDS)
            ),
            "weights",
        ),
        (lambda: DataLoader(DATA, 64, sampler=SubsetRandomSampler(range(50))), "Subset"),
        (lambda: DataLoader(DATA, 64, sampler=DistributedSampler(DATA, 2, 0)), "processes"),
        (lambda: DataLoader(DATA, 64, sampler=Backwards(DATA)), "Backwards.*not known"),
        (lambda: DataLoader(DATA, 64, sampler=Own()), "Own.*not known"),
        (lambda: DataLoader(DATA, 64, sampler=list(range(RECORDS))), "list.*not known"),
        (
            lambda: DataLoader(DATA, batch_sampler=OwnBatches(SequentialSampler(DATA), 64, False)),
            "OwnBatches.*not known",
        ),
        (lambda: DataLoader(DATA, batch_sampler=[[0, 1], [0, 2]]), "list.*not known"),
        (lambda: DataLoader(DATA, batch_size=None), "Give it a batch_size"),
        (lambda: DataLoader(Stream(), 4), "IterableDataset"),
        (lambda: DataLoader(EMPTY, 4), "empty"),
        (lambda: DATA, "Expected a DataLoader, got TensorDataset"),
    ],
)
def test_other_laws_are_refused_with_the_reason(loader, reason):
    with pytest.raises(DataError, match=reason) as caught:
        policy_of_loader(loader())
    assert str(RECORDS) not in str(caught.value)


def test_the_loader_is_not_iterated():
    class Precious(TensorDataset):
        def __getitem__(self, index):
            raise AssertionError("a record was read")

    generator = torch.Generator()
    before = generator.get_state()
    policy_of_loader(DataLoader(Precious(torch.zeros(5, 1)), 2, shuffle=True, generator=generator))
    assert bool((generator.get_state() == before).all())
