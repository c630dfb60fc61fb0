"""Bind a plan to a model, data and a ledger, and hand out its steps one by one.

:mod:`dpfy.run.step` is what happens in a step.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import nn

from dpfy.errors import BatchAlreadyReleased, DivergenceError, InvalidArgument
from dpfy.gradients.base import LossFn
from dpfy.gradients.modules import modules_of
from dpfy.run.context import StepContext
from dpfy.run.gate import are_finite
from dpfy.run.listening import Observed
from dpfy.run.released import Batch, Released
from dpfy.run.step import take_step
from dpfy.run.terms import event_of
from dpfy.sandbox.torch_settings import certified


class Run(Observed):
    """Take the steps of a plan: iterate, call :meth:`backward`, then ``opt.step()``.

    :func:`dpfy.privatize` and :func:`dpfy.resume` make runs.

    Args:
        context: the plan, the records, the ledger and what else a step works with.
        optimizers: the optimizers, which apply released gradients or nothing.

    *Formal guarantee*: whatever is computed from the released gradients, the plan and public data
    satisfies the (ε, δ)-differential privacy of the registered plan, for its unit and relation;
    ``spent`` reads what was used of it so far, and is all there is to claim if nobody looked before
    stopping. Every release is durable in the ledger before a record is read for it.

    *Assumes*: the generator's key stays secret; ``loss_fn`` and the data set keep what they see to
    themselves. With several processes, these and the network between them are trusted, and all are
    given the same data set.
    """

    def __init__(self, context: StepContext, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        super().__init__(context, optimizers)
        self.context: StepContext = context
        self.strict = context.strict  # whether no release may rest on an allowance

    # Walking through the plan

    @property
    def exhausted(self) -> bool:
        """Whether the filter has no room for the next step; iteration ends there.

        Only plans whose noise is chosen from outputs can be exhausted before their last step.
        """
        return is_exhausted(self.context)

    def __iter__(self) -> Iterator[Batch]:
        return _batches(self, self.plan.steps)

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """Yield one iterator of batches per epoch of the plan, from where the run is.

        An epoch sees each record once on average. A run that goes on within one begins with what is
        left of it.
        """
        begun = self.plan.epoch_of(self.context.progress.handed_out + 1)
        for epoch in range(begun, self.plan.epochs + 1):
            if self.exhausted:
                return
            yield _batches(self, self.plan.last_step_of(epoch))

    # One step

    def backward(self, loss_fn: LossFn, batch: Batch) -> Released:
        """Release the batch and add the result to ``p.grad``, as ``loss.backward()`` would.

        Modules that follow released statistics of their input, such as
        :class:`~dpfy.models.PrivateBatchNorm`, absorb them, and optimizers that have to know of the
        noise are told.

        Args:
            loss_fn: is called once per physical chunk with the collated fields, and returns the
                vector of per-example losses, or :class:`~dpfy.Losses`.
            batch: what iterating over this run yielded.

        Returns:
            What was released.
        """
        with certified():
            self._gate.check("run.backward()")
            released = self.release(loss_fn, batch)
            add_to_gradients(self.context.parameters, self.optimizers, released)
            self._gate.mark_released()
        for module in modules_of(self.model):
            if callable(absorb := getattr(module, "absorb", None)):
                absorb(released.statistics)
        return released

    def release(self, loss_fn: LossFn, batch: Batch) -> Released:
        """Reserve the step, draw the sample and return its noisy gradients.

        The model and ``p.grad`` stay as they are.

        Args:
            loss_fn: as for :meth:`backward`.
            batch: what iterating over this run yielded.

        Returns:
            What was released.

        Raises:
            BatchAlreadyReleased: if the batch was released before.
            BudgetExhausted: if the budget has no room for the step; nothing was read then.
            DivergenceError: if the model has parameters that are not finite.
            InvalidArgument: if the run is closed, or the batch is another run's.
            LedgerError: in a fork of the process that opened the run.
        """
        with certified():  # whatever torch is set to around it; one thread of a process at a time
            if self._closed:
                raise InvalidArgument("This run is closed. Open another with dpfy.privatize.")
            self.context.require_opener()
            if not isinstance(batch, Batch) or batch.owner is not self:
                raise InvalidArgument("Expected a batch that iterating over this run yielded.")
            _check_ready(self.context, batch)
            released = take_step(self.context, loss_fn, batch)
            self.context.require_opener()  # the loss or the data set may have forked
            if self.context.engines.unsaid and self.context.ranks.first:
                self.context.engines.announce()
            for each in self._listeners:  # which rank 0 has
                each.stepped(released, self.optimizers[0].param_groups[0]["lr"])
            return released

    # What is known of it, and the gate

    @property
    def declared(self) -> str:
        """Who declared the shape of records: example_input, the data set, or stacked tensors."""
        return self.context.example.how

    @property
    def isolation(self) -> str:
        """How it is known that one record cannot influence another one's gradient."""
        return self.context.engines.isolation

    @property
    def engine(self) -> str:
        """The name of the engine in use; the wanted one until a release has probed the model."""
        return self.context.engines.name

    @property
    def engine_notice(self) -> str:
        """Why ``auto`` took a slower engine than the fastest, with the line of code; or nothing."""
        return self.context.engines.notice

    @property
    def largest_chunk(self) -> int | None:
        """The most units of privacy in memory at once; None without a limit."""
        return self.context.largest_chunk(self.context.engines.current)

    def postprocessing(self) -> AbstractContextManager[None]:
        """Allow deliberate edits of released gradients inside the block."""
        return self._gate.vouched("run.postprocessing()")

    def public(self) -> AbstractContextManager[None]:
        """Allow gradients of public data, from plain ``loss.backward()``, inside the block."""
        return self._gate.vouched("run.public()")


def is_exhausted(context: StepContext) -> bool:
    """Tell whether the filter of a plan whose noise is chosen has no room for the next step."""
    if not context.plan.adaptive:
        return False
    step = context.progress.taken + 1
    event = context.sampling.event_before(context, step)
    event = event or event_of(context, step, context.controllers.config(step))
    return bool(context.ranks.from_first(lambda: b"" if context.ledger.admits(event) else b"no"))


def _batches(run: Run, last: int) -> Iterator[Batch]:
    """Yield the batches of a run up to step ``last``, as long as its filter has room."""
    progress = run.context.progress
    while progress.handed_out < last and not run.exhausted:
        progress.handed_out += 1
        yield Batch(run, progress.handed_out)


def _check_ready(context: StepContext, batch: Batch) -> None:
    """Refuse a step that would be paid for in vain."""
    if batch.released:
        raise BatchAlreadyReleased(
            f"The batch of step {batch.step} was released already. One sample licenses one "
            "release: take the next batch of the run."
        )
    if not context.trained():
        raise InvalidArgument("Every parameter is frozen by now: there is no gradient to release.")
    finite = are_finite(context.parameters.values())
    if context.ranks.any(not finite) if context.division else not finite:
        raise DivergenceError(
            "The released model has non-finite parameters: training diverged. Lower the learning "
            "rate; the ledger keeps what was spent."
        )


def add_to_gradients(
    parameters: Mapping[str, nn.Parameter],
    optimizers: tuple[torch.optim.Optimizer, ...],
    released: Released,
) -> None:
    """Put released gradients where the optimizers look for them, and tell these of the noise."""
    for optimizer in optimizers:
        if callable(expect_noise := getattr(optimizer, "expect_noise", None)):
            expect_noise({parameters[name]: each for name, each in released.stddevs.items()})
    for name, gradient in released.gradients.items():
        parameter = parameters[name]
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
