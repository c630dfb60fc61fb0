"""The composition: δ from a few hundred frequencies of the tilted loss, every error charged.

For any tilt λ > 0 and z = λ + iu, with K(z) = Σ log E e^{zL} over the steps,

    δ(ε) = (1/2π) ∫ exp(K(z) − zε) / (z(z + 1)) du.

Three facts make a sum of this integral a bound (``docs/proofs/accounting-pld.md``): the trapezoidal
sum with step 2π/W is *exactly* Σ_k e^{λkW}·δ(ε + kW), whose terms are positive; one more Gaussian
mechanism of tiny variance v makes the integrand decay and moves δ by no more than v·e^{v/8} times
the density of the loss; and what float64 does to a product of transforms is bounded factor by
factor.

Tests: tests/accounting/pld/test_soundness.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfy.accounting.pld.discretize import EPS, Array, Block

Complex = NDArray[np.complex128]

_VANISHED = 1e-300
_STEEP = 600.0  # e^600 is a float
_CHUNK = 128  # losses per matrix product
_MANY = 8  # rows, from which on exponentials cost less than products
_SERIES = 1e-9  # what a series may leave out of log δ, per block
_NEGLIGIBLE = (
    -50.0
)  # log of a modulus, relative to that at frequency 0, below which factors need not be multiplied


class Moments(NamedTuple):
    """An upper bound of K(λ) = log E e^{λL} on a list of tilts.

    Args:
        tilts: The values of λ.
        log_moment: Upper bounds on K.
        mean: First derivatives of K, roughly.
        variance: Second derivatives of K, roughly.
    """

    tilts: Array
    log_moment: Array
    mean: Array
    variance: Array


def moments(blocks: Sequence[Block], gauss: float, tilts: Array) -> Moments:
    """Bound K of steps followed by a Gaussian mechanism of μ² = ``gauss`` at real tilts.

    The blocks must have no offsets.
    """
    total, mean, variance = (
        gauss * tilts * (tilts + 1) / 2,
        gauss * (tilts + 0.5),
        np.full_like(tilts, gauss),
    )
    for block in blocks:
        rises = np.outer(block.loss, tilts)
        peak = np.maximum(rises.max(axis=0), 0.0)
        peak[peak < 1] = 0.0  # then e^x − 1 is summed to relative precision
        grown, faded = np.exp(rises - peak), np.exp(-peak)
        growth = np.where(peak == 0, np.expm1(np.minimum(rises, 1.0)), grown - faded)
        error = (block.mass_error + EPS * (16 + len(rises)) * block.mass) @ np.abs(growth)
        if block.shift_error is not None:
            error += np.abs(tilts) * (block.shift_error @ grown)
        excess = block.mass @ growth + error
        value = excess + faded * block.total[:, None]
        each = np.where(
            peak == 0,
            np.log1p(np.maximum(excess + (block.total - 1)[:, None], -0.9)),
            np.log(np.maximum(value, 1e-300)),
        )
        steps = float(block.times.sum())
        total = total + block.times @ each + peak * steps
        weight = grown.T * (block.times @ block.mass / steps)
        weight /= np.maximum(weight.sum(axis=1), 1e-300)[:, None]
        first = weight @ block.loss
        mean = mean + steps * first
        variance = variance + steps * np.maximum(weight @ block.loss**2 - first**2, 0.0)
    return Moments(tilts, total, mean, variance)


def reversed_direction(block: Block) -> Block:
    """Return the opposite direction of a block from above: its losses seen from the other side."""
    if block.symmetric:
        return block
    back = np.exp(-block.loss)
    error = (block.mass_error + 4 * EPS * (1 + np.abs(block.loss)) * block.mass) * back
    shift = block.shift_error * back if block.shift_error is not None else None
    return Block(
        block.times,
        -block.loss,
        None,
        block.mass * back,
        1 - block.beyond,
        block.beyond,
        block.infinite,
        block.beyond,
        error,
        shift,
    )


def stacked(blocks: Sequence[Block]) -> Block:
    """Return several blocks on the same losses as one."""
    joined = {
        field.name: np.concatenate([getattr(block, field.name) for block in blocks])
        for field in fields(Block)
        if field.name not in ("loss", "offset", "symmetric")
    }
    return replace(blocks[0], symmetric=all(block.symmetric for block in blocks), **joined)


def capped(block: Block, top: float) -> Block:
    """Move losses above ``top`` to it and to ∞, such that both distributions keep their masses.

    δ of a step shrinks at no ε, and stays what it is below ``top``.
    """
    stays = np.exp(-np.maximum(block.loss - top, 0.0))
    infinite = block.infinite + block.mass @ (1 - stays)
    return replace(
        block,
        loss=np.minimum(block.loss, top),
        mass=block.mass * stays,
        total=1 - infinite,
        infinite=infinite,
    )


@dataclass(frozen=True)
class Line:
    """The contour: a vertical line in the complex plane.

    Args:
        tilt: Its real part λ.
        window: W, where the frequencies are 2πm/W.
        smoothing: The variance v of the Gaussian mechanism that is added.
        count: How many frequencies there are.
    """

    tilt: float
    window: float
    smoothing: float
    count: int

    @property
    def step(self) -> float:
        """The distance between frequencies."""
        return 2 * math.pi / self.window


class Spectrum:
    """A composition on one line, which bounds δ at any ε.

    Args:
        blocks: The discretized steps.
        gauss: μ² of all full-batch Gaussian steps together.
        line: The contour.
    """

    def __init__(self, blocks: Sequence[Block], gauss: float, line: Line) -> None:
        self.line = line
        spread = gauss + line.smoothing
        frequency: Array = line.step * np.arange(line.count, dtype=np.float64)
        decay = -spread * frequency**2 / 2
        log_value = decay + 1j * spread * frequency * (line.tilt + 0.5)
        slack = np.zeros_like(frequency)  # log of (bound on the modulus) / (modulus)
        self.height = spread * line.tilt * (line.tilt + 1) / 2
        self.height_error = EPS * (8 + self.height)
        dropped = 0.0
        turner = None
        for block in blocks:
            if turner is None or turner.loss is not block.loss:
                turner = _Turner(block.loss, line.step)
            height, wrong, logs, lost = _transform(block, line, len(frequency), turner)
            self.height += height
            self.height_error += wrong
            log_value, slack = log_value + logs, slack + lost
            alive = int(np.flatnonzero(log_value.real + slack > _NEGLIGIBLE)[-1]) + 1
            dropped += float(
                np.exp(np.minimum(log_value.real + slack, 0.0))[alive:].sum()
            )  # other factors are below 1
            log_value, slack, frequency = log_value[:alive], slack[:alive], frequency[:alive]
        dropped *= math.exp(slack[0])
        weight = np.full(len(frequency), line.step / math.pi)
        weight[0] /= 2
        z = line.tilt + 1j * frequency
        self.frequency = frequency
        self.density_terms: Complex = weight * np.exp(log_value)
        self.terms: Complex = self.density_terms / (z * (z + 1))
        size, density_size = np.abs(self.terms), np.abs(self.density_terms)
        work = EPS * (16 + len(frequency) + 4 * len(blocks) * np.abs(log_value)) + np.expm1(
            np.minimum(slack, 700.0)
        )
        self.error = float(size @ work)
        self.density_error = float(density_size @ work)
        self.phase_error = 4 * EPS * float(size @ frequency)
        self.density_phase_error = 4 * EPS * float(density_size @ frequency)
        end = line.step * (line.count - 0.5)
        beyond = math.exp(slack[0] - spread * end**2 / 2) / (math.pi * spread * end)
        self.density_error += dropped * line.step / math.pi + beyond
        self.error += (
            dropped * line.step / (math.pi * line.tilt * (line.tilt + 1)) + beyond / end**2
        )

    def delta_above(self, epsilon: float) -> float:
        """Return the log of an upper bound on δ(ε) of the finite losses."""
        return _log(
            self._sum(self.terms, epsilon) + self.error + self.phase_error * abs(epsilon),
            self._scale(epsilon),
        )

    def delta_below(self, epsilon: float, beyond: Moments) -> float:
        """Return a lower bound on δ(ε), where ``beyond`` bounds the moments from above."""
        value = self._sum(self.terms, epsilon) - self.error - self.phase_error * abs(epsilon)
        logarithm = self._scale(epsilon) - 2 * self._scale_error(epsilon)
        whole = math.exp(min(logarithm + math.log(value), 1.0)) if value > 0 else 0.0
        return (
            whole - math.exp(min(0.0, self.smoothing_cost(epsilon))) - self._alias(epsilon, beyond)
        )

    def smoothing_cost(self, epsilon: float) -> float:
        """Return the log of the most that the smoothing can have added to δ(ε)."""
        line = self.line
        density = (
            self._sum(self.density_terms, epsilon)
            + self.density_error
            + self.density_phase_error * abs(epsilon)
        )
        return _log(density, self._scale(epsilon)) + math.log(line.smoothing) + line.smoothing / 8

    def _sum(self, terms: Complex, epsilon: float) -> float:
        angle = self.frequency * epsilon
        return float(terms.real @ np.cos(angle) + terms.imag @ np.sin(angle))

    def _scale(self, epsilon: float) -> float:
        return self.height - self.line.tilt * epsilon + self._scale_error(epsilon)

    def _scale_error(self, epsilon: float) -> float:
        return self.height_error + EPS * 4 * (abs(self.height) + self.line.tilt * abs(epsilon))

    def _alias(self, epsilon: float, beyond: Moments) -> float:
        """Bound the terms k ≠ 0 of the trapezoidal sum: δ ≤ 1 left, Chernoff's bound right."""
        line = self.line
        left = math.exp(-line.tilt * line.window)
        steeper = beyond.tilts > line.tilt * 1.001
        tilts = beyond.tilts[steeper]
        if not len(tilts):
            return 1.0
        tops = (
            beyond.log_moment[steeper] + line.smoothing * tilts * (tilts + 1) / 2 - tilts * epsilon
        )
        fall = (tilts - line.tilt) * line.window
        right = np.min(tops - fall - np.log(-np.expm1(-fall)))
        return left / (1 - left) + math.exp(min(float(right), 1.0))


