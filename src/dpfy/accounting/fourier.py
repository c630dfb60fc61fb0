"""δ of a composition at one ε from a few hundred frequencies of its tilted loss, with everything left out charged.

For any tilt λ > 0 and z = λ + iu, with K(z) = Σ log E e^{zL} over the steps,

    δ(ε) = (1/2π) ∫ exp(K(z) − zε) / (z(z + 1)) du.

Three facts make a sum of this integral a bound (``docs/proofs/accounting-pld.md``): the trapezoidal sum with step 2π/W
is *exactly* Σ_k e^{λkW}·δ(ε + kW), whose terms are positive; one more Gaussian mechanism of tiny variance v makes the
integrand decay and moves δ by no more than v·e^{v/8} times the density of the loss; and what float64 does to a product
of transforms is bounded factor by factor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpfy.accounting.atoms import EPS, Array, Block

Complex = NDArray[np.complex128]

_VANISHED = 1e-300
_CHUNK = 128  # atoms per matrix product
_NEGLIGIBLE = -50.0  # log of a modulus, relative to that at frequency 0, below which factors need not be multiplied


@dataclass(frozen=True)
class Group:
    """Steps on one block of atoms: step i occurs ``times[i]`` times and is ``shares[i]`` of the block's rows."""

    block: Block
    shares: Array
    times: Array

    @property
    def infinite(self) -> float:
        """The mass at ∞, over all steps."""
        return float(self.times @ (self.shares @ self.block.infinite))

    @property
    def reach(self) -> float:
        """How much of a row's error a step may carry."""
        return float(np.abs(self.shares).sum(axis=1).max())

    @property
    def steps(self) -> float:
        """How many steps there are."""
        return float(self.times.sum())


def repeated(block: Block, times: float) -> Group:
    """One kind of step, ``times`` times."""
    return Group(block, np.ones((1, 1)), np.array([float(times)]))


@dataclass(frozen=True)
class Moments:
    """An upper bound of K on a list of tilts, with rough first and second derivatives."""

    tilts: Array
    log_moment: Array
    mean: Array
    variance: Array


def moments(groups: Sequence[Group], gauss: float, tilts: Array) -> Moments:
    """K of steps followed by a Gaussian mechanism of variance ``gauss`` (μ²) at real tilts."""
    total, mean, variance = gauss * tilts * (tilts + 1) / 2, gauss * (tilts + 0.5), np.full_like(tilts, gauss)
    for group in groups:
        block = group.block
        rises = np.outer(tilts, block.loss)
        peak = np.maximum(rises.max(axis=1), 0.0)
        peak[peak < 1] = 0.0  # then e^x − 1 is summed to relative precision
        grown, faded = np.exp(rises - peak[:, None]), np.exp(-peak)
        growth = np.where(peak[:, None] == 0, np.expm1(np.minimum(rises, 1.0)), grown - faded[:, None])
        reach = np.abs(block.mass).max(axis=0)
        error = np.abs(growth) @ (block.mass_error + EPS * (16 + len(reach)) * reach) + tilts * (
            grown @ block.shift_error)
        excess = (growth @ block.mass.T) @ group.shares.T + group.reach * error[:, None]
        value = excess + faded[:, None] * (group.shares @ block.total)
        each = np.where(peak[:, None] == 0, np.log1p(np.maximum(excess - group.shares @ block.infinite, -0.9)),
                        np.log(np.maximum(value, 1e-300)))
        total = total + each @ group.times + peak * group.steps
        average = block.mass.T @ (group.times @ group.shares / group.steps)
        weight = grown * average
        weight /= weight.sum(axis=1)[:, None]
        first = weight @ block.loss
        mean = mean + group.steps * first
        variance = variance + group.steps * np.maximum(weight @ block.loss**2 - first**2, 0.0)
    return Moments(tilts, total, mean, variance)


@dataclass(frozen=True)
class Line:
    """A tilted line in the complex plane: tilt λ, window W (frequencies 2πm/W), smoothing variance v, how many m."""

    tilt: float
    window: float
    smoothing: float
    count: int

    @property
    def step(self) -> float:
        return 2 * math.pi / self.window


