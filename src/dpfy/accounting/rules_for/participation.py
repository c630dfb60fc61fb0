"""The worst participation pattern of a stream.

It is the largest ‖Σ_{i∈π} c_i·u_iᵀ‖² over patterns π and vectors u_i in the unit ball. A pattern
has at most k steps, b or more apart. The square is Σ_{i,j∈π} Γ_ij·⟨u_i, u_j⟩ with Γ the products of
columns. It is at most Σ|Γ_ij|, which vectors on one line attain if their signs can be chosen such
that no term is negative. The largest sum is found by dynamic programming if products vanish beyond
some distance, and otherwise by branch and bound. Where signs clash, a pattern's square is a
semidefinite programme, solved from both sides. Proofs: ``docs/proofs/streams.md``.

Tests: tests/accounting/rules_for/test_streams.py.
"""

import heapq
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Distances = tuple[int, ...]

_ZERO = 1e-13  # relative: products below it are rounding, and their signs say nothing
_CLOSE = 1e-10  # relative: a search that is as close as this is over
_MAX_WORK = 3e7  # numbers that a dynamic programme or a search may touch: about a second
_MAX_CONTEXTS = 4096
_MAX_PUSHED = 200_000
_SWEEPS, _ROUNDS = 10, 30  # of a semidefinite programme
_SOLVING = 5e4  # what it counts for, for each step of a pattern


class Square(NamedTuple):
    """A squared sensitivity from below and from above."""

    low: float
    high: float


def worst_pattern(bands: Array, most: int, separation: int) -> Square:
    """Return the largest square, where ``bands[d, j]`` is Γ between steps j − d and j.

    *Formal guarantee*: some pattern and vectors attain ``low``, none exceeds ``high``, rounding
    aside. Both agree if the search ended within its limits.
    """
    bands = bands.copy()
    bands[1:separation] = 0.0  # never in one pattern
    reach = int(np.flatnonzero(bands.any(axis=1)).max(initial=0))
    bands = bands[: reach + 1]
    clash = not _one_sign(bands)
    high = _within_reach(np.abs(bands), most, separation)
    if high is not None and (reach < 2 * separation or not clash):
        return Square(
            high, high
        )  # only neighbours in a pattern have products: signs never clash along a path
    if bands.shape[1] > _MAX_WORK**0.5:
        return _without_search(bands, most, separation, high)
    found = _Search(_dense(bands), most, separation, clash).run()
    return found if high is None else Square(min(found.low, high), min(found.high, high))


def _one_sign(bands: Array) -> bool:
    """Tell whether signs s_i exist such that no s_i·s_j·Γ_ij is negative."""
    size = np.sqrt(np.maximum(bands[0], 0.0))
    count = len(size)
    signs = np.zeros_like(bands, dtype=np.int8)
    for distance in range(1, len(bands)):
        least = _ZERO * size[distance:] * size[: count - distance]
        band = bands[distance, distance:]
        signs[distance, distance:] = np.sign(band) * (np.abs(band) > least)
    if (signs >= 0).all():
        return True
    side = np.zeros(count, dtype=np.int8)
    far = np.arange(1, len(bands))
    for root in range(count):
        waiting = [] if side[root] else [root]
        side[root] = side[root] or 1
        while waiting:
            here = waiting.pop()
            later, before = far[far < count - here], far[far <= here]
            places = np.concatenate((here + later, here - before))
            wanted = side[here] * np.concatenate((signs[later, here + later], signs[before, here]))
            places, wanted = places[wanted != 0], wanted[wanted != 0]
            if np.any(side[places] == -wanted):
                return False
            fresh = side[places] == 0
            side[places] = wanted
            waiting.extend(places[fresh].tolist())
    return True


def _within_reach(size: Array, most: int, separation: int) -> float | None:
    """Return the largest Σ|Γ_ij| by dynamic programming; None if that is too much work.

    A state is the last step and the distances back to the others that a next step can have products
    with.
    """
    reach, count = len(size) - 1, size.shape[1]
    moves = _moves(reach, separation, int(20 * _MAX_WORK / (most * count)))
    if moves is None:
        return None
    alone = size[0]
    state: dict[Distances, Array] = {(): alone.copy()}
    best = float(alone.max())
    for _ in range(most - 1):
        latest = np.max(list(state.values()), axis=0)
        after: dict[Distances, Array] = {(): np.full(count, -np.inf)}
        beyond = max(reach + 1, separation)
        if beyond < count:
            after[()][beyond:] = np.maximum.accumulate(latest)[: count - beyond] + alone[beyond:]
        for context, step, following in moves:
            if context not in state or step >= count:
                continue
            total = state[context][: count - step] + alone[step:]
            for back in (0, *context):
                if step + back <= reach:
                    total += 2 * size[step + back, step:]
            row = after.setdefault(following, np.full(count, -np.inf))
            np.maximum(row[step:], total, out=row[step:])
        state = after
        largest = max(float(row.max()) for row in state.values())
        if largest == -math.inf:
            break
        best = max(best, largest)
    return best


