"""The noise that a budget asks for over rates and batch sizes, and laws that describe it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import nnls

from dpfy import _validate
from dpfy.accounting import account, calibrate_envelope
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Envelope, Poisson, Repeated, Sampled, SumQuery
from dpfy.planning.solve import steps_of


@dataclass(frozen=True)
class Contour:
    """The least noise multiplier for one ε at each of several rates.

    Args:
        epsilon: the ε not to exceed.
        rates: rising sampling rates.
        noise: the least noise multiplier at each rate.
    """

    epsilon: float
    rates: tuple[float, ...]
    noise: tuple[float, ...]

    @property
    def root_law(self) -> float:
        """The c of σ ≈ c·√q that fits these rates with the least squared relative error.

        At ε = 3, δ = 1e-5 and 60 epochs it is 13 over rates from 0.001 to 1. It is not a constant:
        over these rates σ/√q falls from 22 to 11, and has nearly stopped falling at a rate of 0.05
        (:attr:`root_laws`).

        Reference: Tramèr & Boneh 2021; Dörmann et al. 2021, Figure 2.
        """
        return float(np.exp(np.mean(np.log(self.root_laws))))

    @property
    def root_laws(self) -> tuple[float, ...]:
        """σ/√q at each rate."""
        return tuple(
            noise / math.sqrt(rate) for rate, noise in zip(self.rates, self.noise, strict=True)
        )


@dataclass(frozen=True)
class BatchCurve:
    """The noise σC/B in the mean gradient for one ε and a fixed number of steps.

    Args:
        epsilon: the ε not to exceed.
        batch_sizes: rising batch sizes B.
        noise_in_mean: σC/B at each batch size.
        diminishing: the batch size from which larger batches bring less, n·√(ε/T) by the guide.
    """

    epsilon: float
    batch_sizes: tuple[float, ...]
    noise_in_mean: tuple[float, ...]
    diminishing: float


def noise_over_rate(
    epsilon: float, *, delta: float, epochs: float, rates: Sequence[float], method: str = "pld"
) -> Contour:
    """Return the noise that keeps ``epochs`` within ε at each rate.

    Args:
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        epochs: how often each record is seen in expectation.
        rates: at least two rising sampling rates in (0, 1].
        method: the accountant, "pld" or "rdp".

    Returns:
        The least noise multiplier at each rate.

    Raises:
        InvalidArgument: if a value is outside its range, or if rates do not rise.

    >>> line = noise_over_rate(3.0, delta=1e-5, epochs=60, rates=(0.01, 1.0))
    >>> [round(c, 1) for c in line.root_laws]
    [12.9, 10.8]

    Reference: Dörmann et al. 2021, Figure 2.
    """
    _validate.positive("epochs", epochs)
    rates = _rising("rates", rates, 1.0)
    return Contour(
        _validate.epsilon(epsilon),
        rates,
        _followed(epsilon, delta, method, rates, lambda rate: steps_of(epochs, rate)),
    )


def noise_over_batch(
    epsilon: float,
    *,
    delta: float,
    records: int,
    steps: int,
    batch_sizes: Sequence[float],
    clip: float = 1.0,
    method: str = "pld",
) -> BatchCurve:
    """Return the noise in the mean gradient that ``steps`` of each batch size need.

    Every curve falls like 1/B, as if more records were free, up to the point of diminishing
    returns; beyond it σ grows with the rate.

    Args:
        epsilon: the ε not to exceed.
        delta: the δ of the claim, in (0, 1).
        records: the declared number of records.
        steps: the number of steps.
        batch_sizes: at least two rising expected batch sizes, at most ``records``.
        clip: the clip bound C.
        method: the accountant, "pld" or "rdp".

    Returns:
        σC/B at each batch size.

    Raises:
        InvalidArgument: if a value is outside its range, or if batch sizes do not rise.

    >>> sizes = (1e4, 1e6)
    >>> curve = noise_over_batch(1.0, delta=1e-7, records=10**7, steps=10_000, batch_sizes=sizes)
    >>> round(curve.diminishing)
    100000

    Reference: Ponomareva et al. 2023, Figure 1.
    """
    records, clip = _validate.count("records", records), _validate.positive("clip", clip)
    _validate.count("steps", steps)
    sizes = _rising("batch_sizes", batch_sizes, records)
    noise = _followed(
        epsilon, delta, method, [size / records for size in sizes], lambda rate: steps
    )
    return BatchCurve(
        epsilon,
        sizes,
        tuple(sigma * clip / size for sigma, size in zip(noise, sizes, strict=True)),
        diminishing_batch(records, epsilon, steps),
    )


def diminishing_batch(records: int, epsilon: float, steps: int) -> float:
    """Return n·√(ε/T), at most n: the batch size from which larger batches bring less.

    Args:
        records: the number of records n.
        epsilon: the ε not to exceed.
        steps: the number of steps T.

    Returns:
        The batch size, at most ``records``.

    Raises:
        InvalidArgument: if ``epsilon`` or ``steps`` is outside its range.

    >>> diminishing_batch(60_000, 3.0, 300)
    6000.0

    Reference: Ponomareva et al. 2023, Figure 1.
    """
    return (
        min(1.0, math.sqrt(_validate.epsilon(epsilon) / _validate.count("steps", steps))) * records
    )


@dataclass(frozen=True)
class ScalingLaw:
    """ε ≈ A·q√k/σ + B·kq²/σ² for k steps, which describes how costs grow, not what they are.

    The clip bound is in neither term, because noise is proportional to it. The guide's Appendix B
    keeps a C in its derivation, because it calibrates the Gaussian mechanism for a sensitivity of 1
    and then adds noise σC for one of C.

    Args:
        a: the constant A.
        b: the constant B.

    Reference: Ponomareva et al. 2023, §5.3.2 and Appendix B.
    """

    a: float
    b: float

    def epsilon(self, rate: float, noise_multiplier: float, steps: float) -> float:
        """Return the ε of the law; never claim it."""
        x = rate * math.sqrt(steps) / noise_multiplier
        return self.a * x + self.b * x * x

    @classmethod
    def appendix_b(cls, rate: float, delta: float) -> "ScalingLaw":
        """Return the constants that Appendix B derives before it drops logarithms.

        It uses advanced composition. As there, ``delta`` stands both for that of one step and for
        that of their composition, and the sum is left out.
        """
        log_one = math.log(max(9 * rate / (8 * delta), math.e))
        return cls(2 * math.sqrt(log_one * math.log(1 / delta)), log_one)

    @classmethod
    def fitted(
        cls, rate: float, noise_multiplier: float, delta: float, steps: Sequence[int]
    ) -> "ScalingLaw":
        """Return the constants with the least relative error at these numbers of steps.

        >>> law = ScalingLaw.fitted(0.01, 1.0, 1e-5, (100, 1000, 10_000))
        >>> run = Repeated(Sampled(Poisson(0.01), (SumQuery(1.0, 1.0),)), 3000)
        >>> abs(law.epsilon(0.01, 1.0, 3000) / account(run).claim(1e-5) - 1) < 0.1
        True
        """
        step = Sampled(Poisson(rate), (SumQuery(1.0, noise_multiplier),))
        exact = np.array([account(Repeated(step, count)).claim(delta) for count in steps])
        x = rate * np.sqrt(np.array(steps)) / noise_multiplier
        (a, b), _ = nnls(np.stack([x, x * x], axis=1) / exact[:, None], np.ones(len(exact)))
        return cls(float(a), float(b))


def _rising(name: str, values: Sequence[float], most: float) -> tuple[float, ...]:
    checked = tuple(_validate.real(name, value, 0, most, open_low=True) for value in values)
    if len(checked) < 2 or any(b <= a for a, b in pairwise(checked)):
        raise InvalidArgument(
            f"Expected {name} to be at least two rising numbers, got {len(checked)} of them."
        )
    return checked


def _followed(
    epsilon: float,
    delta: float,
    method: str,
    rates: Sequence[float],
    steps_at: Callable[[float], int],
) -> tuple[float, ...]:
    """Calibrate rate by rate; each search begins where the last one ended."""
    found: list[float] = []
    for rate in rates:
        near = found[-1] if found else 1.0
        step, steps = Poisson(rate), steps_at(rate)

        def envelope(
            factor: float, step: Poisson = step, steps: int = steps, near: float = near
        ) -> Envelope:
            return (Repeated(Sampled(step, (SumQuery(1.0, factor * near),)), steps),)

        found.append(
            near * calibrate_envelope(envelope, epsilon=epsilon, delta=delta, method=method)
        )
    return tuple(found)
