"""Streams: how far one record can move all rows of a strategy at once, and what that costs.

A record that takes part in steps π, with a vector of norm at most 1 in each, moves C·G by Σ_{i∈π} c_i·u_iᵀ, c_i the
columns of C. Its squared norm is Σ_{i,j∈π} ⟨c_i, c_j⟩⟨u_i, u_j⟩, and the sensitivity is the largest of it over all
patterns and vectors. The proofs are in ``docs/proofs/streams.md``.
"""

import math
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from dpfy.accounting.pairs import Neighbours, Pair, Pairs
from dpfy.accounting.rules import EVENT_RULES, EventRule
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.streams import Columns, SampledStream, Strategy, Stream, Toeplitz, Tree
from dpfy.types import Interval, Relation

Array = NDArray[np.float64]

_ROUNDED = 1e-9  # relative: more than sums of a million terms can lose
_MAX_COLUMNS = 2000
_STARTS = 64  # patterns that are tried for a lower bound


@lru_cache(maxsize=256)
def sensitivity(strategy: Strategy, steps: int, participations: int = 1, separation: int = 1) -> Interval:
    """Return by how much one record can move all rows of a stream together, in units of its bound in one step.

    *Formal guarantee*: no record that takes part in at most ``participations`` steps, ``separation`` or more apart,
    moves them by more than ``upper``, and some record does by ``lower``. Both agree, but for rounding, for Toeplitz
    strategies whose coefficients fall and are not negative, for columns that reach no further than ``separation``, for
    products of columns that are not negative and reach no further than twice that, and for trees whose nodes see a
    record once.

    Reference: ``docs/proofs/streams.md``, Lemmas 1 to 4.

    >>> round(sensitivity(Tree(), 1000).upper ** 2, 6)  # one node on each of the levels 0 to 9
    10.0
    >>> round(sensitivity(Toeplitz((1.0, 0.5)), 4, participations=2, separation=2).upper ** 2, 6)
    2.5
    """
    most = min(participations, -(-steps // separation))
    if isinstance(strategy, Toeplitz):
        low, high = _toeplitz(np.array(strategy.coefficients[:steps]), steps, most, separation)
    elif isinstance(strategy, Tree):
        low, high = _tree(strategy, steps, most, separation)
    elif isinstance(strategy, Columns):
        low, high = _columns(_gram(strategy), most, separation)
    else:
        raise UnsupportedEvent(f"No rule for the strategy {strategy.tag!r}.")
    return Interval(math.sqrt(low) * (1 - _ROUNDED), math.sqrt(high) * (1 + _ROUNDED))


def _toeplitz(band: Array, steps: int, most: int, separation: int) -> tuple[float, float]:
    """Products of columns fall with their distance and with the place of the later one: the earliest pattern is worst.

    Columns that overlap are taken with coefficients that dominate theirs and do fall.
    """
    apart = math.fsum(float(np.square(band[:steps - place]).sum()) for place in range(0, most * separation, separation))
    if len(band) <= separation or most == 1:
        return apart, apart
    falling = np.maximum.accumulate(np.abs(band)[::-1])[::-1]
    low, high = (_together(values, steps, most, separation) for values in (band, falling))
    return min(max(low, apart), high), high


def _together(band: Array, steps: int, most: int, separation: int) -> float:
    total = np.zeros(steps)
    for place in range(0, most * separation, separation):
        reach = min(len(band), steps - place)
        total[place:place + reach] += band[:reach]
    return float(total @ total)


def _tree(tree: Tree, steps: int, most: int, separation: int) -> tuple[float, float]:
    """Nodes of a level are disjoint, and each sees a record at most as often as its leaves have room for."""
    size = min(tree.restart or steps, steps)
    blocks = [size] * (steps // size) + ([steps % size] if steps % size else [])
    high, starts = 0, range(0, min(separation, steps), -(-min(separation, steps) // _STARTS))
    low = dict.fromkeys(starts, 0)
    for level in range((size - 1).bit_length() + 1):
        nodes = _nodes(blocks, level, tree.completed)
        if nodes == 0:
            break
        room = min(most, -(-min(1 << level, size) // separation))
        full, rest = divmod(min(most, nodes * room), room)
        high += full * room**2 + rest**2
        for start in starts:
            pattern = np.arange(start, steps, separation)[:most]
            low[start] += _seen(pattern, size, steps, 1 << level, tree.completed)
    return float(max(low.values())), float(high)


def _nodes(blocks: list[int], level: int, completed: bool) -> int:
    """How many nodes of a level are released."""
    width = 1 << level
    if not completed:
        return sum(block // width for block in blocks)
    return sum(-(-block // width) for block in blocks if (block - 1).bit_length() >= level)


def _seen(pattern: NDArray[np.int64], size: int, steps: int, width: int, completed: bool) -> int:
    """How often each released node of a level sees a record with this pattern: the sum of squares."""
    block, place = np.divmod(pattern, size)
    length = np.minimum(size, steps - block * size)
    released = width < 2 * length if completed else (place // width + 1) * width <= length
    counts = np.unique((block * size + place // width)[released], return_counts=True)[1]
    return int(np.square(counts).sum())


def _gram(strategy: Columns) -> Array:
    count = len(strategy.columns)
    if count > _MAX_COLUMNS:
        raise UnsupportedEvent(f"No rule for {count:,} columns of a general matrix; at most {_MAX_COLUMNS:,}. Use "
                               "toeplitz coefficients or a tree.")
    matrix = np.zeros((count, count))
    for place, column in enumerate(strategy.columns):
        matrix[place:place + len(column), place] = column
    return matrix.T @ matrix


def _columns(gram: Array, most: int, separation: int) -> tuple[float, float]:
    """Exact by dynamic programming where only neighbours of a pattern overlap; else row by row."""
    count = len(gram)
    size, diagonal = np.abs(gram), np.diag(gram)
    distance = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    low = max(_consecutive(np.diag(diagonal), most, separation), *(
        float(gram[np.ix_(pattern, pattern)].sum()) for start in range(min(separation, count))
        for pattern in (np.arange(start, count, separation)[:most],)))
    if not np.any(size[distance >= 2 * separation]):
        high = _consecutive(size, most, separation)
        return (high if np.all(gram[distance >= separation] >= 0) else min(low, high)), high
    rows = _row_bounds(size, most, separation)
    high = _consecutive(np.diag(rows), most, separation)
    return min(low, high), high


def _consecutive(gram: Array, most: int, separation: int) -> float:
    """The largest Σ_{i,j∈π} over patterns, if only neighbours in a pattern have products."""
    count = len(gram)
    places = np.arange(count)
    later = places[:, None] + separation <= places  # [before, after]
    last = np.diag(gram).copy()  # the best sum of a pattern that ends here
    best = float(last.max())
    for _ in range(most - 1):
        if not later.any():
            break
        last = np.diag(gram) + np.where(later, last[:, None] + 2 * gram, -np.inf).max(axis=0)
        best = max(best, float(last.max()))
    return best


def _row_bounds(size: Array, most: int, separation: int) -> Array:
    """For each i the largest Σ_{j∈π} |⟨c_i, c_j⟩| over patterns π with i in them."""
    left = _before(size, most, separation)
    right = _before(size[::-1, ::-1], most, separation)[::-1]
    splits = [left[:, few] + right[:, most - 1 - few] for few in range(most)]
    return np.asarray(np.diag(size) + np.max(splits, axis=0))


def _before(size: Array, most: int, separation: int) -> Array:
    """For each row i and each number of steps, the largest sum of the row's entries at that many steps before i."""
    count = len(size)
    found = np.zeros((count, most))
    history: list[Array] = []  # the best sums of all rows with entries up to a place
    for place in range(count):
        before = history[place - separation] if place >= separation else np.zeros((count, most))
        taken = np.concatenate((np.zeros((count, 1)), before[:, :-1] + size[:, place:place + 1]), axis=1)
        history.append(np.maximum(history[-1], taken) if history else taken)
        if place > separation:
            history[place - separation - 1] = np.empty((0, 0))  # not asked for again
        if place + separation < count:
            found[place + separation] = history[-1][place + separation]
    return found


def _pairs(event: Stream, neighbours: Neighbours) -> Pairs:
    moved = sensitivity(event.strategy, event.steps, event.participations, event.separation).upper
    return ((Pair(1.0, event.noise_multiplier / moved, neighbours), 1),)


def _sampled_pairs(event: SampledStream, neighbours: Neighbours) -> Pairs:
    """One record meets one column in each round of the parts; the longest of a round stands for all."""
    band, steps = event.band, event.steps
    if isinstance(event.strategy, Toeplitz):
        squares = np.cumsum(np.square(event.strategy.coefficients[:steps]))
        length = np.minimum(steps - np.arange(steps), len(squares))
        norms = np.sqrt(squares[length - 1])
    else:
        assert isinstance(event.strategy, Columns)
        norms = np.array([math.hypot(*column) for column in event.strategy.columns])
    longest = np.array([norms[start:start + band].max() for start in range(0, steps, band)]) * (1 + _ROUNDED)
    values, counts = np.unique(longest, return_counts=True)
    return tuple(sorted((Pair(event.rate, event.noise_multiplier / float(value), neighbours), int(times))
                        for value, times in zip(values, counts, strict=True) if value > 0))


_ROWS = ("C·G with independent noise is one Gaussian vector, also if sums depend on earlier rows: Denisov et al. 2022; "
         "sensitivity: docs/proofs/streams.md")
_ROUNDS = ("a band no longer than the number of parts makes each round a sampled Gaussian sum: Choquette-Choo et al. "
           "2023; docs/proofs/streams.md")

_STREAM: dict[Relation, Neighbours] = {Relation.ZERO_OUT: "absent", Relation.REPLACE_ONE: "opposed"}
_SAMPLED: dict[Relation, Neighbours] = {Relation.ADD_OR_REMOVE_ONE: "absent", **_STREAM}

for _method in ("pld", "rdp"):
    for _relation, _neighbours in _STREAM.items():
        EVENT_RULES[_method, Stream, _relation] = EventRule(
            partial(_pairs, neighbours=_neighbours), _ROWS, exact=False)
    for _relation, _neighbours in _SAMPLED.items():
        if _method == "pld" or _neighbours == "absent":  # no Rényi curve is known for samples of opposed records
            EVENT_RULES[_method, SampledStream, _relation] = EventRule(
                partial(_sampled_pairs, neighbours=_neighbours), _ROUNDS, exact=False)
