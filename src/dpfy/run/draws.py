"""Draw the samples of steps: each when its step begins, or one step ahead.

    on demand:   reserve t ─▶ draw t ─▶ load and compute t
    one ahead:   reserve t ─▶ pay for, draw and begin to load t+1 ─▶ compute t

Whatever is drawn ahead is paid for first, durably. Its reservation takes the step that was paid
for, when its turn comes; ``docs/proofs/ledger.md`` says why a clean close may hand it back.
"""

from dataclasses import dataclass

import torch

from dpfy.errors import BudgetExhausted, InvalidArgument
from dpfy.gradients import Engine
from dpfy.ledger.events import Event, ImportanceSchedule
from dpfy.ledger.individual import FilteredPoisson
from dpfy.mechanisms.controllers import Controller, StepConfig
from dpfy.plans import Plan
from dpfy.records.records import Records
from dpfy.run.context import StepContext
from dpfy.run.partition import BatchPartition, drawn_from, even_parts
from dpfy.run.sampling_strategy import Sample
from dpfy.run.terms import event_of, note_of, partition_for

_DRAWN = b"+"  # before the bytes of a sample, which has none if it is empty


class Draws:
    """Draw every sample when its step begins."""

    ahead = False

    def draw(self, context: StepContext, step: int) -> Sample:
        """Return the sample of a step, whose event is durable by then; rank 0 alone calls this."""
        return context.sampling.draw(context, step)

    def begin(
        self,
        context: StepContext,
        engine: Engine,
        sample: Sample,
        step: int,
        config: StepConfig,
        partition: BatchPartition,
    ) -> None:
        """Begin what may run while the step computes."""
        return

    def records(self, context: StepContext, sample: Sample) -> Records:
        """Return what the step sees of its records."""
        return context.records.sample(sample.indices, sample.seeds)


@dataclass(frozen=True)
class _Drawn:
    """A step that is paid for, drawn and loading. Sensitive."""

    step: int
    sample: Sample
    records: Records

    def __repr__(self) -> str:
        return "_Drawn(sensitive)"


class OneAhead(Draws):
    """Pay for the next step, draw it and let the workers load it while a step computes.

    *Formal guarantee*: the ledger holds an event before its sample is drawn. A sample that was
    drawn ahead serves the step that it was drawn for, or none.

    *Assumes* that the next event follows from no output, as :func:`draws_for` checks.
    """

    ahead = True

    def __init__(self) -> None:
        self._records: Records | None = None
        self._next: _Drawn | None = None

    def draw(self, context: StepContext, step: int) -> Sample:
        """Return the sample that was drawn ahead or, for a first step, draw it."""
        ready = self._next
        return ready.sample if ready and ready.step == step else super().draw(context, step)

    def begin(
        self,
        context: StepContext,
        engine: Engine,
        sample: Sample,
        step: int,
        config: StepConfig,
        partition: BatchPartition,
    ) -> None:
        """Begin to load this step, unless it is under way, and then the next one of the plan."""
        ready, self._next = self._next, None
        records = (
            ready.records if ready and ready.step == step else super().records(context, sample)
        )
        if self._records is not None:
            self._records.begin([])  # a step that failed may have left something
        self._records = records
        records.begin(shares_of(context, engine, sample, config, partition))
        if step < context.plan.steps:
            self._next = self._drawn(context, engine, step + 1)

    def records(self, context: StepContext, sample: Sample) -> Records:
        """Return the records that :meth:`begin` began to load."""
        assert self._records is not None
        return self._records

    def _drawn(self, context: StepContext, engine: Engine, step: int) -> _Drawn | None:
        """Pay for a step, draw it and begin to load it; do nothing if the budget ends before it."""
        config = context.controllers.config(step)
        event = event_of(context, step, config)
        found = context.ranks.from_first(lambda: _paid_and_drawn(context, event, step, config))
        if not found:
            return None  # its own reservation will say so
        sample = Sample.from_bytes(found.removeprefix(_DRAWN), context.records.seed_words)
        records = super().records(context, sample)
        partition = partition_for(context, engine, step, config, context.ranks.size)
        records.begin(shares_of(context, engine, sample, config, partition))
        return _Drawn(step, sample, records)


def _paid_and_drawn(context: StepContext, event: Event, step: int, config: StepConfig) -> bytes:
    """Make the next step durable, then draw its sample; no bytes if the budget has no room."""
    if context.progress.prepaid == 0:
        try:
            context.ledger.prepay(event, note=note_of(config))
        except BudgetExhausted:
            return b""
    return _DRAWN + context.sampling.draw(context, step).to_bytes()


def shares_of(
    context: StepContext,
    engine: Engine,
    sample: Sample,
    config: StepConfig,
    partition: BatchPartition,
) -> list[list[torch.Tensor]]:
    """Return the parts of this rank's share of a sample: of each slot, or of all at once."""
    ranks, slots = context.ranks, config.query.slots
    if not len(sample):
        return []
    if slots is not None:
        places = drawn_from(slots, sample.tags)
        mine = places[places % ranks.size == ranks.rank].unique()
        largest = context.largest_chunk(engine)
        return [even_parts(sample.indices[places == slot], largest) for slot in mine]
    # Owners follow from tags and not from blocks: whatever the size of blocks, ranks share nothing.
    chosen = drawn_from(ranks.size, sample.tags) == ranks.rank if ranks.size > 1 else None
    parts = partition.parts(sample.indices, sample.tags, chosen)
    parts.sort(key=len, reverse=True)  # the memory of a large chunk has room for a smaller one
    return [parts]


def draws_for(prefetch: int, plan: Plan, num_workers: int) -> Draws:
    """Return how samples are drawn, for ``prefetch`` steps ahead.

    Args:
        prefetch: the number of steps: 0 or 1.
        plan: the plan, whose next event must follow from no output.
        num_workers: the number of processes that load records.

    Returns:
        The value for the slot.

    Raises:
        InvalidArgument: if the plan does not say what comes next, or nobody could load it.
    """
    if isinstance(prefetch, bool) or prefetch not in (0, 1):
        raise InvalidArgument(
            f"Expected prefetch={prefetch!r} to be 0 or 1: the number of steps that are paid for, "
            "drawn and loaded ahead."
        )
    if prefetch == 0:
        return Draws()
    if isinstance(plan.sampling, ImportanceSchedule):
        raise InvalidArgument(
            "prefetch=1 draws a step before the one in front of it is released, and importance "
            "sampling draws by the gradients of the model that this one leaves. Use prefetch=0."
        )
    if isinstance(plan.sampling, FilteredPoisson):
        raise InvalidArgument(
            "prefetch=1 begins to load a sample before it is known which of its records have left "
            "by an individual filter. Use prefetch=0."
        )
    for controller in plan.controllers:
        if _follows_outputs(controller):
            raise InvalidArgument(
                "prefetch=1 pays for a step before the one in front of it is released, and "
                f"{type(controller).__name__} chooses the {controller.controls} of a step from "
                "what was released. Use prefetch=0, or a plan without it."
            )
    if num_workers == 0:
        raise InvalidArgument(
            "prefetch=1 needs processes that load records while this one computes: user code that "
            "ran beside it in a thread would share its random generators. Give num_workers=1 or "
            "more, or prefetch=0."
        )
    return OneAhead()


def _follows_outputs(controller: Controller) -> bool:
    """Whether what a controller chooses may depend on more than the number of the step."""
    kind = type(controller)
    return (
        controller.adaptive
        or kind.update is not Controller.update
        or kind.on_public_metric is not Controller.on_public_metric
    )
