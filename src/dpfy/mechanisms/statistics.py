"""The rows of statistics: what each record adds, bounded one by one."""

from collections.abc import Mapping, Sequence

import torch

from dpfy.mechanisms.clipping import clip_to, lattice_sum, squared_norms
from dpfy.mechanisms.query import NormsBelow, SampleSize, Statistic


def bounded_sum(statistic: Statistic, stats: Mapping[str, torch.Tensor], norms: torch.Tensor, leaves: Sequence[str],
                unit: float, grid: float) -> torch.Tensor:
    """Return Σ clip(row) / unit over the records of a chunk, on the lattice, as a flat float64 tensor.

    ``norms`` are the squared norms [records, leaves] of the gradients. *Formal guarantee*: one record moves the sum by
    at most bound / unit in ℓ2 norm, and half a step of the lattice per coordinate. A row that is not finite, is missing
    or has another shape than was declared adds nothing.
    """
    rows = _rows(statistic, stats, norms, leaves)
    if rows is None or rows[0].numel() != statistic.size:
        return torch.zeros(statistic.size, dtype=torch.float64, device=norms.device)
    rows = rows.detach().reshape(len(rows), -1).double()
    weights = clip_to(statistic.bound)(squared_norms(rows).unsqueeze(1)).squeeze(1) / unit
    return lattice_sum(rows, weights, grid)


def _rows(statistic: Statistic, stats: Mapping[str, torch.Tensor], norms: torch.Tensor,
          leaves: Sequence[str]) -> torch.Tensor | None:
    match statistic:
        case SampleSize():
            return torch.ones(len(norms), dtype=torch.float64, device=norms.device)
        case NormsBelow():
            of = statistic.of or (leaves[0],) * len(statistic.thresholds)
            compared = norms[:, [leaves.index(name) for name in of]].sqrt()
            limits = torch.tensor(statistic.thresholds, dtype=norms.dtype, device=norms.device)
            return (compared <= limits).double() - 0.5  # a NaN is not below anything
    return stats.get(statistic.name)
