"""Solvers of binary logistic regression that release once: output, objective and functional.

Each is a plan of what it releases at a noise multiplier, and what it makes of that. All work on
rows of norm 1, at most. The proofs are in ``docs/proofs/perturbation.md``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.estimators.declarations import Floats
from dpfy.estimators.fitting import Fit, Planned, computed_bound, gaussian, summed
from dpfy.estimators.minimise import ROW_NORM, Objective, Precision, minimise
from dpfy.estimators.moments import symmetric, triangle
from dpfy.estimators.reports import SUMS
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.events import Sampled
from dpfy.ledger.perturbation import ObjectivePerturbation

if TYPE_CHECKING:
    from dpfy.noise import SecureStream

Rows = tuple[Floats, NDArray[np.int64]]
"""Vectors of norm 1 at most, and the class of each: 0, 1, or −1 for a row that does not count."""

_OUTPUT_SHARE = 30.0  # noise of the output over its distance, in noise multipliers of the objective
_FAR = 38.0  # standard deviations, beyond which the linear term is with probability 1e-300 only
_MINIMUM = (
    Ground(
        Kind.THEOREM,
        "isolation",
        "A row moves the minimum by at most its bound, and changes nothing else",
        "Rows are encoded and bounded one by one, the gradient of each is at most the clip, and "
        "the penalty is strongly convex: docs/proofs/perturbation.md.",
    ),
    Ground(
        Kind.THEOREM,
        "rounding_of_sums",
        "How near the minimum is found is bounded",
        "Rows share the arithmetic of the search for the minimum; the largest distance to it on "
        "any table is in the noise scale: docs/proofs/perturbation.md, section 3.",
    ),
)


@dataclass(frozen=True)
class Perturbation(ABC):
    """A solver that releases once.

    Args:
        records: The public number of rows; there may be twice as many.
        width: The number of coordinates of a row.
        regularisation: The strength of the penalty Λ/2·‖θ‖² beside the sum of all losses; by
            default that of a public rule.
        clip: The largest slope of a row's loss, which goes on straight from there; ½ by default.

    Raises:
        InvalidArgument: If ``regularisation`` is not above 0, or ``clip`` not in (0, 1].
    """

    records: int
    width: int
    regularisation: float | None = None
    clip: float = 0.5

    proved: ClassVar[tuple[Ground, ...]] = _MINIMUM
    """What is proved about the release, as the ledger keeps it."""

    def __post_init__(self) -> None:
        if self.regularisation is not None:
            _validate.positive("regularisation", self.regularisation)
        _validate.real("clip", self.clip, 1e-6, 1)

    @property
    def lipschitz(self) -> float:
        """The largest norm of the gradient of a row's loss."""
        return self.clip * ROW_NORM

    @abstractmethod
    def plan(self, noise_multiplier: float) -> list[Planned]:
        """Return what is released at a noise multiplier."""

    @abstractmethod
    def weights(self, fit: Fit, rows: Callable[[], Rows]) -> Floats:
        """Release, and return the weights of the second class."""

    def weight_noise(self, noise_multiplier: float) -> float | None:
        """Return the standard deviation of the noise in a weight, at most, if it is public."""
        return None

    def strength(self, noise_multiplier: float) -> float:
        """Return the strength Λ of the penalty: the declared one, or that of the public rule."""
        if self.regularisation is not None:
            return self.regularisation
        return self._rule(noise_multiplier)

    @abstractmethod
    def _rule(self, noise_multiplier: float) -> float:
        """Return the strength Λ of the public rule."""

    def precision(self, noise_multiplier: float) -> Precision:
        """Return how near the minimum will be found.

        Raises:
            InvalidArgument: If float64 cannot tell parameters apart so weakly regularised.
        """
        found = self._precision(noise_multiplier)
        if found.tolerance > found.regularisation:
            raise InvalidArgument(
                f"Expected regularisation={found.regularisation:.3g} to be larger for "
                f"{self.records} rows: rounding errors would decide about the minimum. Declare "
                "a larger one, or leave it out."
            )
        return found

    def _precision(self, noise_multiplier: float) -> Precision:
        rows = 2 * max(self.records, 1)
        return Precision(rows, self.width, self.strength(noise_multiplier))