class Spectrum:
    """A composed law on one line; evaluates bounds on δ at any ε."""

    def __init__(self, groups: Sequence[Group], gauss: float, line: Line) -> None:
        self.line = line
        spread = gauss + line.smoothing
        frequency: Array = line.step * np.arange(line.count, dtype=np.float64)
        decay = -spread * frequency**2 / 2
        log_value = decay + 1j * spread * frequency * (line.tilt + 0.5)
        slack = np.zeros_like(frequency)  # log of (bound on the modulus) / (modulus)
        self.height = spread * line.tilt * (line.tilt + 1) / 2
        self.height_error = EPS * (8 + self.height)
        dropped = 0.0
        for group in groups:
            height, wrong, logs, lost = _transform(group, line, len(frequency))
            self.height += height
            self.height_error += wrong
            log_value, slack = log_value + logs, slack + lost
            alive = int(np.flatnonzero(log_value.real + slack > _NEGLIGIBLE)[-1]) + 1
            dropped += float(np.exp(np.minimum(log_value.real + slack, 0.0))[alive:].sum())  # other factors are below 1
            log_value, slack, frequency = log_value[:alive], slack[:alive], frequency[:alive]
        dropped *= math.exp(slack[0])
        weight = np.full(len(frequency), line.step / math.pi)
        weight[0] /= 2
        z = line.tilt + 1j * frequency
        self.frequency = frequency
        self.density_terms: Complex = weight * np.exp(log_value)
        self.terms: Complex = self.density_terms / (z * (z + 1))
        size, density_size = np.abs(self.terms), np.abs(self.density_terms)
        work = EPS * (16 + len(frequency) + 4 * len(groups) * np.abs(log_value)) + np.expm1(slack)
        self.error = float(size @ work)
        self.density_error = float(density_size @ work)
        self.phase_error = 4 * EPS * float(size @ frequency)
        self.density_phase_error = 4 * EPS * float(density_size @ frequency)
        end = line.step * (line.count - 0.5)
        beyond = math.exp(slack[0] - spread * end**2 / 2) / (math.pi * spread * end)
        self.density_error += dropped * line.step / math.pi + beyond
        self.error += dropped * line.step / (math.pi * line.tilt * (line.tilt + 1)) + beyond / end**2

    def delta_above(self, epsilon: float) -> float:
        """An upper bound on δ(ε) of the finite part of the law, logarithm."""
        return _log(self._sum(self.terms, epsilon) + self.error + self.phase_error * abs(epsilon), self._scale(epsilon))

    def delta_below(self, epsilon: float, beyond: Moments) -> float:
        """A lower bound on δ(ε); ``beyond`` bounds the moments of the law from above."""
        value = self._sum(self.terms, epsilon) - self.error - self.phase_error * abs(epsilon)
        logarithm = self._scale(epsilon) - 2 * self._scale_error(epsilon)
        whole = math.exp(min(logarithm + math.log(value), 1.0)) if value > 0 else 0.0
        return whole - math.exp(min(0.0, self.smoothing_cost(epsilon))) - self._alias(epsilon, beyond)

    def smoothing_cost(self, epsilon: float) -> float:
        """What the smoothing may have added to δ(ε), logarithm."""
        line = self.line
        density = self._sum(self.density_terms, epsilon) + self.density_error + self.density_phase_error * abs(epsilon)
        return _log(density, self._scale(epsilon)) + math.log(line.smoothing) + line.smoothing / 8

    def _sum(self, terms: Complex, epsilon: float) -> float:
        angle = self.frequency * epsilon
        return float(terms.real @ np.cos(angle) + terms.imag @ np.sin(angle))

    def _scale(self, epsilon: float) -> float:
        return self.height - self.line.tilt * epsilon + self._scale_error(epsilon)

    def _scale_error(self, epsilon: float) -> float:
        return self.height_error + EPS * 4 * (abs(self.height) + self.line.tilt * abs(epsilon))

    def _alias(self, epsilon: float, beyond: Moments) -> float:
        """The terms k ≠ 0 of the trapezoidal sum: δ ≤ 1 on the left, Chernoff on the right."""
        line = self.line
        left = math.exp(-line.tilt * line.window)
        steeper = beyond.tilts > line.tilt * 1.001
        tilts = beyond.tilts[steeper]
        if not len(tilts):
            return 1.0
        tops = beyond.log_moment[steeper] + line.smoothing * tilts * (tilts + 1) / 2 - tilts * epsilon
        fall = (tilts - line.tilt) * line.window
        right = np.min(tops - fall - np.log(-np.expm1(-fall)))
        return left / (1 - left) + math.exp(min(float(right), 1.0))


