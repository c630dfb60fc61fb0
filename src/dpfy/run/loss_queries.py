"""Answer one question about the losses of a sample, for recipes that look before they step.

    reserve ─▶ draw ─▶ clipped losses, model by model ─▶ noisy choice or comparison ─▶ an index

The declared sensitivity includes what a further record does to the rounding of other losses; the
proof is in ``docs/proofs/algorithms.md``.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.func import functional_call

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.gradients.base import LossCall, LossFn, Substitutes, per_unit
from dpfy.gradients.chunk import Chunk
from dpfy.ledger.events import Poisson, Sampled
from dpfy.mechanisms.controllers.recipe_controlled import RecipeControlled
from dpfy.mechanisms.one_shot import ExponentialMechanism, Mechanism, SparseVector
from dpfy.mechanisms.query import LEAST, MOST
from dpfy.mechanisms.statistics import ROUNDING
from dpfy.records.records import visit
from dpfy.run.context import StepContext
from dpfy.run.partition import BatchPartition
from dpfy.run.run import Run
from dpfy.sandbox.rng_isolation import isolated_rng

Weights = Mapping[str, torch.Tensor]
"""Values of the trained parameters, by their names in the model."""
_STEPS = 2**32  # of the bound: sums of clipped losses are whole numbers of them, and exact
_ARITHMETIC = (
    2.0**-19
)  # bounds by which float64 may move a difference of two sums and of what is asked for


class _Search:
    """Ask about the losses of a run, each clipped to [0, ``bound``]."""

    mechanism: Mechanism[Any, Any]

    def __init__(self, run: Run, bound: float) -> None:
        if not isinstance(run.plan.sampling, Poisson):
            raise InvalidArgument(
                f"Expected poisson or full sampling, got {run.plan.sampling.tag}: there is no rule "
                "for choices and comparisons on other samples."
            )
        if run.context.ranks.size > 1:
            raise InvalidArgument(
                "Searches over losses run in one process; this one is one of several."
            )
        if run.context.draws.ahead:
            raise InvalidArgument(
                "A search over losses is an event between two steps, and prefetch=1 has paid for "
                "the step after it by then. Use prefetch=0."
            )
        if run.strict:
            raise InvalidArgument(
                "A strict run compares no losses: that last bits of the others' losses hardly move "
                "is an allowance. Take steps with run.backward, or leave strict=True out."
            )
        self._run, self._bound = run, _validate.real("bound", bound, LEAST, MOST)
        self._partition = BatchPartition.planned(run.plan.expected_batch, run.largest_chunk)

    @property
    def sensitivity(self) -> float:
        """The bound, and an allowance for rounding.

        Co-batched records move two sums by ROUNDING bounds each, and float64 moves them by less.
        """
        return self._bound * (1 + 2 * self._partition.largest * ROUNDING + _ARITHMETIC)

    @property
    def event(self) -> Sampled:
        """The event of an answer, whatever the number of models."""
        run = self._run
        return replace(
            self.mechanism.event, policy=run.plan.sampling, adaptive=run.plan.filter is not None
        )

    def _losses(self, loss_fn: LossFn) -> "_Losses":
        """Pay, then draw a sample."""
        return _Losses(self._run.context, loss_fn, self._bound, self._partition, self.event)


class PrivateArgmin(_Search):
    """Choose the model with the least loss on a sample, by the exponential mechanism.

    Args:
        run: the run whose records are asked; its plan samples by Poisson, in one process.
        bound: losses are clipped to [0, bound]; above 0.
        epsilon: the cost of an answer as pure ε; above 0.

    Raises:
        InvalidArgument: if the run's sampling, processes or strictness have no rule for it.

    *Formal guarantee*: the event is on stable storage, and the ledger's guard has admitted it,
    before a record is read; nothing but the answer leaves. One record adds to each sum a loss
    clipped to [0, ``bound``], so it moves all sums one way: with ε = ``epsilon`` the choice is
    ε-differentially private and ε²/8-zCDP.

    *Assumes* that the models were chosen from released and public values.

    Reference: J. Lee & D. Kifer, Concentrated Differentially Private Gradient Descent with Adaptive
    per-Iteration Privacy Budget, 2018; McSherry & Talwar 2007.
    """

    def __init__(self, run: Run, bound: float, epsilon: float) -> None:
        super().__init__(run, bound)
        self.mechanism = ExponentialMechanism.with_epsilon(
            epsilon, self.sensitivity, monotone=True, name="step size"
        )

    def of(self, loss_fn: LossFn, models: Iterable[Weights]) -> int:
        """Return the index of a model whose loss is least, or nearly so."""
        losses = self._losses(loss_fn)
        return self.mechanism.release(
            [-losses.of(model) for model in models], self._run.context.streams.noise
        )


class FirstBelow(_Search):
    """Find the first of several models whose loss on a sample is lower by a given amount.

    Args:
        run: the run whose records are asked; its plan samples by Poisson, in one process.
        bound: losses are clipped to [0, bound]; above 0.
        epsilon: the cost of an answer as pure ε; above 0.

    Raises:
        InvalidArgument: if the run's sampling, processes or strictness have no rule for it.

    *Formal guarantee*: as for :class:`PrivateArgmin`; the answer is that of the sparse vector
    technique with one answer above, ε-differentially private whatever the number of models. One
    record moves each difference of sums by at most ``bound``, in either direction.

    *Assumes* that models and differences were chosen from released and public values.

    Reference: C. Chen & J. Lee, Stochastic Adaptive Line Search for Differentially Private
    Optimization, 2020; Lyu, Su & Li 2017, Theorem 4.
    """

    def __init__(self, run: Run, bound: float, epsilon: float) -> None:
        super().__init__(run, bound)
        self.mechanism = SparseVector.with_epsilon(epsilon, 0.0, self.sensitivity, name="decrease")

    def of(
        self, loss_fn: LossFn, start: Weights, models: Iterable[tuple[Weights, float]]
    ) -> int | None:
        """Return the index of the first model whose summed loss is low enough, or None.

        Args:
            loss_fn: the loss, as for :meth:`dpfy.Run.backward`.
            start: the weights to compare with.
            models: weights, and by how much their summed loss must be below that of ``start``.

        Returns:
            The index, or None if no model is found to be low enough.
        """
        losses = self._losses(loss_fn)

        def differences() -> Iterator[float]:
            before = losses.of(start)
            for model, decrease in models:
                yield (
                    before - losses.of(model) - min(decrease, _STEPS * self._bound)
                )  # more is never reached

        return self.mechanism.release(differences(), self._run.context.streams.noise)


def direct(run: Run, noise: float, bounds: float = 1.0) -> None:
    """Set noise and clip bounds of later steps, as factors of the planned ones.

    The plan must have the controller :class:`~dpfy.mechanisms.controllers.RecipeControlled`.
    """
    controllers = run.context.controllers
    states = controllers.state_dict()
    controller = next(
        (each for each in run.plan.controllers if isinstance(each, RecipeControlled)), None
    )
    if controller is None:
        raise InvalidArgument(
            "The recipe chooses noise from outputs, and the plan does not say so. Give the plan "
            "controllers=[dpfy.recipes.RecipeControlled()], then calibrate it."
        )
    controllers.load_state_dict({**states, controller.tag: controller.directed(noise, bounds)})


class _Losses:
    """Sum the clipped losses of one sample, paid for and drawn, for any weights. Sensitive."""

    def __init__(
        self,
        context: StepContext,
        loss_fn: LossFn,
        bound: float,
        partition: BatchPartition,
        event: Sampled,
    ) -> None:
        self._context, self._bound = context, bound
        context.streams.refresh()
        context.ledger.reserve(event, note={"loss bound": bound})
        with isolated_rng(context.streams.training):
            # Judged on synthetic input: no record changes another one's loss.
            self._engine = context.engine_for(loss_fn)
        sample = context.sampling.draw(context, context.progress.taken + 1)
        self._records = context.records.sample(sample.indices, sample.seeds)
        # A loss that is safe one record at a time only is not asked for many losses at once.
        self._parts = (
            [*sample.indices.split(1)]
            if self._engine.isolates
            else partition.parts(sample.indices, sample.tags)
        )
        self._call = LossCall(context.model, loss_fn)

    def of(self, weights: Weights) -> float:
        """Return Σ clip(loss, [0, bound]).

        A loss that is not a number counts as the bound, one that raises as zero.
        """
        total, context = 0, self._context
        others = Substitutes(context.model, context.trained()).others
        state = {f"model.{name}": value for name, value in {**others, **weights}.items()}

        def steps(chunk: Chunk) -> int:
            if chunk.size > 1 and not self._engine.accepts(chunk):
                return sum(steps(chunk.record(place)) for place in range(chunk.size))
            returned = functional_call(self._call, state, chunk.arguments)
            losses = per_unit(returned, chunk)[0].detach().double()
            clipped = torch.where(losses.isnan(), self._bound, losses).clamp(0.0, self._bound)
            return int((clipped * (_STEPS / self._bound)).round().sum())

        def take(found: int) -> None:
            nonlocal total
            total += found

        with isolated_rng(context.streams.training):
            visit(self._records, self._parts, steps, take)
        context.require_opener()  # the loss may have forked
        return math.ldexp(float(total), -32) * self._bound