class Output(Perturbation):
    """Output perturbation: Gaussian noise on the minimum of the regularised loss.

    *Formal guarantee*: one row moves the minimum by at most clip/Λ, since the objective is
    Λ-strongly convex and a row's gradient has a norm of at most ``clip``. What is computed is at
    most τ/Λ from the minimum on all tables, so that it moves by at most (clip + 2τ)/Λ: one
    Gaussian vector with that bound.

    Reference: Chaudhuri, Monteleoni & Sarwate 2011, Corollary 8; ``docs/proofs/perturbation.md``,
    Theorem 1.
    """

    def plan(self, noise_multiplier: float) -> list[Planned]:
        """Return one Gaussian vector."""
        return [gaussian("coefficients", self._bound(noise_multiplier), noise_multiplier)]

    def weights(self, fit: Fit, rows: Callable[[], Rows]) -> Floats:
        """Release the minimum with noise."""
        precision = self.precision(fit.noise_multiplier)

        def minimum() -> Floats:
            linear = np.zeros(self.width)
            objective = Objective(*_counting(*rows()), precision.regularisation, linear, self.clip)
            return minimise(objective, precision)

        return fit.release(fit.planned[0], minimum)

    def weight_noise(self, noise_multiplier: float) -> float:
        """Return the noise that is added to a weight."""
        return noise_multiplier * self._bound(noise_multiplier)

    def _bound(self, noise_multiplier: float) -> float:
        """Return the most that one row moves the computed minimum."""
        precision = self.precision(noise_multiplier)
        return (self.lipschitz + 2 * precision.tolerance) / precision.regularisation

    def _rule(self, noise_multiplier: float) -> float:
        """Return a strength between the noise, in proportion to 1/Λ, and the bias, to Λ/n."""
        return 0.3 * self.clip * (max(self.records, 1) * noise_multiplier**3) ** 0.25


class PerturbedObjective(Perturbation):
    """Objective perturbation: the minimum of the regularised loss and a random linear term.

    *Formal guarantee*: that of the event
    :class:`~dpfy.ledger.perturbation.ObjectivePerturbation`. Noise is added to the computed
    minimum too, for two approximations of one minimum that are at most 2τ/Λ apart.

    Reference: Kifer, Smith & Thakurta 2012; Iyengar et al. 2019; Redberg, Koskela & Wang 2023;
    ``docs/proofs/perturbation.md``, Theorem 2.
    """

    def plan(self, noise_multiplier: float) -> list[Planned]:
        """Return one release of the perturbed minimum."""
        precision = self.precision(noise_multiplier)
        return [Planned(PerturbedMinimum(precision, self.clip, noise_multiplier))]

    def weights(self, fit: Fit, rows: Callable[[], Rows]) -> Floats:
        """Release the perturbed minimum."""
        return fit.release(fit.planned[0], lambda: _counting(*rows()))

    def weight_noise(self, noise_multiplier: float) -> float:
        """Return the noise of the linear term over the least curvature, that of the penalty."""
        return noise_multiplier * self.lipschitz / self.strength(noise_multiplier)

    def _rule(self, noise_multiplier: float) -> float:
        """Return a strength in proportion to the noise on directions that no row points to."""
        return self.clip * noise_multiplier / 2

    def _precision(self, noise_multiplier: float) -> Precision:
        from dpfy.noise import lattice_step

        stddev = noise_multiplier * self.lipschitz
        return replace(
            super()._precision(noise_multiplier),
            linear_norm=stddev * (math.sqrt(self.width) + _FAR),
            linear_error=math.sqrt(self.width) * lattice_step(stddev),
        )


