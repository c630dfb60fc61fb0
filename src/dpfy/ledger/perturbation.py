"""Objective perturbation: a convex objective is minimised with a random linear term added.

It is one query on all records, or on one sample: ``Sampled(Poisson(1.0), (query,))``.

Tests: tests/accounting/rules_for/test_perturbation.py.
"""

import math
from dataclasses import dataclass

from dpfy import _validate
from dpfy.ledger.events import RecordedQuery


@dataclass(frozen=True)
class ObjectivePerturbation(RecordedQuery, tag="objective_perturbation"):
    """The minimiser of Σ losses + regularisation/2·‖θ‖² + b·θ with Gaussian b, and noise added.

    The loss of a record is a convex function of one linear score x·θ whose slope has the same sign
    everywhere, as the logistic loss has.

    Args:
        lipschitz: the largest norm of the gradient of one record's loss; 0 only if no record has a
            part in the objective, nor in how near its minimum is found.
        smoothness: the largest eigenvalue of the Hessian of one record's loss.
        regularisation: the strength of the ℓ2 penalty, above 0.
        stddev: standard deviation of each coordinate of b.
        output_multiplier: standard deviation of the noise that is added to the approximate
            minimiser, over the largest distance between two approximations of one minimum.
        name: what is minimised.
    """

    lipschitz: float
    smoothness: float
    regularisation: float
    stddev: float
    output_multiplier: float
    name: str = "coefficients"

    def __post_init__(self) -> None:
        for name in ("lipschitz", "smoothness", "stddev", "output_multiplier"):
            object.__setattr__(
                self, name, _validate.real(name, getattr(self, name), 0, math.inf, open_high=True)
            )
        object.__setattr__(
            self, "regularisation", _validate.positive("regularisation", self.regularisation)
        )
