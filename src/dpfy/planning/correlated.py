"""Correlated noise beside DP-SGD: what each leaves in the weights at one budget, and its memory."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dpfy import _validate
from dpfy.accounting import calibrate_envelope
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Cyclic, CyclicPoisson, Event, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.streams import Row, SampledStream, Strategy, Stream
from dpfy.mechanisms.strategies import banded, blt, independent
from dpfy.mechanisms.workloads import OBJECTIVES, Objective, Workload, rmse
from dpfy.types import Budget, Relation

_FIXED_ORDER = "cyclic"
_RELATIONS = (Relation.ZERO_OUT, Relation.REPLACE_ONE)
_MOST_BANDS = 256  # they need a kilobyte for each parameter
_NEARLY = 1.01  # of the least error: as good, if it needs less memory


@dataclass(frozen=True)
class NoiseChoice:
    """One way to train at the budget.

    Args:
        method: "dpsgd", "banded" or "blt".
        sampling: how batches are formed: "poisson", "cyclic_poisson" or "cyclic" (a fixed order).
        size: the number of bands or buffers; 0 for DP-SGD.
        noise_multiplier: the noise of one row over the clip bound.
        rmse: the noise in each weight, in clip bounds at a learning rate of 1.
        memory: the bytes that noise keeps for each parameter.
    """

    method: str
    sampling: str
    size: int
    noise_multiplier: float
    rmse: float
    memory: int

    @property
    def draws(self) -> bool:
        """Whether batches are drawn at random."""
        return self.sampling != _FIXED_ORDER

    @property
    def noise(self) -> str:
        """The kind of noise, in words."""
        if self.method == "dpsgd":
            return "DP-SGD"
        unit = "bands" if self.method == "banded" else "buffers"
        return f"{self.size} {unit if self.size > 1 else unit[:-1]}"

    @property
    def batches(self) -> str:
        """How batches are formed, in words."""
        return {"poisson": "Poisson samples", "cyclic_poisson": "cyclic Poisson samples"}.get(
            self.sampling, "fixed order"
        )

    def __str__(self) -> str:
        return f"{self.noise}, {self.batches}"


@dataclass(frozen=True)
class NoiseComparison:
    """All choices at one budget.

    Args:
        steps: the number of steps.
        choices: the choices, DP-SGD first.
    """

    steps: int
    choices: tuple[NoiseChoice, ...]

    def best(self, drawn: bool) -> NoiseChoice:
        """Return the choice of least error; of those within a per cent, that of least memory.

        Args:
            drawn: whether batches can be drawn at random; otherwise their order is fixed.

        Returns:
            The choice.
        """
        able = [choice for choice in self.choices if choice.draws == drawn]
        least = min(choice.rmse for choice in able)
        good = [choice for choice in able if choice.rmse <= _NEARLY * least]
        return min(good, key=lambda choice: (choice.memory, choice.rmse))

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain JSON values."""
        return {
            "steps": self.steps,
            "choices": [asdict(choice) for choice in self.choices],
            "best_drawn": asdict(self.best(drawn=True)),
            "best_in_fixed_order": asdict(self.best(drawn=False)),
        }