def _transform(group: Group, line: Line, count: int) -> tuple[float, float, Complex, Array]:
    """log E e^{λL} over the group and its error; per frequency, the log of the ratio to it and the modulus' slack.

    All sums are of e^{zL} − 1 or of e^{iuL} − 1, weighted: the total mass is known exactly, so that the errors of a
    step are in proportion to its losses, and millions of nearly free steps lose nothing.
    """
    block, times = group.block, group.times
    growth = np.expm1(line.tilt * block.loss)
    rows = block.mass * (1 + growth)
    fuzz = group.reach * (block.mass_error + EPS * (24 + _terms(len(growth))) * np.abs(block.mass).max(axis=0))
    start = group.shares @ (block.total + (block.mass * growth).sum(axis=1))
    each = (group.shares @ _centred(block.loss, rows, line.step, count)) / start[:, None]
    modulus = np.maximum(np.abs(1 + each), _VANISHED)
    near = np.log1p(np.maximum(each.real * (2 + each.real) + each.imag**2, -0.75)) / 2
    logs = np.where(modulus > 0.5, near, np.log(modulus)) + 1j * np.arctan2(each.imag, 1 + each.real)
    frequency = line.step * np.arange(count)
    moved = group.reach * float((1 + growth) @ block.shift_error)
    turning = np.minimum(4 * float(fuzz @ (1 + growth)), frequency * float((fuzz * (1 + growth)) @ np.abs(block.loss)))
    error = (turning + moved * (line.tilt + frequency)) / start[:, None] + 8 * EPS * np.abs(each)
    slack = times @ np.log1p(error / modulus)
    wrong = (float(fuzz @ np.abs(growth)) + line.tilt * moved) / start
    height = float(times @ np.log(start))
    return height, float(times @ -np.log1p(-wrong)), times @ logs, slack


def _centred(loss: Array, rows: Array, step: float, count: int) -> Complex:
    """Σ rows·(e^{iuL} − 1) at the first ``count`` multiples of ``step``, as one matrix product.

    With u = a + b, e^{iuL} − 1 = (e^{iaL} − 1)·e^{ibL} + (e^{ibL} − 1): two short lists of exponentials serve all u.
    """
    wide = max(1, math.isqrt(count))
    long = -(-count // wide)
    values = np.zeros((long, len(rows), wide), dtype=np.complex128)
    for first in range(0, len(loss), _CHUNK):  # short sums, then a sum of sums: errors grow like _terms
        part, mass = loss[first:first + _CHUNK], rows[:, first:first + _CHUNK]
        inner = _turned(np.outer(part, step * np.arange(wide)))
        outer = _turned(np.outer(step * wide * np.arange(long), part))
        products = (outer[:, None, :] * mass[None]).reshape(long * len(rows), -1) @ (inner + 1)
        values += products.reshape(values.shape) + (mass @ inner)[None]
    result: Complex = values.transpose(1, 0, 2).reshape(len(rows), -1)[:, :count]
    return result


def _terms(count: int) -> int:
    """How many roundings a sum of ``count`` terms goes through, chunk by chunk."""
    return min(count, _CHUNK) + -(-count // _CHUNK)


def _turned(angle: Array) -> Complex:
    """e^{i·angle} − 1, to relative precision."""
    half = np.sin(angle / 2)
    turned: Complex = 2j * half * (np.cos(angle / 2) + 1j * half)
    return turned


def _log(value: float, scale: float) -> float:
    return scale + math.log(value) if value > 0 else -math.inf
