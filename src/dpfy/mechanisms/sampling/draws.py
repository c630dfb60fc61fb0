"""Draw integers, orders and subsets from a stream of words, uniformly and without any bias.

Tests: tests/mechanisms/sampling/test_policies.py.
"""

import numpy as np
import numpy.typing as npt

from dpfy.noise.random_stream import SecureStream

Indices = npt.NDArray[np.int64]


def integers(stream: SecureStream, bound: int, count: int) -> Indices:
    """Return ``count`` independent integers, each uniform on ``range(bound)``.

    Words in the last, incomplete multiple of ``bound`` are rejected, so that all remainders are
    equally likely.
    """
    complete = 2**64 - 2**64 % bound
    kept = np.empty(0, dtype=np.uint64)
    while len(kept) < count:
        words = stream.words(count - len(kept))
        if complete < 2**64:
            words = words[words < np.uint64(complete)]
        kept = np.concatenate((kept, words))
    return (kept % np.uint64(bound)).astype(np.int64)


def order(stream: SecureStream, n: int) -> Indices:
    """Return a uniformly random order of ``range(n)``.

    Every index gets a uniform real, given word by word, and they are sorted by it: first by one
    word each; indices that share it are put in a random order by further words.
    """
    words = stream.words(n)
    result = np.argsort(words, kind="stable").astype(np.int64)
    words = words[result]
    ties = np.flatnonzero(words[1:] == words[:-1])
    for run in np.split(ties, np.flatnonzero(np.diff(ties) > 1) + 1) if len(ties) else ():
        tied = slice(run[0], run[-1] + 2)
        result[tied] = result[tied][order(stream, len(run) + 1)]
    return result


def subset(stream: SecureStream, size: int, n: int) -> Indices:
    """Return the sorted indices of a uniformly random set of ``size`` of ``range(n)``.

    The first ``size`` different values of independent uniform integers are such a set, by symmetry;
    so are the first of a random order, which costs less if the set is large.
    """
    if 8 * size > n:
        return np.sort(order(stream, n)[:size])
    values = np.empty(0, dtype=np.int64)
    while len(values) < size:  # asking for no more than are missing never has to choose
        values = np.unique(np.concatenate((values, integers(stream, n, size - len(values)))))
    return values
