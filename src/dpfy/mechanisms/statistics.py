"""Compute statistics: what each record adds, bounded record by record."""

import math
from collections.abc import Mapping, Sequence

import torch

from dpfy.errors import InvalidArgument
from dpfy.mechanisms.query import (
    Contributing,
    NormOfSum,
    Query,
    RecordNormsBelow,
    SampleSize,
    Statistic,
    SumOfRecordNorms,
)

ROUNDING = 2.0**-15
"""The most that adding a record moves another record's row of a statistic, in bounds.

Proof: docs/proofs/queries.md.
"""
_FINITE = (56, 60)  # norms of at most 2^56 count as finite, from 2^60 on they do not
# The width over which a record comes to count, relative to a threshold or to the largest score.
_RAMP = 2.0**-3


def bounded_sum(
    statistic: Statistic,
    stats: Mapping[str, torch.Tensor],
    norms: torch.Tensor,
    leaves: Sequence[str],
    unit: float,
) -> torch.Tensor:
    """Return Σ clip(row) / unit over the records of a chunk, as a flat float64 tensor.

    ``norms`` are the squared norms [records, leaves] of the gradients. *Formal guarantee*: one
    record's row has an ℓ2 norm of at most bound / unit. A row that is not finite, is missing or has
    another shape than was declared adds nothing.
    """
    rows = _rows(statistic, stats, norms, leaves)
    if rows is None or rows[0].numel() != statistic.size:
        return torch.zeros(statistic.size, dtype=torch.float64, device=norms.device)
    rows = rows.reshape(len(rows), -1).double()
    weights = (
        (statistic.bound / torch.linalg.vector_norm(rows, dim=1))
        .clamp_(max=1.0)
        .nan_to_num_(nan=0.0)
    )
    return weights @ rows.nan_to_num(0.0, 0.0, 0.0) / unit  # of weight zero, and 0·inf is NaN


def shared_rounding(query: Query, step: int, gradients: float) -> float:
    """Return the most that adding a record moves the contribution of another one in a step.

    It is in units of the query's joint sensitivity. ``gradients`` is the most that the other
    record's gradient moves, in clip bounds; its statistics move by ``ROUNDING`` bounds, and its
    part of the count of those that contribute by 2⁻²⁰.
    """
    due, sensitivity = query.due(step), query.joint_sensitivity(step)
    if not due:
        return gradients
    of_gradients = sensitivity**2 - math.fsum(each.share for each in due)
    return (
        math.hypot(
            gradients * math.sqrt(of_gradients),
            *(_rounding(each) * math.sqrt(each.share) for each in due),
        )
        / sensitivity
    )


def _rounding(statistic: Statistic) -> float:
    """Return the most that adding a record moves another's row of this statistic, in bounds."""
    return 2.0**-20 if isinstance(statistic, Contributing) else ROUNDING


def soft_accuracy(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return 1 for each record whose own class has the largest score, 0 for others, smoothly.

    A record counts in part, and a tie as one half, if its two best classes are within a sixteenth
    of the largest absolute score.

    *Formal guarantee*: if the scores of a record move by less than 15·2⁻²³ of the largest, as
    rounding error does when other records join its batch, the result moves by less than 2⁻¹⁵, which
    is what the noise is scaled for; ``scores.argmax(1) == labels`` may move by 1.

    *Assumes*: scores in float32 or better.

    Args:
        scores: The scores [records, classes] of two classes or more.
        labels: The number of the true class of each record; a label that is no class is wrong.

    Returns:
        A float64 tensor [records] of numbers from 0 to 1.

    Raises:
        InvalidArgument: If the shapes do not fit.

    >>> scores = torch.tensor([[4.0, 1.0], [1.0, 4.0], [4.0, 3.9], [2.0, 2.0]])
    >>> soft_accuracy(scores, torch.tensor([0, 0, 0, 1]))
    tensor([1.0000, 0.0000, 0.7000, 0.5000], dtype=torch.float64)

    Proof: docs/proofs/queries.md.
    """
    if scores.ndim != labels.ndim + 1 or scores.shape[-1] < 2:
        raise InvalidArgument(
            "Expected scores of two classes or more in the last dimension and a label for each "
            f"row, got shapes {tuple(scores.shape)} and {tuple(labels.shape)}."
        )
    values = scores.detach().double()
    own = torch.arange(scores.shape[-1], device=scores.device) == labels.unsqueeze(-1)
    best, other = torch.where(own, values, -math.inf), torch.where(own, -math.inf, values)
    lead = best.amax(-1) - other.amax(-1)
    width = _RAMP * torch.linalg.vector_norm(values, math.inf, dim=-1).clamp(
        min=torch.finfo(torch.float64).tiny
    )
    return (0.5 + lead / width).clamp(0, 1)


def _rows(
    statistic: Statistic,
    stats: Mapping[str, torch.Tensor],
    norms: torch.Tensor,
    leaves: Sequence[str],
) -> torch.Tensor | None:
    """Return the rows of a statistic, or None if records have none."""
    match statistic:
        case SampleSize():
            return torch.ones(len(norms), dtype=torch.float64, device=norms.device)
        case Contributing():
            return _finite(norms)
        case RecordNormsBelow():
            # A NaN is not below anything.
            compared = _compared(norms, leaves, statistic.of).nan_to_num(nan=math.inf)
            limits = torch.tensor(statistic.thresholds, dtype=norms.dtype, device=norms.device)
            return ((1 - compared / limits) / _RAMP).clamp_(-0.5, 0.5)
        case NormOfSum():
            return None  # of no single record: it is filled in once the sum is complete
        case SumOfRecordNorms():
            limits = torch.tensor(statistic.limits, dtype=norms.dtype, device=norms.device)
            compared = _compared(norms, leaves, statistic.of)
            return torch.where(compared.isfinite(), (compared / limits).clamp(max=1.0), 0.0)
    return stats.get(statistic.name)


def _finite(norms: torch.Tensor) -> torch.Tensor:
    """Return 1 for each record whose gradients all have finite norms, 0 for others, smoothly."""
    low, high = _FINITE
    largest = norms.nan_to_num(nan=math.inf).amax(1)
    return ((high - largest.log2() / 2) / (high - low)).clamp(0.0, 1.0)


def _compared(norms: torch.Tensor, leaves: Sequence[str], of: Sequence[str]) -> torch.Tensor:
    """Return the norms of the named clipped sums; of the first one if none is named."""
    return (norms[:, [leaves.index(name) for name in of]] if of else norms[:, :1]).sqrt()
