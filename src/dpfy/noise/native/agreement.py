"""Whether compiled kernels give what numpy gives.

Tests: tests/noise/native/test_kernels.py, tests/noise/test_past.py.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from dpfy.noise import rejection
from dpfy.noise.past import Band, Nodes, Past, Sums
from dpfy.noise.random_stream import Parts
from dpfy.noise.rejection_table import CELL_BITS, Floats, rejection_table
from dpfy.noise.vector import Integers, Piece, Vector

if TYPE_CHECKING:
    from dpfy.noise.native.kernels import InC, InNumpy, Kernels

_TESTED = rejection.PART + 4096  # values on which compiled code has to agree with numpy
# How much the two evaluations of the curve may differ, relative to it: far less than
# rejection.MARGIN.
_CLOSE = 2.0**-38
_SPREAD, _UNIT = 48.7, 2.0**-33


def agree(kernels: "InC", others: "InNumpy") -> bool:
    """Return whether both give the same results; a reordering compiler would break the lattice.

    Args:
        kernels: The compiled ones.
        others: Those of numpy.
    """
    parts, table = Parts(b"a key for anybody: nothing of it"), rejection_table(_SPREAD)
    middle = np.linspace(-table.reach, table.reach, 100) * 2.0**CELL_BITS
    return (
        all(map(np.array_equal, _results(kernels, parts), _results(others, parts)))
        and all(map(np.array_equal, _correlated(kernels, parts), _correlated(others, parts)))
        and all(
            map(
                partial(np.allclose, rtol=2.0**-40),
                _in_any_order(kernels, parts),
                _in_any_order(others, parts),
            )
        )
        and np.allclose(
            kernels.curve(middle, table), rejection.curve_at(middle, table), rtol=_CLOSE, atol=0
        )
    )


def _words(parts: Parts) -> Integers:
    """Return whole numbers of any size."""
    return parts.stream(0).words(_TESTED).view(np.int32)[:_TESTED]


def _results(these: "Kernels", parts: Parts) -> list[npt.NDArray[Any]]:
    """Return what must be the same to the last bit."""
    words = _words(parts)
    sums = torch.from_numpy(words / 3)
    released = (sums * 2.0**-20).float().repeat(3, 1)
    values, ends = torch.stack([sums] * 3), (1000, _TESTED)
    noise = these.draw(np.empty(_TESTED), _SPREAD, parts)
    places: list[npt.NDArray[Any]] = []
    for each in (
        Piece(0, values[0]),
        Piece(0, values[1], 0.3, released[0]),
        Piece(0, released[1], 0.3, released[1]),
        Piece(0, released[1], 0.3, released[2]),
    ):
        these.add(Vector([each], _UNIT, 0.5), 0, noise.copy())
    two = [Piece(begin, values[2, begin:end]) for begin, end in zip((0, *ends), ends, strict=False)]
    these.draw_and_add(Vector(two, _UNIT, 0.5), 0, np.empty(_TESTED), _SPREAD, parts)
    small, single = sums * 2.0**-20, (sums * 2.0**-20).float()
    # some noise takes more than 32 bits in the shorter steps, and none in the others
    for cells in (2.0**5, 2.0**12):
        steps = these.draw_steps(np.empty(_TESTED, dtype=np.int32), _SPREAD, cells, parts)
        some = [Piece(0, small[:1000]), Piece(1000, single[1000:], 0.3, single[1000:])]
        these.add_steps(Vector(some, _UNIT, cells * _UNIT), 0, steps)
        places += [steps.low, steps.places, steps.rests]
    totals = these.totals([torch.from_numpy(words), torch.from_numpy(words[:1000])])
    finite = []
    for value in (math.inf, -math.inf, math.nan, 3e38):
        single[7] = value
        finite.append(these.are_finite([single[10:], single]))
    found = [small.numpy(), single.numpy(), *places, np.array(totals), np.array(finite)]
    return [noise, values.numpy(), released.numpy(), *found]


def _correlated(these: "Kernels", parts: Parts) -> list[npt.NDArray[Any]]:
    """Return what vectors with a past become, and what is remembered of them."""
    words, cells = _words(parts), 2.0**9
    ring, real = np.stack([words, words[::-1]]), np.stack([words, words[::-1]]).astype(np.float64)
    sums, nodes = real.copy(), real.copy()
    weights, decays, limits = np.array([[0.7, -0.3], [0.9, 0.3], [2.0**29, 2.0**40]])
    values = torch.zeros(3, 3, _TESTED, dtype=torch.float64)
    pasts: list[Past] = [
        Band(1.0, weights, [*ring], ring[1], 4.0),
        Sums(1.0, weights, [*sums], decays, limits),
        Nodes(1.0, [*nodes], nodes[1]),
    ]
    steps = these.draw_steps(np.empty(_TESTED, dtype=np.int32), _SPREAD, cells, parts)
    for past, rows in zip(pasts, values, strict=True):
        first, second, third = (
            Vector([Piece(0, row[:1000]), Piece(1000, row[1000:])], _UNIT, cells * _UNIT, past)
            for row in rows
        )
        these.draw_and_add(first, 0, np.empty(_TESTED), _SPREAD, parts)
        these.add_steps(second, 0, steps)
        these.add(third, 0, these.draw(np.empty(_TESTED), _SPREAD, parts))
    return [values.numpy(), ring, sums, nodes]


def _in_any_order(these: "Kernels", parts: Parts) -> list[Floats]:
    """Return what is the same up to rounding."""
    rows = (_words(parts)[:4096] * 2.0**-20).astype(np.float32).reshape(2, -1, 64)
    return [these.measure(rows), these.weigh(rows, np.arange(9), np.linspace(1.0, 2.0, 9))]
