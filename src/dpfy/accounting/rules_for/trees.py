"""Trees: how often their nodes can see one record, exactly, by dynamic programming over nodes.

A node adds the square of how often its leaves see the record. Of steps b or more apart, a node of
at most b leaves sees one, so all positions in it are alike and the earliest leaves the most room:
within the smallest nodes of more than b leaves, every step can be taken as early as the one before
it allows. All that a node then does to the rest is how long the next step has to wait.
``docs/proofs/streams.md``, Lemma 4.

Tests: tests/accounting/rules_for/test_streams.py.
"""

from functools import cache

from dpfy.ledger.streams import Tree

Front = list[tuple[int, int]]
"""How long to wait after a node, and the sum of squares in it; no entry improves on another."""

_MAX_WORK = 1_000_000


class _TooMuch(Exception):
    """The number of cases exceeds the limit."""


def worst_count(tree: Tree, steps: int, most: int, separation: int) -> int | None:
    """Return the largest sum over nodes of the square of how often one record is in them.

    None if that is too much work.

    >>> worst_count(Tree(), steps=8, most=1, separation=1)  # one node on each of four levels
    4
    """
    work = 0

    def charge(amount: int) -> None:
        nonlocal work
        work += amount
        if work > _MAX_WORK:
            raise _TooMuch

    @cache
    def node(level: int, length: int, wait: int) -> dict[int, Front]:
        """Return the fronts of a node by how often it sees the record.

        Its first ``length`` leaves are steps, of which the first ``wait`` cannot be used.
        """
        if 1 << level <= 2 * separation and 1 << level >> 1 <= separation:
            return _smallest(level, length, wait, most, separation)
        half = 1 << (level - 1)
        parts = [(level - 1, min(length, half))] + (
            [(level - 1, length - half)] if length > half else []
        )
        return {
            count: [(after, value + count**2) for after, value in front]
            for count, front in in_turn(parts, {0: [(wait, 0)]}).items()
        }

    def in_turn(parts: list[tuple[int, int]], fronts: dict[int, Front]) -> dict[int, Front]:
        for level, length in parts:
            found: dict[int, dict[int, int]] = {}
            for count, front in fronts.items():
                for wait, value in front:
                    for more, ends in node(level, length, wait).items():
                        charge(1 + len(ends))
                        if count + more <= most:
                            best = found.setdefault(count + more, {})
                            for after, gain in ends:
                                best[after] = max(best.get(after, 0), value + gain)
            fronts = {count: _front(best) for count, best in found.items()}
        return fronts

    try:
        fronts = in_turn(_subtrees(tree, steps), {0: [(0, 0)]})
    except _TooMuch:
        return None
    return max(value for front in fronts.values() for _, value in front)


def _subtrees(tree: Tree, steps: int) -> list[tuple[int, int]]:
    """Return the largest released nodes in order: their levels and how many leaves are steps."""
    size = min(tree.restart or steps, steps)
    found: list[tuple[int, int]] = []
    for first in range(0, steps, size):
        length = min(size, steps - first)
        if tree.completed:
            found.append(((length - 1).bit_length(), length))
        else:
            found.extend(
                (level, 1 << level)
                for level in reversed(range(length.bit_length()))
                if length >> level & 1
            )
    return found


def _smallest(level: int, length: int, wait: int, most: int, separation: int) -> dict[int, Front]:
    """Return the fronts of a node whose halves see a record once.

    Each participation counts on all levels below, and their number squared on the node's own.
    """
    fronts: dict[int, Front] = {0: [(max(wait - length, 0), 0)]}
    for count, place in enumerate(range(wait, length, separation), start=1):
        if count <= most:
            fronts[count] = [(max(place + separation - length, 0), count * level + count**2)]
    return fronts


def _front(best: dict[int, int]) -> Front:
    """Return the entries without those that wait longer for no larger sum."""
    kept: Front = []
    for after, value in sorted(best.items()):
        if not kept or value > kept[-1][1]:
            kept.append((after, value))
    return kept