def _transform(
    block: Block, line: Line, count: int, turner: "_Turner"
) -> tuple[float, float, Complex, Array]:
    """Transform a block: log E e^{λL} and its error, then the rest for each frequency.

    For each frequency it returns the log of the ratio to frequency 0, and a bound on the error of
    its modulus. All sums are of e^{zL} − 1 or of e^{iuL} − 1, weighted: the total mass is known
    exactly, so that the errors of a step are in proportion to its losses, and millions of nearly
    free steps lose nothing.
    """
    block, rise = _steep(block, line.tilt)
    times, loss = block.times, block.loss if block.offset is None else block.loss + block.offset
    growth = np.expm1(rise)
    rows = block.mass * (1 + growth)
    fuzz = (
        block.mass_error
        + EPS * (24 + turner.terms(len(rows)) + np.abs(line.tilt * loss)) * block.mass
    )
    wrong = (fuzz * np.abs(growth)).sum(axis=1)
    fuzz = fuzz * (1 + growth)
    start = block.total + (block.mass * growth).sum(axis=1)
    frequency: Array = line.step * np.arange(count, dtype=np.float64)
    sums, cut = _turned_sums(block, rows, frequency, turner, times / start)
    each = sums / start[:, None]
    modulus = np.maximum(np.abs(1 + each), _VANISHED)
    near = np.log1p(np.maximum(each.real * (2 + each.real) + each.imag**2, -0.75)) / 2
    logs = np.where(modulus > 0.5, near, np.log(modulus)) + 1j * np.arctan2(
        each.imag, 1 + each.real
    )
    moved = (
        ((1 + growth) * block.shift_error).sum(axis=1)
        if block.shift_error is not None
        else np.zeros_like(start)
    )
    turning = np.minimum(
        4 * fuzz.sum(axis=1)[:, None], np.outer((fuzz * np.abs(loss)).sum(axis=1), frequency)
    )
    error = (turning + np.outer(moved, line.tilt + frequency) + cut) / start[
        :, None
    ] + 8 * EPS * np.abs(each)
    slack = times @ np.log1p(error / modulus)
    height = float(times @ np.log(start))
    return (
        height,
        float(times @ -np.log1p(-(wrong + line.tilt * moved) / start)),
        times @ logs,
        slack,
    )