def compare_correlated(
    *,
    records: int,
    batch_size: int,
    epochs: float,
    epsilon: float,
    delta: float,
    momentum: float = 0.0,
    decay: float = 0.0,
    objective: Objective = "mean",
    buffers: int = 4,
    relation: Relation | str = Relation.ZERO_OUT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NoiseComparison:
    """Compare correlated noise with DP-SGD at the same budget, before any privacy is spent.

    For batches in a fixed order there are DP-SGD, bands of 2, 4, 8, … steps up to an epoch or 256,
    and buffers; for batches that are drawn, DP-SGD with Poisson samples, and bands with cyclic
    Poisson samples from as many parts.

    Args:
        records: the declared number of records.
        batch_size: the number of records in a batch, in expectation where it is drawn.
        epochs: the number of epochs.
        epsilon: the ε of the budget, above 0.
        delta: the δ of the budget, in (0, 1).
        momentum: the momentum of the optimizer, in [0, 1); 0 by default.
        decay: weight decay times learning rate, in [0, 1); 0 by default.
        objective: the error that counts: "mean" (the default), "last" or "max" of all steps.
        buffers: the number of buffers, from 1 to 8; 4 by default.
        relation: "zero_out" (the default) or "replace_one", for which cyclic Poisson samples are
            left out; the number of records is public.
        progress: is told how many choices are calibrated, and of how many.

    Returns:
        The comparison.

    Raises:
        InvalidArgument: if an argument is out of its range.

    >>> found = compare_correlated(
    ...     records=1000, batch_size=100, epochs=10, epsilon=8.0, delta=1e-5, buffers=2
    ... )
    >>> str(found.best(drawn=False))
    '10 bands, fixed order'
    """
    budget = Budget(_validate.epsilon(epsilon), _validate.delta(delta))
    _validate.choice("objective", objective, OBJECTIVES)
    relation = Relation(_validate.choice("relation", relation, _RELATIONS))
    if _validate.count("batch_size", batch_size) > _validate.count("records", records):
        raise InvalidArgument(
            f"Expected batch_size={batch_size!r} to be at most records={records!r}."
        )
    order = Cyclic(batch_size, records)
    steps = max(1, round(_validate.positive("epochs", epochs) * order.steps_per_event))
    workload = Workload(steps, momentum, decay)
    candidates = tuple(
        (kind, strategy, event_of)
        for kind, strategy, event_of in _candidates(order, workload, objective, buffers)
        if not (relation == Relation.REPLACE_ONE and kind[1] == "cyclic_poisson")  # not proved
    )
    choices = []
    for done, (kind, strategy, event_of) in enumerate(candidates):
        progress(done, len(candidates))
        noise = calibrate_envelope(
            lambda noise, event_of=event_of: (Repeated(event_of(noise), steps),),  # type: ignore[misc]
            epsilon=budget.epsilon,
            delta=budget.delta,
            relation=relation,
        )
        method, sampling, size = kind
        error = noise * rmse(strategy, workload, objective)
        choices.append(NoiseChoice(method, sampling, size, noise, error, _memory(method, size)))
    progress(len(candidates), len(candidates))
    return NoiseComparison(steps, tuple(choices))


_Candidate = tuple[tuple[str, str, int], Strategy, Callable[[float], Event]]


def _candidates(
    order: Cyclic, workload: Workload, objective: Objective, buffers: int
) -> Iterator[_Candidate]:
    """Yield what to compare: its name, its strategy, and the event of a step with some noise."""
    steps, epoch, rate = workload.steps, order.steps_per_event, order.rate
    often = -(-steps // epoch)

    def in_order(strategy: Strategy) -> Callable[[float], Event]:
        return lambda noise: Row(Stream(strategy, steps, noise, often, epoch), order)

    def drawn(strategy: Strategy, bands: int) -> Callable[[float], Event]:
        policy = CyclicPoisson(bands * rate, bands, order.records)
        return lambda noise: Row(
            SampledStream(strategy, steps, noise, rate=policy.chance, parts=bands), policy
        )

    yield (
        ("dpsgd", "poisson", 0),
        independent(),
        lambda noise: Sampled(Poisson(rate), (SumQuery(1.0, noise),)),
    )
    yield ("dpsgd", _FIXED_ORDER, 0), independent(), in_order(independent())
    for bands in _bands(min(epoch, steps)):
        fixed = banded(workload, bands, often, epoch, objective)
        yield ("banded", _FIXED_ORDER, bands), fixed, in_order(fixed)
    buffered = blt(workload, buffers, often, epoch, objective)
    yield ("blt", _FIXED_ORDER, buffers), buffered, in_order(buffered)
    for bands in _bands(min(order.records // order.batch_size, steps)):
        once = banded(workload, bands, objective=objective)
        yield ("banded", "cyclic_poisson", bands), once, drawn(once, bands)


def _bands(most: int) -> list[int]:
    """Return the powers of two from 2 on, and the most bands that there can be; one is DP-SGD."""
    most = min(most, _MOST_BANDS)
    powers = (1 << power for power in range(1, most.bit_length()))
    return sorted({*powers, most} - {0, 1})


def _memory(method: str, size: int) -> int:
    """Return the bytes for each parameter: a row in float64, and what is kept of earlier ones."""
    kept = {"banded": 4 * (size - 1), "blt": 8 * size}.get(method)
    return 0 if kept is None else 8 + kept
