"""Estimate a distribution from noisy marginals with the package mbi: post-processing.

Tests: tests/synthesis/estimated/test_estimate.py.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfy._extras import require
from dpfy.synthesis.cells import Floats, Pair
from dpfy.synthesis.tree_model import Clique, TreeModel

EXTRA = "synth"
_MOST_COMPILED = 8  # sets of marginals; small parts of the arithmetic are shared by several


@dataclass(frozen=True)
class Observation:
    """A noisy marginal as the estimation takes it.

    Args:
        columns: The numbers of its columns.
        noisy: The noisy counts, with an axis for each column.
        stddev: The standard deviation of the noise of a count.
        cells: The number of cells that each count is the sum of; 1 if it is None.
    """

    columns: Pair
    noisy: Floats
    stddev: float
    cells: Floats | None = None

    def averaged(self, other: "Observation") -> "Observation":
        """Return what this and another observation of the same counts say together.

        It is their mean, each weighed by its precision, which tells as much as both.

        >>> one, other = (Observation((0,), np.array([n]), s) for n, s in ((1.0, 1.0), (9.0, 2.0)))
        >>> one.averaged(other).noisy, round(one.averaged(other).stddev, 4)
        (array([2.6]), 0.8944)
        """
        assert self.cells is None and other.cells is None  # a group has another noise than a cell
        own, others = self.stddev**-2, other.stddev**-2
        noisy = (own * self.noisy + others * other.noisy) / (own + others)
        return Observation(self.columns, noisy, (own + others) ** -0.5)


def require_mbi() -> None:
    """Import mbi, or say which extra installs it.

    Raises:
        MissingExtra: If mbi is not installed.
    """
    with warnings.catch_warnings():  # of settings of jax, which hold for one estimate here
        warnings.simplefilter("ignore")
        require("mbi", EXTRA)


def megabytes(sizes: Sequence[int], cliques: Sequence[Pair]) -> float:
    """Return the size of the model that holds some marginals, in megabytes.

    Args:
        sizes: The number of values of each column.
        cliques: The columns of each marginal.

    Returns:
        The size of all cliques of its tree.
    """
    with _mbi() as mbi:
        return float(
            mbi.junction_tree.hypothetical_model_size(_domain(mbi, sizes), _named(cliques))
        )


class Estimator:
    """Estimates of one table from more and more marginals; each begins at the one before.

    Args:
        sizes: The number of values of each column.
        total: The number of rows, as estimated from noisy marginals.
    """

    def __init__(self, sizes: Sequence[int], total: float) -> None:
        self.sizes, self.total = tuple(sizes), total
        self._last: Any = None
        self._compiled: list[list[Pair]] = []

    def estimate(self, observed: Sequence[Observation], iterations: int) -> TreeModel:
        """Return the distribution of most entropy among those nearest to noisy marginals.

        Args:
            observed: The noisy marginals; each column is in one of them at least.
            iterations: The number of steps of mirror descent.

        Returns:
            The distribution.
        """
        with _mbi() as mbi:
            domain = _domain(mbi, self.sizes)
            self._forget([each.columns for each in observed])
            self._last = mbi.estimation.MirrorDescent().estimate(
                domain,
                [_measurement(mbi, each) for each in observed],
                known_total=self.total,
                iters=iterations,
                warm_start=self._last,
            )
            return self._as_tree(mbi, domain)

    def _forget(self, cliques: list[Pair]) -> None:
        """Drop what jax compiled for other marginals, now and then: it would fill the memory."""
        import jax

        if cliques not in self._compiled:
            self._compiled.append(cliques)
        if len(self._compiled) > _MOST_COMPILED:
            jax.clear_caches()
            self._compiled = [cliques]

    def _as_tree(self, mbi: Any, domain: Any) -> TreeModel:
        """Return the model as a tree of cliques, each after its parent."""
        potentials = self._last.potentials
        tree, _ = mbi.junction_tree.make_junction_tree(domain, list(potentials.cliques))
        marginals = mbi.marginal_oracles.message_passing_stable(
            potentials.expand(list(tree.nodes)), self.total
        )
        found: list[Clique] = []
        place: dict[Any, int] = {}
        for node, parent in _from_the_roots(tree):
            values = np.asarray(marginals.project(node).datavector(flatten=False), dtype=float)
            place[node] = len(found)
            columns = tuple(int(name) for name in node)
            found.append(Clique(columns, values, None if parent is None else place[parent]))
        return TreeModel(self.sizes, tuple(found))


def _from_the_roots(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the nodes of a forest, each with its parent and after it."""
    seen: set[Any] = set()
    for root in tree.nodes:
        waiting = [] if root in seen else [(root, None)]
        while waiting:
            node, parent = waiting.pop()
            seen.add(node)
            yield node, parent
            waiting.extend((near, node) for near in tree.neighbors(node) if near not in seen)


def _measurement(mbi: Any, observed: Observation) -> Any:
    """Return an observation as mbi takes it; sums of cells are scaled to one noise for all."""
    columns = tuple(str(each) for each in observed.columns)
    if observed.cells is None:
        return mbi.LinearMeasurement(observed.noisy.ravel(), columns, observed.stddev)
    weights = 1 / np.sqrt(observed.cells.ravel())
    return mbi.LinearMeasurement(
        observed.noisy.ravel() * weights, columns, observed.stddev, mbi.WeightedQuery(weights)
    )


def _domain(mbi: Any, sizes: Sequence[int]) -> Any:
    return mbi.Domain([str(each) for each in range(len(sizes))], list(sizes))


def _named(cliques: Sequence[Pair]) -> list[tuple[str, ...]]:
    return [tuple(str(each) for each in clique) for clique in cliques]


@contextmanager
def _mbi() -> Iterator[Any]:
    """Lend the package mbi, with jax in double precision for this thread and time alone."""
    require_mbi()
    import jax
    import mbi

    with jax.enable_x64(True):
        yield mbi
