"""A joint distribution of columns as a tree of cliques: its pairs, and tables drawn from it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from dpfy.synthesis.cells import Codes, Floats, Pair


@dataclass(frozen=True)
class Clique:
    """Columns that are known together.

    Args:
        columns: The numbers of the columns, in the order of the axes.
        probabilities: Their joint distribution; it is made to add up to 1.
        parent: The place of the clique that comes before it in the tree, or None for a root.
    """

    columns: Pair
    probabilities: Floats
    parent: int | None = None


@dataclass(frozen=True)
class TreeModel:
    """A distribution that is a product of cliques, each given the one before it.

    Args:
        sizes: The number of values of each column.
        cliques: The cliques, each after its parent; all values of a column that two cliques share
            are also in the cliques between them.

    >>> pair = np.array([[0.5, 0.0], [0.0, 0.5]])
    >>> model = TreeModel((2, 2, 2), (Clique((0, 1), pair), Clique((1, 2), pair, parent=0)))
    >>> model.pairs[0, 2]
    array([[0.5, 0. ],
           [0. , 0.5]])
    """

    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]

    @cached_property
    def pairs(self) -> dict[Pair, Floats]:
        """The distribution of every two columns, by their numbers in increasing order."""
        found: dict[Pair, Floats] = {}
        for first in range(len(self.sizes)):
            for clique, joint, axes in self._with(first):
                for second in clique.columns:
                    if second > first and (first, second) not in found:
                        found[first, second] = _contracted(joint, axes, [first, second])
        return found

    @cached_property
    def ones(self) -> tuple[Floats, ...]:
        """The distribution of each column."""
        home = {column: clique for clique in self.cliques for column in clique.columns}
        return tuple(
            _contracted(_normalised(home[each].probabilities), list(home[each].columns), [each])
            for each in range(len(self.sizes))
        )

    def expected(self, columns: Pair) -> Floats:
        """Return the distribution of one column, or of two in increasing order."""
        return self.ones[columns[0]] if len(columns) == 1 else self.pairs[columns]

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[Codes, ...]:
        """Draw rows; every clique's counts are within one of what is expected where they can be.

        Args:
            rows: The number of rows.
            rng: The source of chance.

        Returns:
            The values of each column.
        """
        found: dict[int, Codes] = {}
        for clique in self.cliques:
            known = [each for each in clique.columns if each in found]
            fresh = [each for each in clique.columns if each not in found]
            if not fresh:
                continue
            joint = _contracted(clique.probabilities, list(clique.columns), known + fresh)
            shape = joint.shape[: len(known)]
            given = np.zeros(rows, dtype=np.int64)
            if known:
                given = np.ravel_multi_index([found[each] for each in known], shape)
            cells = _draw_given(given, joint.reshape(int(np.prod(shape)), -1), rng)
            drawn = np.unravel_index(cells, joint.shape[len(known) :])
            found.update(zip(fresh, drawn, strict=True))
        return tuple(found[each] for each in range(len(self.sizes)))

    def _with(self, column: int) -> Iterator[tuple[Clique, Floats, list[int]]]:
        """Yield each clique's joint distribution with a column, and the numbers of its axes."""
        neighbours = self._neighbours
        joints = [_normalised(each.probabilities) for each in self.cliques]
        start = next(k for k, each in enumerate(self.cliques) if column in each.columns)
        axes = list(self.cliques[start].columns)
        waiting = [(start, joints[start], axes)]
        seen = {start}
        while waiting:
            place, joint, axes = waiting.pop()
            yield self.cliques[place], joint, axes
            for near in neighbours[place]:
                if near not in seen:
                    seen.add(near)
                    clique = self.cliques[near]
                    waiting.append((near, *_carry(joint, axes, joints[near], clique, column)))
        alone = _contracted(joints[start], list(self.cliques[start].columns), [column])
        for place, clique in enumerate(self.cliques):  # of other trees, which are independent
            if place not in seen:
                axes = [column, *clique.columns]
                yield clique, np.multiply.outer(alone, joints[place]), axes

    @cached_property
    def _neighbours(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.cliques]
        for place, clique in enumerate(self.cliques):
            if clique.parent is not None:
                found[place].append(clique.parent)
                found[clique.parent].append(place)
        return found


def independent(ones: Sequence[Floats]) -> TreeModel:
    """Return the model of independent columns.

    Args:
        ones: The counts or probabilities of each column; those below 0 count as 0.

    Returns:
        The model.

    >>> independent([np.array([1.0, 3.0]), np.array([-1.0, 5.0])]).pairs[0, 1]
    array([[0.  , 0.25],
           [0.  , 0.75]])
    """
    cliques = [Clique((k,), np.maximum(each, 0)) for k, each in enumerate(ones)]
    return TreeModel(tuple(len(each) for each in ones), tuple(cliques))


def all_pairs(columns: int) -> list[Pair]:
    """Return all pairs of columns, by their numbers."""
    return list(combinations(range(columns), 2))


def _carry(
    joint: Floats, axes: list[int], own: Floats, clique: Clique, column: int
) -> tuple[Floats, list[int]]:
    """Return the joint distribution of a clique and a column, given that of its neighbour."""
    own_axes = list(clique.columns)
    if column in own_axes:
        return own, own_axes
    shared = [each for each in own_axes if each in axes]
    mass = _contracted(own, own_axes, shared)
    inverse = np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)
    before = _contracted(joint, axes, [column, *shared])
    found = _contracted(
        before, [column, *shared], inverse, shared, own, own_axes, [column, *own_axes]
    )
    return found, [column, *own_axes]


def _contracted(*operands: Any) -> Floats:
    """Return :func:`numpy.einsum` of arrays and numbers of axes, by the cheapest order."""
    return np.asarray(np.einsum(*operands, optimize=True))


def _normalised(probabilities: Floats) -> Floats:
    """Return non-negative numbers that add up to 1; equal ones if none is above 0."""
    positive = np.maximum(np.nan_to_num(probabilities), 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(positive.shape, 1 / positive.size)


def _draw_given(given: Codes, joint: Floats, rng: np.random.Generator) -> Codes:
    """Draw a cell for each row from the line of ``joint`` that it names, spread evenly.

    Rows of one line are put at even distances along its cumulative distribution, in random order.
    """
    lines, cells = joint.shape
    conditional = np.apply_along_axis(_normalised, 1, joint) if lines else joint
    ends = np.cumsum(conditional, axis=1)
    ends /= ends[:, -1:]
    order = rng.permutation(len(given))
    order = order[np.argsort(given[order], kind="stable")]
    members = np.bincount(given, minlength=lines)
    begins = np.cumsum(members) - members
    ranks = np.empty(len(given), dtype=np.int64)
    ranks[order] = np.arange(len(given)) - begins[given[order]]
    place = (ranks + rng.random(len(given))) / members[given]
    line_ends = (np.arange(lines)[:, None] + ends).ravel()
    found = np.searchsorted(line_ends, given + place, side="right") - given * cells
    last = cells - 1 - (conditional[:, ::-1] > 0).argmax(axis=1)  # that may be drawn at all
    return np.clip(found, 0, last[given])
