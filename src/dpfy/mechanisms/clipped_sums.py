"""Clipped sums of per-record gradients, described without touching a tensor.

Tests: tests/mechanisms/test_query.py.
"""

from dataclasses import dataclass

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Fact

LEAST, MOST = 1e-30, 1e30
"""The range of bounds, scales and gammas.

No square, product or quotient of them under- or overflows (docs/proofs/queries.md).
"""


@dataclass(frozen=True)
class ClippedSum(Fact, tag="clipped_sum"):
    """The sum of per-record gradients, each scaled down to an ℓ2 norm of at most ``bound``.

    With noise multiplier z, the noise per coordinate has the standard deviation bound·z/√share,
    times the scale of the parameter.

    Args:
        bound: The clip bound, from 1e-30 to 1e30.
        name: The name of the sum in the ledger.
        parameters: The names of the parameters whose gradients are clipped together; by default all
            that no other sum has.
        scales: A scale for each of ``parameters``: its gradient is divided by it before the norm is
            taken and multiplied by it afterwards (joint clipping). None stand for ones.
        share: The part of the noise budget, relative to the other clipped sums, above zero.

    Raises:
        InvalidArgument: If a number is out of its range, or if some parameters have no scale.
    """

    bound: float
    name: str = "gradient"
    parameters: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    share: float = 1.0

    def __post_init__(self) -> None:
        _validate.real(
            "clip",
            self.bound,
            LEAST,
            MOST,
            remedy="The clip bound is a public constant above zero.",
        )
        _validate.positive("share", self.share)
        if len(self.scales) not in (0, len(self.parameters)):
            raise InvalidArgument(
                f"Expected one scale for each of {len(self.parameters)} parameters, got "
                f"{len(self.scales)}."
            )
        for scale in self.scales:
            _validate.real("scale", scale, LEAST, MOST)

    def scale_of(self, parameter: str) -> float:
        """Return what the gradient of a parameter is divided by before norms are taken."""
        return self.scales[self.parameters.index(parameter)] if self.scales else 1.0


@dataclass(frozen=True)
class NormalisedSum(ClippedSum, tag="normalised_sum"):
    """The sum of per-record gradients g·bound/(‖g‖ + gamma), as in automatic clipping.

    All contributions have about the same norm, which is below ``bound``.

    Reference: Z. Bu et al., Automatic Clipping, 2023.

    Args:
        bound: The bound of a contribution, from 1e-30 to 1e30.
        name: The name of the sum in the ledger.
        parameters: The names of the parameters whose gradients are taken together; by default all
            that no other sum has.
        scales: A scale for each of ``parameters``, as in :class:`ClippedSum`.
        share: The part of the noise budget, relative to the other sums, above zero.
        gamma: The norm at which a contribution is half of the bound, from 1e-30 to 1e30.

    Raises:
        InvalidArgument: If a number is out of its range, or if some parameters have no scale.
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.real("gamma", self.gamma, LEAST, MOST)
