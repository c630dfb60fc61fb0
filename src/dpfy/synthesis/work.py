"""What both methods share: rows in their cells, marginals as one vector, and columns by themselves.

Tests: tests/synthesis/test_synthesizer.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfy.synthesis.cells import Codes, Domain, Pair, counts
from dpfy.synthesis.estimate import Estimator, Observation
from dpfy.synthesis.measurements import Measured, Merged, distance, estimated_total
from dpfy.synthesis.releases import Releases

if TYPE_CHECKING:
    from dpfy.mechanisms.one_shot import Gaussian
    from dpfy.synthesis.tree_model import TreeModel

_UP = 1 + 1e-15  # of a square root
Tell = Callable[[str, float, float], None]
"""Is told what is done, how much of it, and of how much."""


def marginals(name: str, count: int, stddev: float) -> "Gaussian":
    """Return the release of some marginals as one vector.

    *Formal guarantee*: a row adds 1 to one entry of each marginal, hence moves the vector by
    √count in ℓ2 norm.

    Args:
        name: The name of the vector in the ledger.
        count: The number of marginals, at least 1.
        stddev: The standard deviation of the noise of each entry.

    Returns:
        The mechanism.
    """
    from dpfy.mechanisms.one_shot import Gaussian

    return Gaussian(math.sqrt(count) * _UP, stddev, name)


class Rows:
    """The rows of a private table in the cells of its columns; they are read when first counted.

    Args:
        table: The table.
        domain: The cells of its columns.
    """

    def __init__(self, table: Any, domain: Domain) -> None:
        self._table, self._domain = table, domain
        self._codes: tuple[Codes, ...] | None = None
        self._sizes = domain.sizes

    def merge(self, merged: Sequence[Merged]) -> None:
        """From now on count groups of cells, which follow from released values."""
        codes = self._read()
        self._codes = tuple(m.groups[each] for m, each in zip(merged, codes, strict=True))
        self._sizes = tuple(each.size for each in merged)

    def counts(self, columns: Pair) -> Codes:
        """Return the exact counts of a marginal."""
        return counts(self._read(), self._sizes, columns)

    def _read(self) -> tuple[Codes, ...]:
        if self._codes is None:
            self._codes = self._domain.codes(self._table)
        return self._codes


@dataclass
class Work:
    """A table while marginals of it are chosen and released.

    Args:
        releases: The ledger.
        domain: The cells of the columns.
        rows: The rows of the table.
        tell: Is told how far the work is.
        measured: What was released.
    """

    releases: Releases
    domain: Domain
    rows: Rows
    tell: Tell
    measured: list[Measured] = field(default_factory=list)

    def measure(
        self, wanted: Sequence[Pair], mechanism: "Gaussian", adaptive: bool = False
    ) -> None:
        """Release marginals as one vector, and keep what was released.

        Args:
            wanted: The columns of each marginal.
            mechanism: The noise, and the most that a row moves the vector.
            adaptive: Whether the mechanism was chosen from earlier answers.
        """

        def exact() -> Any:
            return np.concatenate([self.rows.counts(each).ravel() for each in wanted]).astype(float)

        noisy = np.asarray(self.releases.make(mechanism, exact, adaptive=adaptive))
        shapes = [tuple(self.sizes[each] for each in columns) for columns in wanted]
        ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]
        for columns, shape, part in zip(wanted, shapes, np.split(noisy, ends), strict=True):
            self.measured.append(Measured(columns, part.reshape(shape), mechanism.stddev))

    def measure_columns(self, mechanism: "Gaussian", *, merge: bool) -> None:
        """Release the counts of every column.

        Args:
            mechanism: The noise, and the most that a row moves the vector.
            merge: Whether cells that do not stand out of the noise are put together from then on.
        """
        self.sizes = self.domain.sizes
        self.measure([(each,) for each in range(len(self.sizes))], mechanism)
        self.merged = [
            Merged.of(each) if merge else Merged.apart(each.noisy.size) for each in self.measured
        ]
        self.total = estimated_total(self.measured)
        self.sizes = tuple(each.size for each in self.merged)
        self.rows.merge(self.merged)
        self.estimator = Estimator(self.sizes, self.total)

    def observed(self) -> list[Observation]:
        """Return all that was released as the estimation takes it, each marginal once."""
        columns = len(self.merged)
        found: dict[Pair, Observation] = {}
        for merged, each in zip(self.merged, self.measured[:columns], strict=True):
            noisy, cells = merged.merge(each)
            found[each.columns] = Observation(
                each.columns, noisy, each.stddev, cells if cells.max() > 1 else None
            )
        for each in self.measured[columns:]:
            later = Observation(each.columns, each.noisy, each.stddev)
            known = found.get(each.columns)
            found[each.columns] = later if known is None else known.averaged(later)
        return list(found.values())

    def distances(self, candidates: Sequence[Pair], model: "TreeModel") -> list[int]:
        """Return how far the exact counts of marginals are from a model; this reads the rows."""
        return [
            distance(self.rows.counts(each), self.total * model.expected(each))
            for each in candidates
        ]
