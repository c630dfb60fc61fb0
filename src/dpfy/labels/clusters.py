"""Labels drawn again from noisy counts of clusters, which are formed by public features."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.labels.reading import Labels, class_numbers, count_of
from dpfy.labels.release import Declared, LabelRelease, Parts, StrPath
from dpfy.ledger import Ledger
from dpfy.mechanisms.one_shot import LaplaceVector
from dpfy.mechanisms.one_shot.base import UP
from dpfy.noise import SecureStream

_SAMPLE, _ROUNDS, _PART = 10_000, 15, 2000  # of the search for centres; of distances at a time


@dataclass(frozen=True)
class ClusteredLabels:
    """Noisy counts of the labels in clusters of public features, and labels drawn from them.

    Args:
        cluster_of: The cluster of each record, a function of public features.
        counts: The noisy number of labels of each class in each cluster.
        labels: A label for each record, drawn from the noisy shares of its cluster.
    """

    cluster_of: torch.Tensor
    counts: torch.Tensor
    labels: torch.Tensor

    @property
    def shares(self) -> torch.Tensor:
        """The noisy share of each class in each cluster: counts below 0 count as 0."""
        return _shares(self.counts)

    def posterior(self) -> torch.Tensor:
        """Return the noisy shares of the cluster of each record, as soft labels in float32."""
        return self.shares[self.cluster_of].float()


def by_clusters(
    x: Any,
    y: Labels,
    classes: int,
    epsilon: float,
    ledger: Ledger | StrPath,
    *,
    clusters: int = 100,
    insecure_test_key: int | bytes | None = None,
) -> ClusteredLabels:
    """Count labels in clusters of public features, with noise, and draw labels from the counts.

    *Formal guarantee*: Laplace noise of scale 2/ε on all counts; ε-differentially private for
    replacing one label, which moves two counts by 1 each. Drawn labels are post-processing.

    *Assumes* that features, their order and the number of records are public.

    Args:
        x: The public features: a tensor or an array, one row for each record.
        y: The private labels, as class numbers from 0; what is no class counts as class 0.
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.
        ledger: The path of a ledger, or an open one; counts and labels are saved beside it.
        clusters: The number of clusters, at least 1.
        insecure_test_key: A key that makes the draw reproducible, and the labels not private.

    Returns:
        The clusters, their noisy counts, and the labels.

    Raises:
        InvalidArgument: If an argument is out of its range.
        LedgerMismatch: If the ledger was begun for something else.
        BudgetExhausted: If the counts were drawn before, and are lost.

    Reference: Esfandiari, Mirrokni, Syed & Vassilvitskii 2022;
    ``docs/proofs/labels.md``, Lemma 4.

    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> with Ledger.in_memory() as ledger:
    ...     found = by_clusters(x, [0, 0, 1, 1], 2, 60.0, ledger, clusters=2)
    >>> found.labels
    tensor([0, 0, 1, 1])
    """
    records = count_of(y)
    features = torch.as_tensor(x)
    if len(features) != records:
        raise InvalidArgument(
            f"Expected features and labels of the same records, got {len(features)} and {records}."
        )
    _validate.count("clusters", clusters)
    # A label adds 1 to one count; another one that takes its place moves two.
    mechanism = LaplaceVector(1.0, 2 / _validate.epsilon(epsilon) * UP, "label counts")
    parameters = {"clusters": clusters}
    declared = Declared("by_clusters", classes, epsilon, records, mechanism.event, parameters)

    def draw(stream: SecureStream) -> Parts:
        cells = cluster_of.numpy() * classes + class_numbers(y, classes)
        exact = np.bincount(cells, minlength=clusters * classes).reshape(clusters, classes)
        counts = mechanism.release(torch.from_numpy(exact), stream)
        drawn = _drawn(_shares(counts)[cluster_of], stream)
        return {"cluster_of": cluster_of, "counts": counts, "labels": drawn}

    with LabelRelease(declared, ledger, insecure_test_key) as release:
        cluster_of = nearest_centres(features, clusters)  # before anything is spent
        return ClusteredLabels(**release.once(0, draw))


def nearest_centres(x: torch.Tensor, clusters: int) -> torch.Tensor:
    """Return the cluster of each row, by k-means of public features.

    Centres are found on at most 10,000 rows that are evenly spaced, from a first choice by public
    chance. Nothing here is private, and nothing is protected.

    Args:
        x: The features, one row for each record.
        clusters: The number of clusters; some stay empty if there are fewer rows.

    Returns:
        The number of the nearest centre for each row.

    >>> nearest_centres(torch.tensor([[0.0], [0.1], [5.0]]), 2).unique(return_counts=True)[1]
    tensor([2, 1])
    """
    rows = x.detach().flatten(1).float() if x.ndim > 1 else x.detach().float()[:, None]
    if not len(rows):
        return torch.zeros(0, dtype=torch.int64)
    sample = rows[:: max(1, math.ceil(len(rows) / _SAMPLE))]
    centres = _spread(sample, min(clusters, len(sample)))
    for _ in range(_ROUNDS):
        near = _nearest(sample, centres)
        sizes = torch.bincount(near, minlength=len(centres))[:, None]
        sums = torch.zeros_like(centres).index_add_(0, near, sample)
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    return _nearest(rows, centres)


def _spread(sample: torch.Tensor, clusters: int) -> torch.Tensor:
    """Choose first centres far apart, each by public chance in proportion to squared distance."""
    chance = torch.Generator().manual_seed(0)
    chosen = [sample[0]]
    distance = (sample - chosen[0]).square().sum(1)
    for _ in range(clusters - 1):
        weights = distance if float(distance.sum()) > 0 else torch.ones_like(distance)
        chosen.append(sample[int(torch.multinomial(weights, 1, generator=chance))])
        distance = torch.minimum(distance, (sample - chosen[-1]).square().sum(1))
    return torch.stack(chosen)


def _nearest(rows: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.cdist(part, centres).argmin(1) for part in rows.split(_PART)])


def _shares(counts: torch.Tensor) -> torch.Tensor:
    """Return counts as distributions; a cluster without any positive count knows nothing."""
    positive = counts.clamp(min=0)
    totals = positive.sum(1, keepdim=True)
    return torch.where(totals > 0, positive / totals.clamp(min=1e-300), 1 / counts.shape[1])


def _drawn(shares: torch.Tensor, stream: SecureStream) -> torch.Tensor:
    """Draw a label for each row of shares; shares are released, so that rounding is harmless."""
    uniform = torch.from_numpy(stream.words(len(shares)).astype(np.float64) / 2.0**64)
    below = shares.cumsum(1) < uniform[:, None]
    return below.sum(1).clamp(max=shares.shape[1] - 1)
