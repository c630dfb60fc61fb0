"""Findings for the owner of the data: records that would contribute nothing, and why.

These are private facts.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dpfy.errors import DataError
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import per_example
from dpfy.records.example import declared_example
from dpfy.records.records import Records
from dpfy.records.rows import shape_of


@dataclass(frozen=True)
class Finding:
    """A problem of one record. Sensitive.

    Args:
        index: The index of the record in the data set.
        problem: What is wrong with it.
    """

    index: int
    problem: str


def inspect_records(
    data: Any,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    example_input: Any = None,
    loss_fn: Callable[..., Any] | None = None,
) -> Iterator[Finding]:
    """Yield the records that a run would silently leave out or that look unlike the others.

    The findings are facts about single records: show them to the owner of the data only.

    Args:
        data: A map-style data set.
        collate_fn: The collate function of the run, or None for torch's default.
        example_input: A collated batch of synthetic examples that records are compared with; by
            default
            what the data set declares, and where nothing is declared, the other records.
        loss_fn: The loss of the run, a function of the fields of collated records, which is
            computed for each record: of a label out of range it raises. Default: None.

    Yields:
        The findings, in the order of the records.

    >>> data = [torch.ones(2), torch.tensor([1.0, float("nan")])]
    >>> [finding.index for finding in inspect_records(data)]
    [1]
    """
    records, declared = (
        Records(data, collate_fn, num_workers=0),
        _declared(data, collate_fn, example_input),
    )
    shapes: dict[int, Any] = {}
    for index in range(len(records)):
        try:
            record = data[index]
        except Exception as error:
            yield Finding(index, f"cannot be loaded ({type(error).__name__}: {error})")
            continue
        shapes[index] = shape_of(record)
        chunk = records.alone(index)
        if chunk is None:
            yield Finding(index, "cannot be collated into a batch of one")
        elif declared is not None and not chunk.fits(declared):
            yield Finding(
                index,
                f"does not fit the declared example: it has {_shapes(chunk)}, and the largest "
                f"shape declared is {_shapes(declared)}",
            )
        elif not _is_finite(chunk):
            yield Finding(index, "holds NaN or infinite values")
        elif loss_fn is not None and (problem := _problem_of_loss(loss_fn, chunk)):
            yield Finding(index, problem)
    if declared is not None:
        return
    common = Counter(shapes.values()).most_common(1)
    for index, shape in shapes.items():
        if shape != common[0][0]:
            yield Finding(index, f"has the shape {shape}, most others {common[0][0]}")


def _problem_of_loss(loss_fn: Callable[..., Any], chunk: Chunk) -> str:
    """Return what is wrong with the loss of one record, or nothing."""
    try:
        with torch.no_grad():
            loss = per_example(loss_fn(*chunk.arguments), 1)
    except Exception as error:
        return f"has no loss ({type(error).__name__}: {' '.join(str(error).split())})"
    return "" if bool(loss.isfinite().all()) else "has a loss that is NaN or infinite"


def _declared(
    data: Any, collate_fn: Callable[[list[Any]], Any] | None, example_input: Any
) -> Chunk | None:
    try:
        return declared_example(data, collate_fn, example_input).chunk
    except DataError:
        return None


def _shapes(chunk: Chunk) -> str:
    return ", ".join(
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape[1:])}"
        if isinstance(leaf, torch.Tensor)
        else "text or numbers"
        for leaf in chunk.leaves()
    )


def _is_finite(chunk: Chunk) -> bool:
    return all(
        bool(leaf.isfinite().all()) for leaf in chunk.leaves() if isinstance(leaf, torch.Tensor)
    )