def _steep(block: Block, tilt: float) -> tuple[Block, Array]:
    """Return the block and λL at each loss, with factors of e^λL above e^600 moved into the masses.

    The masses are tiny there.
    """
    rise = tilt * (block.loss if block.offset is None else block.loss + block.offset)
    excess = np.maximum(rise - _STEEP, 0.0)
    if not excess.any():
        return block, rise
    more = np.exp(excess)
    shift_error = block.shift_error * more if block.shift_error is not None else None
    return replace(
        block, mass=block.mass * more, mass_error=block.mass_error * more, shift_error=shift_error
    ), rise - excess


def _turned_sums(
    block: Block, rows: Array, frequency: Array, turner: "_Turner", scale: Array
) -> tuple[Complex, Array]:
    """Return Σ rows·(e^{iuL} − 1) at all frequencies, and a bound on what the series leaves out.

    Where losses differ from row to row, e^{iu(l + d)} − 1 is expanded in iud; |e^{iud} − Σ_{k ≤ n}
    (iud)^k/k!| is at most |ud|^{n + 1}/(n + 1)!. Where that does not get small, every row is
    transformed by itself.
    """
    count = len(frequency)
    if block.offset is None:
        return turner.sums(rows, count), np.zeros((1, count))
    eighth = np.square(np.square(np.square(block.offset)))
    if scale @ (rows * eighth).sum(axis=1) * _term(frequency[-1], 8) > _SERIES:
        loss = block.loss + block.offset
        return np.concatenate(
            [
                _Turner(own, turner.step).sums(row[None], count)
                for own, row in zip(loss, rows, strict=True)
            ]
        ), np.zeros((1, count))
    sums, powers = turner.sums(rows, count), rows * block.offset
    size = np.abs(powers).sum(axis=1)
    turn = np.minimum(np.abs(block.offset).max() * frequency, 50.0)
    rounding = np.outer(size, 4 * EPS * (24 + turner.terms(len(rows))) * frequency * np.exp(turn))
    order = 1
    while scale @ size * _term(frequency[-1], order) > _SERIES:
        sums = sums + 1j**order * _term(frequency, order) * (
            turner.sums(powers, count) + powers.sum(axis=1)[:, None]
        )
        powers, order = powers * block.offset, order + 1
        size = np.abs(powers).sum(axis=1)
    return sums, np.outer(size, _term(frequency, order)) + rounding


