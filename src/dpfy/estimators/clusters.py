"""Bounded statistics of clusters, and how centres are placed and moved by their noisy sums."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans as PublicKMeans

from dpfy.estimators.binning import Positions, cell_counts
from dpfy.estimators.declarations import Floats
from dpfy.estimators.fitting import summed

COUNT, LENGTH = 0.5, 0.5
"""The weights of counts and of distances, beside vectors of norm at most 1."""

_REACH = 1.5  # the radius, in mean distances of rows from their centres
_SPREAD = 0.8  # centres spread less than rows do
_GAIN = 0.2  # the part of a cluster's inertia that splitting it in two is trusted to save
_SAMPLE = 2000


def cluster_bound() -> float:
    """Return the largest ℓ2 norm of what one row adds to :func:`cluster_sums`."""
    return math.sqrt(1 + COUNT**2 + LENGTH**2)


def nearest(x: Floats, centres: Floats) -> Positions:
    """Return the number of the nearest centre of each row.

    Squares are added column by column, each operation rounded by itself: what is computed for a row
    then does not depend on other rows even in its last bit, which could decide between two centres.
    """
    distances = np.zeros((len(centres), len(x)))
    for row, centre in zip(distances, centres, strict=True):
        for column, place in zip(x.T, centre, strict=True):
            row += (column - place) ** 2
    return distances.argmin(axis=0)


def cluster_sums(x: Floats, weights: Floats, centres: Floats, radius: float) -> Floats:
    """Return sums over the rows of each cluster: of their shift from the centre, 1, and distance.

    Shifts are in units of ``radius``, and scaled down to a norm of at most 1; counts and distances
    are multiplied by :data:`COUNT` and :data:`LENGTH`. A row is in one cluster, and adds a vector
    of norm at most :func:`cluster_bound`.

    Args:
        x: The rows.
        weights: 1 for each row that counts, else 0.
        centres: The centres.
        radius: The distance beyond which a row counts as if it were nearer, above 0.

    Returns:
        One row for each cluster, with as many numbers as there are columns, and two.
    """

    def block(rows: Floats, counted: Floats) -> Floats:
        cells = nearest(rows, centres)
        shifts = (rows - centres[cells]) / radius
        lengths = np.sqrt(np.einsum("ij,ij->i", shifts, shifts))
        shifts /= np.maximum(lengths, 1.0)[:, None]
        parts = [*shifts.T, np.full(len(rows), COUNT), LENGTH * np.minimum(lengths, 1.0)]
        return np.stack(
            [np.bincount(cells, part * counted, minlength=len(centres)) for part in parts], axis=1
        )

    total: Floats = summed(block, x, weights)
    return total


@dataclass(frozen=True, eq=False)
class Clusters:
    """Centres, the radius within which rows are summed, and the half-widths of their box.

    Args:
        centres: The centres, inside of a box around the origin.
        radius: The radius, above 0.
        half: Half of the width of the box in each column.
    """

    centres: Floats
    radius: float
    half: Floats

    def moved(self, noisy: Floats, noise: float, rearrange: bool, random: Any) -> "Clusters":
        """Return the clusters after one iteration.

        Args:
            noisy: The :func:`cluster_sums` with noise.
            noise: The standard deviation of the noise.
            rearrange: Whether two clusters may be merged and another split.
            random: A public random generator.

        Returns:
            Centres at the noisy means of their rows, and a radius in proportion to the distances.
        """
        counts = np.maximum(noisy[:, -2] / COUNT, 0.0)
        floored = counts + noise
        shifts = noisy[:, :-2] / floored[:, None]
        shifts /= np.maximum(np.linalg.norm(shifts, axis=1), 1.0)[:, None]
        centres = np.clip(self.centres + self.radius * shifts, -self.half, self.half)
        lengths = np.maximum(noisy[:, -1] / LENGTH, 0.0)
        distances = self.radius * np.minimum(lengths / floored, 1.0)
        if rearrange and len(centres) > 2:
            centres = _rearranged(centres, counts, distances, random)
        mean = lengths.sum() / max(float(counts.sum()), noise)
        radius = float(np.clip(_REACH * mean, 0.02, 2.0)) * self.radius
        box = float(np.linalg.norm(self.half))
        return Clusters(centres, min(max(radius, 1e-6 * box), box), self.half)


def public_radius(half: Floats, clusters: int) -> float:
    """Return a radius that depends on the box and the number of clusters alone."""
    return float(np.linalg.norm(half)) * clusters ** (-1 / len(half))


def packed(mean: Floats, spread: Floats, clusters: int, half: Floats, random: Any) -> Clusters:
    """Return centres that are packed as k-means packs those of a normal distribution.

    Args:
        mean: The released mean of the rows.
        spread: The released standard deviation in each column.
        clusters: The number of clusters.
        half: Half of the width of the box in each column.
        random: A public random generator, for a sample of the normal distribution.

    Returns:
        The clusters.
    """
    sample = random.normal(size=(max(_SAMPLE, 20 * clusters), len(mean)))
    public = PublicKMeans(clusters, n_init=3, random_state=random).fit(sample).cluster_centers_
    centres = np.clip(mean + _SPREAD * spread * public, -half, half)
    reach = _REACH * float(np.linalg.norm(spread)) * clusters ** (-1 / len(half))
    return Clusters(centres, reach, half)


def grid_cells(x: Floats, half: Floats, width: int) -> Positions:
    """Return the cell of each row in a grid of ``width`` cells along each column of the box."""
    places = np.clip(np.floor((x + half) / (2 * half) * width), 0, width - 1).astype(np.int64)
    found: Positions = places @ (width ** np.arange(len(half)))
    return found


def grid_counts(x: Floats, weights: Floats, half: Floats, width: int) -> Floats:
    """Return the number of rows in each cell of a grid; a row adds 1 to one of them."""
    return cell_counts(grid_cells(x, half, width), width ** len(half), weights)


def grid_centres(
    noisy: Floats, noise: float, half: Floats, width: int, clusters: int, random: Any
) -> Floats:
    """Return the centres that k-means finds for the cells of a grid, weighed by noisy counts.

    Counts within three standard deviations of their noise are left out: most of these are empty.
    """
    cells = np.arange(width ** len(half))
    places = cells[:, None] // width ** np.arange(len(half)) % width
    points = ((2 * places + 1) / width - 1) * half
    weights = np.where(noisy > 3 * noise, noisy, 0.0) + 1e-9 * noise
    public = PublicKMeans(clusters, n_init=4, random_state=random)
    found: Floats = public.fit(points, sample_weight=weights).cluster_centers_
    return found


def grid_width(records: int, epsilon: float, columns: int, clusters: int) -> int:
    """Return the number of cells along a column: a public rule of n·ε, for up to 2¹⁷ cells.

    The exponent is that of Su, Cao, Li, Bertino & Jin 2016, Differentially private k-means
    clustering, Section 4; there are at least two cells for each cluster.
    """
    rule = (max(records * epsilon, 1.0) / 20) ** (2 / (2 + columns))
    least = math.ceil((2 * clusters) ** (1 / columns))
    return max(least, 2, min(round(rule), int(2 ** (17 / columns))))


def _rearranged(centres: Floats, counts: Floats, distances: Floats, random: Any) -> Floats:
    """Return centres of which two near ones are merged to split the widest, where that pays.

    Merging two clusters costs what Ward's method says; splitting one saves a part of its inertia.
    """
    together = counts[:, None] + counts
    apart = ((centres[:, None] - centres) ** 2).sum(axis=2)
    cost = counts[:, None] * counts / np.maximum(together, 1e-9) * apart
    np.fill_diagonal(cost, np.inf)
    first, second = np.unravel_index(cost.argmin(), cost.shape)
    inertia = counts * distances**2
    inertia[[first, second]] = 0.0
    widest = inertia.argmax()
    if cost[first, second] >= _GAIN * inertia[widest]:
        return centres
    found = centres.copy()
    if together[first, second] > 0:
        found[second] = counts[[first, second]] @ centres[[first, second]] / together[first, second]
    direction = random.normal(size=centres.shape[1])
    direction *= 0.5 * distances[widest] / np.linalg.norm(direction)
    found[first], found[widest] = centres[widest] + direction, centres[widest] - direction
    return found