def _moves(
    reach: int, separation: int, limit: int
) -> list[tuple[Distances, int, Distances]] | None:
    """Return what contexts become after a next step at each distance; None beyond ``limit``."""
    moves: list[tuple[Distances, int, Distances]] = []
    seen: set[Distances] = {()}
    waiting: list[Distances] = [()]
    while waiting:
        context = waiting.pop()
        for step in range(separation, reach + 1):
            following = tuple(
                step + back for back in (0, *context) if step + back <= reach - separation
            )
            moves.append((context, step, following))
            if following not in seen:
                seen.add(following)
                waiting.append(following)
        if len(moves) > limit or len(seen) > _MAX_CONTEXTS:
            return None
    return moves


def _dense(bands: Array) -> Array:
    count = bands.shape[1]
    gram = np.diag(bands[0])
    for distance in range(1, len(bands)):
        later = np.arange(distance, count)
        gram[later, later - distance] = gram[later - distance, later] = bands[distance, distance:]
    return gram


def _without_search(bands: Array, most: int, separation: int, high: float | None) -> Square:
    """Bound the square without a search: from below by orthogonal vectors.

    From above, the n-th step before another is at least n separations away, and its product with it
    at most the largest from there on.
    """
    largest = np.maximum.accumulate(np.abs(bands)[::-1], axis=0)[::-1]
    weights = bands[0] + 2 * largest[separation::separation][: most - 1].sum(axis=0)
    return Square(
        _spaced(bands[0], most, separation),
        _spaced(weights, most, separation) if high is None else high,
    )


def _spaced(weights: Array, most: int, separation: int) -> float:
    """Return the largest sum of weights over patterns."""
    rest = np.zeros(len(weights) + separation)
    for _ in range(most):
        rest[: len(weights)] = np.maximum.accumulate((weights + rest[separation:])[::-1])[::-1]
    return float(rest[0])