def _term(frequency: Array, order: int) -> Array:
    term: Array = frequency**order / math.factorial(order)
    return term


class _Turner:
    """Sums Σ rows·(e^{iuL} − 1) at multiples of a step, for any rows on the same losses."""

    def __init__(self, loss: Array, step: float) -> None:
        self.loss, self.step = loss, step
        self._parts: tuple[Array, Array] | None = None

    def sums(self, rows: Array, count: int) -> Complex:
        """Return the sums at the first ``count`` multiples of the step."""
        if len(rows) < _MANY:
            return self._few(rows, count)
        if self._parts is None:  # later calls ask for no more frequencies
            turned = _turned(np.outer(self.loss, self.step * np.arange(count)))
            self._parts = turned.real.copy(), turned.imag.copy()
        real, imaginary = (rows @ part[:, :count] for part in self._parts)
        return real + 1j * imaginary

    def _few(self, rows: Array, count: int) -> Complex:
        """Return the sums for few rows, from two short lists of exponentials.

        With u = a + b, e^{iuL} − 1 = (e^{iaL} − 1)·e^{ibL} + (e^{ibL} − 1).
        """
        wide = max(1, math.isqrt(count))
        long = -(-count // wide)
        values = np.zeros((len(rows) * long, wide), dtype=np.complex128)
        for first in range(0, len(self.loss), _CHUNK):  # short sums, then a sum of sums
            part, mass = self.loss[first : first + _CHUNK], rows[:, first : first + _CHUNK]
            inner = _turned(np.outer(part, self.step * np.arange(wide)))
            outer = _turned(np.outer(self.step * wide * np.arange(long), part))
            values += np.repeat(mass @ inner, long, axis=0)
            values += (mass[:, None, :] * outer).reshape(-1, len(part)) @ (inner + 1)
        result: Complex = values.reshape(len(rows), -1)[:, :count]
        return result

    def terms(self, rows: int) -> int:
        """Return the number of roundings that a sum goes through."""
        count = len(self.loss)
        return count if rows >= _MANY else min(count, _CHUNK) + -(-count // _CHUNK)


def _turned(angle: Array) -> Complex:
    """Return e^{i·angle} − 1, to relative precision."""
    half = np.sin(angle / 2)
    turned: Complex = 2j * half * (np.cos(angle / 2) + 1j * half)
    return turned


def _log(value: float, scale: float) -> float:
    return scale + math.log(value) if value > 0 else -math.inf