@dataclass(frozen=True)
class PerturbedMinimum:
    """The mechanism of objective perturbation on rows and their targets.

    Args:
        precision: How near the minimum is found, with the strength of the penalty.
        clip: The largest slope of a row's loss, in (0, 1].
        noise_multiplier: The standard deviation of the linear term over the norm of a gradient.
    """

    precision: Precision
    clip: float
    noise_multiplier: float

    @property
    def event(self) -> Sampled:
        """The cost of one release."""
        from dpfy.mechanisms.one_shot.base import once

        steepest = min(self.clip, 0.5)
        query = ObjectivePerturbation(
            lipschitz=self.clip * ROW_NORM,
            smoothness=steepest * (1 - steepest) * ROW_NORM**2,
            regularisation=self.precision.regularisation,
            stddev=self._stddev,
            output_multiplier=_OUTPUT_SHARE * self.noise_multiplier,
        )
        return replace(once(query), numerical_delta=1e-300)

    def release(self, values: tuple[Floats, Floats], stream: "SecureStream") -> Any:
        """Draw the linear term, minimise, and return the minimum with noise."""
        import torch

        from dpfy.mechanisms.one_shot import Gaussian
        from dpfy.noise import LatticeGaussian, lattice_step

        precision = self.precision
        linear = LatticeGaussian(stream).add_noise(
            torch.zeros(precision.width, dtype=torch.float64),
            self._stddev,
            lattice_step(self._stddev),
        )
        objective = Objective(*values, precision.regularisation, linear.numpy(), self.clip)
        apart = 2 * precision.tolerance / precision.regularisation
        noise = Gaussian(apart, _OUTPUT_SHARE * self.noise_multiplier * apart)
        return noise.release(torch.from_numpy(minimise(objective, precision)), stream)

    @property
    def _stddev(self) -> float:
        """The standard deviation of the linear term."""
        return self.noise_multiplier * self.clip * ROW_NORM


class Functional(Perturbation):
    """The functional mechanism: the second-order expansion of the loss at 0, with Gaussian noise.

    *Formal guarantee*: the products x·xᵀ of a row and x·(y − ½) are one Gaussian vector with the
    bound √(1 + ¼). The trimming of eigenvalues below 0, the penalty and the minimum are computed
    from what was released.

    Reference: Zhang et al. 2012, with Gaussian noise; ``docs/proofs/perturbation.md``, Theorem 3.
    """

    proved = SUMS

    def plan(self, noise_multiplier: float) -> list[Planned]:
        """Return one Gaussian vector."""
        bound = math.hypot(ROW_NORM**2, ROW_NORM / 2)
        return [
            gaussian("moments", computed_bound(bound, self.records, self.width), noise_multiplier)
        ]

    def weights(self, fit: Fit, rows: Callable[[], Rows]) -> Floats:
        """Release the moments, and return the minimum of their quadratic form."""
        noisy = fit.release(fit.planned[0], lambda: moments(*_counting(*rows())))
        upper, slopes = np.split(noisy, [-self.width])
        values, directions = np.linalg.eigh(symmetric(upper, self.width) / 4)
        trimmed = np.maximum(values, 0.0) + self.strength(fit.noise_multiplier)
        found: Floats = directions @ (directions.T @ slopes / trimmed)
        return found

    def _rule(self, noise_multiplier: float) -> float:
        """Return a third of the largest eigenvalue of the noise, about."""
        return noise_multiplier * math.sqrt(self.width) / 8


SOLVERS: dict[str, type[Perturbation]] = {
    "output": Output,
    "objective": PerturbedObjective,
    "functional": Functional,
}
"""The solvers that release once, by name."""


def moments(vectors: Floats, targets: Floats) -> Floats:
    """Return the sums of x·xᵀ, as a triangle, and of x·(y − ½) as one vector."""

    def block(x: Floats, y: Floats) -> Floats:
        return np.concatenate([triangle(x.T @ x), x.T @ (y - 0.5)])

    total: Floats = summed(block, vectors, targets)
    return total


def _counting(vectors: Floats, positions: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the vectors of rows that count, and 1 for those of the second class."""
    known = positions >= 0
    return vectors[known], (positions[known] == 1).astype(np.float64)
