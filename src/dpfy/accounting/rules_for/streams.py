"""Streams: how far one record can move all rows of a strategy at once, and what that costs.

A record that takes part in steps π, with a vector of norm at most 1 in each, moves C·G by Σ_{i∈π}
c_i·u_iᵀ, c_i the columns of C. Its squared norm is Σ_{i,j∈π} ⟨c_i, c_j⟩⟨u_i, u_j⟩, and the
sensitivity is the largest of it over all patterns and vectors. The proofs are in
``docs/proofs/streams.md``.
"""

import math
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from dpfy.accounting.dominating_pairs import Neighbours, Pair, Pairs
from dpfy.accounting.rules import EVENT_RULES, EventRule
from dpfy.accounting.rules_for.participation import Array, Square, worst_pattern
from dpfy.accounting.rules_for.trees import worst_count
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.streams import Buffered, Columns, SampledStream, Strategy, Stream, Toeplitz, Tree
from dpfy.types import Interval, Relation

_ROUNDED = 1e-9  # relative: more than sums of a million terms can lose
_MAX_BANDS = 4_000_000  # products of columns
_NARROW, _FEW = 64, 2000  # wide bands of few columns: all products at once
_STARTS = 64  # patterns of a tree that are tried for a lower bound


@lru_cache(maxsize=256)
def sensitivity(
    strategy: Strategy, steps: int, participations: int = 1, separation: int = 1
) -> Interval:
    """Return the sensitivity of a stream: how far one record can move all of its rows together.

    The unit is the record's bound in one step.

    *Formal guarantee*: no record that takes part in at most ``participations`` steps,
    ``separation`` or more apart, moves them by more than ``upper``, and some record does by
    ``lower``, if its gradients may point anywhere. Both agree, but for rounding, wherever the worst
    pattern is found: always for Toeplitz strategies that fall and have one sign or alternate, and
    for bands of at most twice ``separation``; for trees, wider bands and full matrices unless the
    search for it exceeds its limits, which up to some hundred steps it does not.

    Args:
        strategy: The matrix that multiplies the steps' sums.
        steps: The number of steps.
        participations: In how many steps a record may take part; 1 by default.
        separation: The least distance between two of them, in steps; 1 by default.

    Returns:
        The interval from what some record does to what none exceeds.

    Raises:
        UnsupportedEvent: There is no rule for the strategy, or it is too large.

    Reference: ``docs/proofs/streams.md``, Lemmas 1 to 4.

    >>> round(sensitivity(Tree(), 1000).upper ** 2, 6)  # one node on each of the levels 0 to 9
    10.0
    >>> round(sensitivity(Toeplitz((1.0, 0.5)), 4, participations=2, separation=2).upper ** 2, 6)
    2.5
    >>> clashing = Toeplitz((0.5, -1.0, 1.0))
    >>> [round(end, 6) for end in sensitivity(clashing, 6, participations=6)]
    [5.244044, 5.244044]
    """
    most = min(participations, -(-steps // separation))
    if isinstance(strategy, Buffered):
        # they fall but for rounding, which would look like another strategy
        column = np.minimum.accumulate(strategy.column(steps))
        low, high = _toeplitz(column, steps, most, separation)
    elif isinstance(strategy, Toeplitz):
        low, high = _toeplitz(np.array(strategy.coefficients[:steps]), steps, most, separation)
    elif isinstance(strategy, Tree):
        low, high = _tree(strategy, steps, most, separation)
    elif isinstance(strategy, Columns):
        low, high = worst_pattern(_bands(strategy), most, separation)
    else:
        raise UnsupportedEvent(f"No rule for the strategy {strategy.tag!r}.")
    return Interval(math.sqrt(low) * (1 - _ROUNDED), math.sqrt(high) * (1 + _ROUNDED))


def _toeplitz(band: Array, steps: int, most: int, separation: int) -> Square:
    """Return the squared sensitivity of a Toeplitz strategy.

    Products of columns with falling coefficients fall with their distance and with the position of
    the later one: the earliest pattern is worst. Others are searched. Where that is too much work,
    falling coefficients that dominate them give a bound.
    """
    if len(band) <= separation or most == 1:
        apart = math.fsum(
            float(np.square(band[: steps - place]).sum())
            for place in range(0, most * separation, separation)
        )
        return Square(apart, apart)
    falling = np.maximum.accumulate(np.abs(band)[::-1])[::-1]
    high = _together(falling, steps, most, separation)
    if any(np.array_equal(band * sign ** np.arange(len(band)), falling) for sign in (1, -1)):
        return Square(high, high)
    low = _together(band, steps, most, separation)
    if len(band) * steps <= _MAX_BANDS:
        found = worst_pattern(_toeplitz_bands(band, steps), most, separation)
        low, high = max(low, found.low), min(high, found.high)
    return Square(min(low, high), high)


def _together(band: Array, steps: int, most: int, separation: int) -> float:
    """Return the square of the earliest pattern, all vectors equal."""
    total = np.zeros(steps)
    for place in range(0, most * separation, separation):
        reach = min(len(band), steps - place)
        total[place : place + reach] += band[:reach]
    return float(total @ total)


def _toeplitz_bands(band: Array, steps: int) -> Array:
    """Return Γ_{j−d, j} = Σ_{t < n − j} θ_t·θ_{t+d}."""
    bands = np.zeros((len(band), steps))
    for distance in range(len(band)):
        sums = np.cumsum(band[: len(band) - distance] * band[distance:])
        later = np.arange(distance, steps)
        bands[distance, distance:] = sums[np.minimum(steps - later, len(sums)) - 1]
    return bands


def _bands(strategy: Columns) -> Array:
    """Return Γ_{j−d, j} of the columns, for all distances d within the longest."""
    count, longest = len(strategy.columns), max(map(len, strategy.columns))
    if count * longest > _MAX_BANDS:
        raise UnsupportedEvent(
            f"No rule for {count:,} columns of a general matrix with {longest:,} rows each; at "
            f"most {_MAX_BANDS:,} entries. Use toeplitz coefficients or a tree."
        )
    bands = np.zeros((longest, count))
    if longest > _NARROW and count <= _FEW:
        matrix = np.zeros((count, count))
        for place, column in enumerate(strategy.columns):
            matrix[place : place + len(column), place] = column
        gram = matrix.T @ matrix
        for distance in range(longest):
            bands[distance, distance:] = np.diagonal(gram, distance)
        return bands
    columns = np.zeros((count, longest))
    for place, column in enumerate(strategy.columns):
        columns[place, : len(column)] = column
    for distance in range(longest):
        bands[distance, distance:] = np.einsum(
            "ij,ij->i",
            columns[distance:, : longest - distance],
            columns[: count - distance, distance:],
        )
    return bands


def _tree(tree: Tree, steps: int, most: int, separation: int) -> Square:
    """Return the squared sensitivity of a tree, exactly or level by level.

    The latter is for trees that are too much work. Nodes of a level are disjoint, and each sees a
    record at most as often as its leaves have room for.
    """
    exact = worst_count(tree, steps, most, separation)
    if exact is not None:
        return Square(exact, exact)
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
    return Square(float(max(low.values())), float(high))


def _nodes(blocks: list[int], level: int, completed: bool) -> int:
    """Return how many nodes of a level are released."""
    width = 1 << level
    if not completed:
        return sum(block // width for block in blocks)
    return sum(-(-block // width) for block in blocks if (block - 1).bit_length() >= level)


def _seen(pattern: NDArray[np.int64], size: int, steps: int, width: int, completed: bool) -> int:
    """Return the sum of squares of how often each released node of a level sees a record."""
    block, place = np.divmod(pattern, size)
    length = np.minimum(size, steps - block * size)
    released = width < 2 * length if completed else (place // width + 1) * width <= length
    counts = np.unique((block * size + place // width)[released], return_counts=True)[1]
    return int(np.square(counts).sum())


def _pairs(event: Stream, neighbours: Neighbours, attained: bool = False) -> Pairs:
    moved = sensitivity(event.strategy, event.steps, event.participations, event.separation)
    size = moved.lower if attained else moved.upper
    return ((Pair(1.0, event.noise_multiplier / size if size else math.inf, neighbours), 1),)


def _sampled_pairs(event: SampledStream, neighbours: Neighbours, attained: bool = False) -> Pairs:
    """Return the pairs of a sampled stream.

    One record meets one column in each round of the parts; the longest column of a round bounds all
    of them. Records of the part with the longest columns overall attain theirs.
    """
    turns, steps = event.round, event.steps
    if isinstance(event.strategy, Toeplitz):
        squares = np.cumsum(np.square(event.strategy.coefficients[:steps]))
        length = np.minimum(steps - np.arange(steps), len(squares))
        norms = np.sqrt(squares[length - 1])
    else:
        assert isinstance(event.strategy, Columns)
        norms = np.array([math.hypot(*column) for column in event.strategy.columns])
    longest = np.array([norms[start : start + turns].max() for start in range(0, steps, turns)]) * (
        1 + _ROUNDED
    )
    if attained:
        parts = (norms[part::turns] * (1 - _ROUNDED) for part in range(min(turns, steps)))
        longest = max(parts, key=lambda met: float(met @ met))
    values, counts = np.unique(longest, return_counts=True)
    return tuple(
        sorted(
            (Pair(event.rate, event.noise_multiplier / float(value), neighbours), int(times))
            for value, times in zip(values, counts, strict=True)
            if value > 0
        )
    )


_ROWS = (
    "C·G with independent noise is one Gaussian vector, also if sums depend on earlier rows: "
    "Denisov et al. 2022; sensitivity: docs/proofs/streams.md"
)
_ROUNDS = (
    "a band no longer than the number of parts makes each round a sampled Gaussian sum: "
    "Choquette-Choo et al. 2023; docs/proofs/streams.md"
)

_STREAM: dict[Relation, Neighbours] = {Relation.ZERO_OUT: "absent", Relation.REPLACE_ONE: "opposed"}
_SAMPLED: dict[Relation, Neighbours] = {Relation.ADD_OR_REMOVE_ONE: "absent", **_STREAM}

for _method in ("pld", "rdp"):
    for _relation, _neighbours in _STREAM.items():
        EVENT_RULES[_method, Stream, _relation] = EventRule(
            partial(_pairs, neighbours=_neighbours),
            _ROWS,
            exact=False,
            attained=partial(_pairs, neighbours=_neighbours, attained=True),
        )
    for _relation, _neighbours in _SAMPLED.items():
        if (
            _method == "pld" or _neighbours == "absent"
        ):  # no Rényi curve is known for samples of opposed records
            EVENT_RULES[_method, SampledStream, _relation] = EventRule(
                partial(_sampled_pairs, neighbours=_neighbours),
                _ROUNDS,
                exact=False,
                attained=partial(_sampled_pairs, neighbours=_neighbours, attained=True),
            )
