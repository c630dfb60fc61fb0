"""Plan DP-FTRL: fixed or cyclic order, clipped gradients, correlated Gaussian noise."""

from collections.abc import Sequence
from fractions import Fraction

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, CyclicPoisson
from dpfy.ledger.streams import Strategy
from dpfy.mechanisms.query import ClippedSum, Query, Statistic
from dpfy.mechanisms.strategies import banded, blt, independent, square_root, tree
from dpfy.mechanisms.workloads import Objective, Workload, rmse
from dpfy.plans.correlation import Alternative, unit_diagonal
from dpfy.plans.dpsgd import clipped_sums, declared_batch, whole_steps
from dpfy.plans.plan import Plan
from dpfy.types import Relation, Unit

STRATEGIES = ("blt", "banded", "tree", "square_root", "independent")
"""The names of strategies that :func:`dpftrl` makes."""

ORDERS = ("cyclic", "one_epoch", "cyclic_poisson")
"""The names of orders that :func:`dpftrl` takes records in."""


def dpftrl(
    *,
    records: int,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    clip: float | ClippedSum | Sequence[ClippedSum] = 1.0,
    strategy: str | Strategy | None = None,
    bands: int | None = None,
    buffers: int = 4,
    restart: int = 0,
    sampling: str = "cyclic",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    learning_rates: Sequence[float] = (),
    objective: Objective = "mean",
    noise_multiplier: float | None = None,
    divisor: float | None = None,
    statistics: Sequence[Statistic] = (),
    unit: Unit | str = Unit.RECORD,
    relation: Relation | str = Relation.ZERO_OUT,
) -> Plan:
    """Plan DP-FTRL: each step adds noise that takes back part of the noise of earlier steps.

    The weights, which add up all steps, then have less noise. Records come in a fixed order, which
    suits files, streams and devices that cannot be sampled; or each part of them in turn is sampled
    at random, which costs less privacy.

    *Formal guarantee*: with the noise multiplier z and the strategy C of the plan, all steps
    together are the Gaussian mechanism on C times their sums; a record is in as many steps, and as
    far apart, as its order says. The ledger's accountant computes what t steps cost. A run that is
    interrupted goes on with the next step at no further cost.

    *Assumes*: ``records`` and ``batch_size`` are public constants, declared by you, and the order
    of the records depends on none of them and does not change.

    Args:
        records: The number of records, at least 1.
        batch_size: The number of records in a step; the expected one if they are sampled.
        epochs: The number of passes over the data, above zero.
        steps: The number of steps, at least 1, if ``epochs`` are not given.
        clip: The bound of a record's gradient, or the sums that :func:`dpfy.clip_groups` and
            :func:`dpfy.clip_jointly` describe.
        strategy: ``"blt"`` (buffered linear Toeplitz), ``"banded"``, ``"tree"``,
            ``"square_root"``, ``"independent"``, or a strategy of :mod:`dpfy.ledger.streams`. By
            default blt in a fixed order, and banded where records are sampled, which needs a band.
        bands: The number of steps over which noise is correlated, 4 bytes per parameter each, for
            banded and square_root. By default :meth:`Plan.calibrate` takes the best of 1, 2, 4, …
            banded ones up to an epoch, and square_root has as many as an epoch has steps.
        buffers: The number of sums that blt keeps, from 1 to 8, 8 bytes per parameter each.
        restart: The number of steps after which a new tree begins; 0 for one tree.
        sampling: ``"cyclic"``, the order in which records are given, again and again;
            ``"one_epoch"``, the same once at most; or ``"cyclic_poisson"``: as many parts as bands
            take turns, and each record of the part whose turn it is flips a coin.
        momentum: The momentum of the optimizer, which the strategy is optimised for; in [0, 1).
        weight_decay: The fraction by which weights shrink in a step: weight decay times the
            learning rate, in [0, 1).
        learning_rates: The learning rate of each step, up to a factor; by default a constant.
        objective: Which error of the weights to make small: their ``"mean"`` over all steps, that
            of the ``"last"``, or the largest, ``"max"``.
        noise_multiplier: The fresh noise of a step over the sensitivity, at least 0; by default
            :meth:`Plan.calibrate` finds it.
        divisor: The public constant that the released sum is divided by; by default the batch size.
        statistics: Statistics that every step releases beside the gradient.
        unit: The unit of privacy, ``"record"`` or ``"user"``.
        relation: The neighbouring relation, ``"zero_out"`` or, in a fixed order,
            ``"replace_one"``.

    Returns:
        A plan of this run.

    Raises:
        InvalidArgument: If arguments are missing, contradict each other or are out of their range.

    >>> plan = dpftrl(
    ...     records=6_000, batch_size=300, epochs=3, strategy="banded", bands=4, noise_multiplier=4
    ... )
    >>> plan.steps, len(plan.correlation.coefficients), plan.event.stream.participations
    (60, 4, 3)

    Reference: Kairouz et al. 2021; Choquette-Choo et al. 2023, Theorem 4; Dvijotham et al. 2024;
    docs/proofs/streams.md.
    """
    _validate.count("records", records)
    _validate.count("batch_size", batch_size)
    declared_batch(batch_size, records)
    _validate.choice("sampling", sampling, ORDERS)
    sampled = sampling == "cyclic_poisson"
    per_epoch = Fraction(records, batch_size) if sampled else Fraction(-(-records // batch_size))
    count = whole_steps(steps, epochs, per_epoch)
    if sampling == "one_epoch" and count > per_epoch:
        raise InvalidArgument(
            f"Expected at most {per_epoch} steps with sampling='one_epoch', got {count}: no record "
            "comes twice. Use sampling='cyclic', or fewer epochs."
        )
    workload = Workload(count, momentum, weight_decay, tuple(learning_rates))
    kind = strategy or ("banded" if sampled else "blt")
    order = _Order(records, batch_size, count, sampled)
    found = _strategies(kind, order, workload, bands, buffers, restart, objective)
    choices = [
        Alternative(order.policy(width), made, rmse(made, workload, objective))
        for width, made in (found if len(found) > 1 else ())
    ]
    return Plan(
        sampling=order.policy(found[0][0]),
        query=Query.of(clipped_sums(clip), statistics),
        steps=count,
        divisor=float(divisor or batch_size),
        noise_multiplier=noise_multiplier,
        records=records,
        unit=Unit(_validate.choice("unit", unit, tuple(Unit))),
        relation=Relation(_validate.choice("relation", relation, tuple(Relation))),
        correlation=found[0][1],
        alternatives=tuple(choices),
    )


class _Order:
    """How often and how far apart the steps of a record are."""

    def __init__(self, records: int, batch_size: int, steps: int, sampled: bool) -> None:
        self.records, self.batch_size, self.sampled = records, batch_size, sampled
        self.epoch = records // batch_size if sampled else -(-records // batch_size)
        self.steps = steps

    @property
    def pattern(self) -> tuple[int, int]:
        """Participations and separation, as far as two steps of a record can share noise."""
        return (1, 1) if self.sampled else (-(-self.steps // self.epoch), self.epoch)

    @property
    def most_bands(self) -> int:
        """The largest band: a part has a turn in an epoch at least, and there are so many steps."""
        return min(self.epoch, self.steps) if self.sampled else self.steps

    def policy(self, bands: int) -> Cyclic | CyclicPoisson:
        """Return the policy of a strategy with so many bands."""
        if not self.sampled:
            return Cyclic(self.batch_size, self.records)
        return CyclicPoisson(bands * self.batch_size / self.records, bands, self.records)


def _strategies(
    kind: str | Strategy,
    order: _Order,
    workload: Workload,
    bands: int | None,
    buffers: int,
    restart: int,
    objective: Objective,
) -> list[tuple[int, Strategy]]:
    """Return the bands and the strategy of every candidate; there is one, unless bands are open."""
    if bands is not None and _validate.count("bands", bands) > order.most_bands:
        raise InvalidArgument(
            f"Expected bands={bands} to be at most {order.most_bands}, the number of steps "
            f"{'in an epoch: a record of the same part' if order.sampled else 'of the plan'}"
            f"{' would come twice within a band.' if order.sampled else '.'}"
        )
    if bands is not None and kind in ("blt", "tree"):
        raise InvalidArgument(
            f"Strategy {kind!r} has no bands, got bands={bands}. Give buffers= for blt, restart= "
            "for a tree, or strategy='banded'."
        )
    if isinstance(kind, Strategy):
        made = unit_diagonal(kind)
        return [(bands or len(getattr(made, "coefficients", (1.0,))), made)]
    match _validate.choice("strategy", kind, STRATEGIES):
        case "blt":
            return [(1, blt(workload, buffers, *order.pattern, objective))]
        case "tree":
            return [(1, tree(restart))]
        case "independent":
            return [(bands or 1, independent())]
        case "square_root":
            width = bands or min(order.epoch, order.steps)
            return [(width, square_root(workload, width))]
    most = min(order.epoch, order.steps)
    widths = [bands] if bands else sorted({most, *(2**power for power in range(most.bit_length()))})
    return [(width, banded(workload, width, *order.pattern, objective)) for width in widths]
