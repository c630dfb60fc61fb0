"""The sampling policy, if any, whose distribution a ``DataLoader`` has."""

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from dpfy.errors import DataError
from dpfy.ledger.events import Cyclic, Policy, Shuffled

_REFUSED: dict[type, str] = {
    WeightedRandomSampler: "draws some records more often than others, so that no one rate holds "
    "for all of them. Drop the weights, or put them into the loss",
    SubsetRandomSampler: "leaves records out that the data set has. Pass torch.utils.data.Subset "
    "as the data set",
    DistributedSampler: "shows each process another part of the records. Drop it: a distributed "
    "run draws one sample for all processes and shards it by itself",
}


def policy_of_loader(loader: Any) -> Policy:
    """Return the policy that describes the batches of a loader, so that a run can draw them.

    *Formal guarantee*: a loader is accepted only if its samplers are torch's own and its batches
    are shuffled epochs or epochs in a fixed order, of all records. The loader is never iterated:
    its generator is no source of secret randomness.

    *Assumes* that the number of records is public, since the policy states it. Neither policy
    rewards sampling; Poisson samples of the same size cost far less.

    Args:
        loader: A ``DataLoader``.

    Returns:
        The policy.

    Raises:
        DataError: The loader has another sampler, or its batches are not of all records.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.zeros(10, 2))
    >>> policy_of_loader(DataLoader(data, batch_size=4, shuffle=True))
    Shuffled(batch_size=4, records=10)
    """
    if not isinstance(loader, DataLoader):
        raise DataError(f"Expected a DataLoader, got {type(loader).__name__}.")
    if isinstance(loader.dataset, IterableDataset):
        raise DataError(
            "An IterableDataset decides itself what comes next, so its batches follow no known "
            "law. Give the data set __len__ and __getitem__."
        )
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        what = (
            "it hands out items of the data set as they are. Give it a batch_size"
            if batches is None
            else f"the law of a {type(batches).__name__} is not known. Give it a batch_size "
            "instead of a batch_sampler"
        )
        raise _refusal(what)
    policy = _policy_of_sampler(batches.sampler)
    records = len(loader.dataset)  # type: ignore[arg-type]
    if records == 0:
        raise DataError("The data set of this DataLoader is empty.")
    if _sampled(batches.sampler) != (records, records):
        raise _refusal(
            "its sampler does not run once through the records of its data set. Make the sampler "
            "of the same data set, without num_samples"
        )
    if batches.drop_last and records % batches.batch_size:
        raise _refusal(
            "drop_last=True leaves records out of every epoch. Use drop_last=False, or a "
            "batch_size that divides the number of records"
        )
    return policy(min(batches.batch_size, records), records)


def taken_from(
    loader: DataLoader[Any], planned: Policy, collate_fn: Any, num_workers: int
) -> tuple[Any, Any, int]:
    """Return data set, collate function and number of workers of a loader of the planned policy."""
    policy = policy_of_loader(loader)
    if policy != planned:
        raise DataError(
            f"This DataLoader has the law of {policy}, and the plan draws by {planned}. Make the "
            f"plan with sampling={policy.tag!r} and the loader's batch_size, or pass "
            "loader.dataset."
        )
    own = None if loader.collate_fn is default_collate else loader.collate_fn
    return loader.dataset, collate_fn or own, num_workers or loader.num_workers


def _policy_of_sampler(sampler: Any) -> type[Shuffled] | type[Cyclic]:
    """Return the policy of a sampler of torch's own; subclasses may do anything."""
    if type(sampler) is SequentialSampler:
        return Cyclic
    if type(sampler) is RandomSampler:
        if sampler.replacement:
            raise _refusal(
                "a RandomSampler with replacement may draw a record several times into one batch, "
                "for which no rule is known. Use replacement=False, or sample by FixedSize or "
                "Poisson"
            )
        return Shuffled
    reason = _REFUSED.get(
        type(sampler), "has a law that is not known. Use shuffle=True or shuffle=False"
    )
    raise _refusal(f"a {type(sampler).__name__} {reason}")


def _sampled(sampler: Any) -> tuple[int, int]:
    """Return how many indices an epoch has, and from how many records."""
    return len(sampler), len(sampler.data_source)


def _refusal(reason: str) -> DataError:
    return DataError(
        f"This DataLoader cannot be accounted: {reason}; or pass its data set alone, from which "
        "the run then draws Poisson samples."
    )
