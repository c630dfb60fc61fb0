"""Correlated noise in a plan: the stream that its steps are, and what does not go with it.

Tests: tests/plans/test_dpftrl.py.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, CyclicPoisson, Fact, Policy
from dpfy.ledger.streams import Buffered, Row, SampledStream, Strategy, Stream, Toeplitz, Tree
from dpfy.types import Relation

if TYPE_CHECKING:
    from dpfy.plans.plan import Plan


@dataclass(frozen=True)
class Alternative(Fact, tag="alternative"):
    """A way to correlate noise that :meth:`Plan.calibrate` may choose.

    Args:
        sampling: The policy that goes with it.
        strategy: The strategy of the noise.
        error: The error of what the optimizer adds up, for fresh noise of standard deviation 1;
            times the noise multiplier, it is what alternatives are judged by.

    Raises:
        InvalidArgument: If the error is not a positive number.
    """

    sampling: Policy
    strategy: Strategy
    error: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", _validate.positive("error", self.error))


def row_of(sampling: Policy, strategy: Strategy, steps: int, noise_multiplier: float) -> Row:
    """Return the event of one step of a plan with correlated noise.

    Args:
        sampling: The policy that the sampler draws by.
        strategy: The strategy of the noise.
        steps: The number of steps of the plan.
        noise_multiplier: The fresh noise of a step over its sensitivity.

    Returns:
        A row of the stream that the steps are.

    Raises:
        InvalidArgument: If the policy keeps no two steps of a record apart.
    """
    if isinstance(sampling, CyclicPoisson):
        stream = SampledStream(
            strategy, steps, noise_multiplier, sampling.chance, parts=sampling.parts
        )
        return Row(stream, sampling)
    if not isinstance(sampling, Cyclic):
        raise InvalidArgument(
            f"Correlated noise needs steps of a record that are known to lie apart, got "
            f"{sampling.tag} sampling. Use sampling='cyclic' or 'cyclic_poisson'."
        )
    epoch = sampling.steps_per_event
    return Row(
        Stream(
            strategy,
            steps,
            noise_multiplier,
            participations=-(-steps // epoch),
            separation=epoch,
        ),
        sampling,
    )


def unit_diagonal(strategy: Strategy) -> Strategy:
    """Return a strategy with a diagonal of 1; noise that is scaled with it makes up for that.

    Args:
        strategy: Toeplitz coefficients, buffers or trees.

    Returns:
        The same strategy, up to a factor.

    Raises:
        InvalidArgument: If noise cannot be drawn row by row with it.
    """
    if isinstance(strategy, Buffered | Tree):
        return strategy
    if not isinstance(strategy, Toeplitz):
        raise InvalidArgument(
            f"Expected a strategy of toeplitz coefficients, buffers or trees, got "
            f"{getattr(strategy, 'tag', type(strategy).__name__)!r}. Other matrices can be "
            "accounted, and do not run."
        )
    first = strategy.coefficients[0]
    if not first > 0:
        raise InvalidArgument(
            f"Expected a strategy with a positive diagonal, got {first!r}: noise of a step without "
            "it would not hide that step."
        )
    return Toeplitz(tuple(each / first for each in strategy.coefficients))


def check_correlation(plan: "Plan") -> None:
    """Refuse what has no rule with correlated noise, before any record is read."""
    if plan.correlation is None:
        if isinstance(plan.sampling, CyclicPoisson):
            raise InvalidArgument(
                "cyclic_poisson sampling goes with correlated noise. Make the plan with "
                "dpfy.dpftrl, whose strategy may be 'independent'; or use sampling='poisson'."
            )
        return
    if unit_diagonal(plan.correlation) != plan.correlation:
        raise InvalidArgument("Expected a strategy with a diagonal of 1. dpfy.dpftrl scales it.")
    if plan.records is None:
        raise InvalidArgument("Expected records= with correlated noise, whose order has them all.")
    for refused, reason in _refused(plan):
        if refused:
            raise InvalidArgument(f"Correlated noise does not go with {reason}")
    row_of(plan.sampling, plan.correlation, plan.steps, plan.noise_multiplier or 0.0)


def _refused(plan: "Plan") -> "list[tuple[bool, str]]":
    """Return what a plan must not have, and why."""
    query = plan.query
    return [
        (
            isinstance(plan.sampling, CyclicPoisson) and plan.relation == Relation.REPLACE_ONE,
            "cyclic_poisson sampling under replace_one: what rounding does then has no proof. "
            "Declare relation='zero_out', or take a fixed order.",
        ),
        (
            bool(plan.controllers),
            "controllers or a schedule of the clip bound: later noise takes back earlier noise on "
            "one lattice of one scale. Leave controllers= and clip_schedule= out.",
        ),
        (
            plan.noise_schedule is not None,
            "a schedule of the noise: all rows of a stream have the same. Leave noise_schedule= "
            "out.",
        ),
        (
            query.period > 1,
            "statistics that some steps leave out: a row has the sums of every step. Use every=1.",
        ),
        (
            query.slots is not None,
            "microbatches: their means move by two bounds, for which no stream is declared. Use "
            "clipping by record.",
        ),
        (
            query.least_sample is not None,
            "least_sample: a sum over the size of its sample moves by two bounds, for which no "
            "stream is declared. Use a public divisor.",
        ),
        (
            plan.filter is not None,
            "a filter: the rows of a stream are paid for together, and are fixed before the first. "
            "Calibrate the plan instead.",
        ),
    ]