class _Search:
    """A best-first search over patterns from the left.

    Open patterns are bounded by what each further step can add. A further step i adds Γ_ii, twice
    its products with the steps so far, and twice those with steps after it: for each i the best
    such steps, chosen for i alone, which is a bound on any choice for all.
    """

    def __init__(self, gram: Array, most: int, separation: int, clash: bool) -> None:
        self._gram, self._size, self._most, self._separation = gram, np.abs(gram), most, separation
        self._clash = clash
        self._ahead = (
            2 * best_before(self._size[::-1, ::-1], most, separation)[::-1]
        )  # [step, how many after it]
        self._low = 0.0

    def run(self) -> Square:
        """Search until the bounds meet, or the work exceeds its limit."""
        count, ties, work = len(self._gram), itertools.count(), 0.0
        opened: list[tuple[float, int, tuple[int, ...], bool]] = [
            (-math.inf, next(ties), (), False)
        ]
        for start in range(0, min(self._separation, count), max(1, self._separation // 16)):
            self._try(range(start, count, self._separation)[: self._most])
        while opened:
            bound, _, steps, solved = heapq.heappop(opened)
            if -bound <= self._low * (1 + _CLOSE) or solved:
                return Square(self._low, max(self._low, -bound))
            if work > _MAX_WORK or len(opened) > _MAX_PUSHED:
                return Square(self._low, -bound)
            first = steps[-1] + self._separation if steps else 0
            if len(steps) == self._most or first >= count:
                heapq.heappush(opened, (-min(self._solve(steps), -bound), next(ties), steps, True))
                work += _SOLVING * len(steps) if self._clash else 0
                continue
            sofar = float(self._size[np.ix_(steps, steps)].sum())
            totals = self._totals(steps, first)
            work += totals.size
            self._try((*steps, *self._continued(totals, first)))
            bounds = sofar + totals[-1]
            for place in np.flatnonzero(bounds > self._low * (1 + _CLOSE)).tolist():
                if place >= first:
                    heapq.heappush(
                        opened,
                        (-min(float(bounds[place]), -bound), next(ties), (*steps, place), False),
                    )
        return Square(self._low, self._low)

    def _totals(self, steps: tuple[int, ...], first: int) -> Array:
        """Return at [n, i] a bound on what 1 + n further steps add of which i is the first."""
        count = len(self._size)
        weight = np.diag(self._size) + 2 * self._size[list(steps)].sum(axis=0)
        rest, rows = np.zeros(count + self._separation), []
        for after in range(self._most - len(steps)):
            total = weight + self._ahead[:, after] + rest[self._separation :]
            total[:first] = -np.inf
            rows.append(total)
            rest = np.concatenate(
                (np.maximum.accumulate(total[::-1])[::-1], np.zeros(self._separation))
            )
            rest = np.maximum(rest, 0.0)
        return np.array(rows)

    def _continued(self, totals: Array, first: int) -> list[int]:
        """Return steps that attain the bound, each for itself: a pattern to try."""
        steps: list[int] = []
        for row in totals[::-1]:
            if first >= len(row):
                break
            steps.append(first + int(np.argmax(row[first:])))
            first = steps[-1] + self._separation
        return steps

    def _block(self, steps: Iterable[int]) -> Array:
        places = list(steps)
        return self._gram[np.ix_(places, places)]

    def _try(self, steps: Iterable[int]) -> None:
        """Note what a pattern attains with vectors on one line, or with orthogonal ones."""
        block = self._block(steps)
        attained = float(np.abs(block).sum())
        if self._clash:
            attained = _on_a_line(block) if attained > self._low else 0.0
        self._low = max(self._low, attained)

    def _solve(self, steps: Iterable[int]) -> float:
        """Return the most that a pattern can attain."""
        found = largest_square(self._block(steps), self._low)
        self._low = max(self._low, found.low)
        return found.high


def best_before(size: Array, most: int, separation: int) -> Array:
    """Return at [i, n] the largest sum of entries of row i at n steps before i."""
    count = len(size)
    found = np.zeros((count, most))
    history: list[Array] = []  # the best sums of all rows with entries up to a place
    for place in range(count):
        before = history[place - separation] if place >= separation else np.zeros((count, most))
        taken = np.concatenate(
            (np.zeros((count, 1)), before[:, :-1] + size[:, place : place + 1]), axis=1
        )
        history.append(np.maximum(history[-1], taken) if history else taken)
        if place > separation:
            history[place - separation - 1] = np.empty((0, 0))  # not asked for again
        if place + separation < count:
            found[place + separation] = history[-1][place + separation]
    return found


def largest_square(gram: Array, known: float = 0.0) -> Square:
    """Return max Σ Γ_ij⟨u_i, u_j⟩ over vectors of the unit ball.

    There are as many dimensions as steps. It is the semidefinite programme max ⟨Γ, X⟩ with X ⪰ 0
    and X_ii = 1. Rows that each point where the others pull them are feasible; their pulls y,
    raised until diag(y) − Γ ⪰ 0, are a bound, Σ y_i, by weak duality. The search for it ends as
    soon as the bound is below what is ``known`` to be attained elsewhere.

    >>> clashing = np.array([[2.0, -1.0, -1.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, 2.0]])
    >>> [round(end, 6) for end in largest_square(clashing)]  # three vectors 120° apart
    [9.0, 9.0]
    """
    total = float(np.abs(gram).sum())
    if _one_sign(_bands_of(gram)):
        return Square(total, total)
    others = gram - np.diag(np.diag(gram))
    rows = np.random.default_rng(0).standard_normal(gram.shape)  # any start will do
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    low, high = 0.0, total
    for _ in range(_ROUNDS):
        for _, (place, weights) in itertools.product(range(_SWEEPS), enumerate(others)):
            pull = weights @ rows
            length = math.sqrt(pull @ pull)
            if length > 0:
                rows[place] = pull / length
        pulls = np.linalg.norm(others @ rows, axis=1) + np.diag(gram)
        least = float(np.linalg.eigvalsh(np.diag(pulls) - gram)[0])
        spare = 1e-14 * len(gram) * float(pulls.max())
        low = max(low, float((gram * (rows @ rows.T)).sum()))
        high = min(high, float(pulls.sum()) + len(gram) * (max(0.0, -least) + spare))
        if high <= max(low, known) * (1 + _CLOSE):
            break
    return Square(low, high)


def _on_a_line(gram: Array) -> float:
    """Return what some signs, or orthogonal vectors, attain."""
    signs, before = np.ones(len(gram)), -math.inf
    while (value := float(signs @ gram @ signs)) > before:
        before, signs = value, np.where(gram @ signs < 0, -1.0, 1.0)
    return max(before, float(np.trace(gram)))


def _bands_of(gram: Array) -> Array:
    bands = np.zeros_like(gram)
    for distance in range(len(gram)):
        bands[distance, distance:] = np.diagonal(gram, distance)
    return bands
