"""Take the rounds of a plan with clients that compute their updates themselves.

    reserve ─▶ draw a cohort ─▶ bound and add each answer ─▶ noise ─▶ the server's optimizer

The event is durable in the ledger before anybody is drawn. From the draw to the release everything
is sensitive: it is never logged, printed, saved or put into an exception.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfy._process import Opener
from dpfy.errors import BatchAlreadyReleased, DivergenceError, InvalidArgument
from dpfy.federated.cohort import Cohort
from dpfy.federated.contribution import Local, Terms
from dpfy.ledger import Ledger
from dpfy.mechanisms.controllers import StepConfig
from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.mechanisms.sampling import CyclicPoissonSampler, FixedOrderSampler, Sampler
from dpfy.noise import NoiseStrategy, SecureStream
from dpfy.plans import Plan
from dpfy.run.context import Progress
from dpfy.run.controller_states import ControllerStates
from dpfy.run.gate import are_finite
from dpfy.run.listening import Observed
from dpfy.run.ranks import Ranks
from dpfy.run.release_layout import ReleaseLayout
from dpfy.run.released import Released
from dpfy.run.run import add_to_gradients
from dpfy.run.sampling_strategy import check_next_row
from dpfy.run.terms import licensed_event, note_of
from dpfy.sandbox.torch_settings import certified

Clients = Callable[[], Sequence[Hashable]]
"""The ids of all clients that a round may draw from, when it draws."""


@dataclass(frozen=True)
class RoundContext:
    """Everything that a round works with.

    Args:
        plan: What was planned.
        model: The model that is trained.
        parameters: The parameters that the optimizers hold, by name.
        ledger: The ledger.
        ranks: The only process of the run.
        streams: The generators of the noise and of the sampling.
        sampler: What draws cohorts, and names the policy of a draw.
        noise: The noise that is added to sums.
        controllers: What is chosen from released values.
        progress: How far the run has come.
        clients: The clients that a round may draw from.
        local: What clients send.
        largest_weight: The weight at which an update counts in full, if weights count.
    """

    plan: Plan
    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    ledger: Ledger
    ranks: Ranks
    streams: tuple[SecureStream, SecureStream]
    sampler: Sampler
    noise: NoiseStrategy
    controllers: ControllerStates
    progress: Progress
    clients: Clients
    local: Local
    largest_weight: float | None

    @property
    def division(self) -> None:
        """How the model is divided among processes: the server's is whole."""

    def __repr__(self) -> str:
        return "RoundContext(sensitive)"  # it holds the generators

    def close(self) -> None:
        """Close the ledger, and end the thread of the noise."""
        self.noise.close()
        self.ledger.close()


class Server(Observed):
    """Take the rounds of a plan: iterate for cohorts, add answers, then :meth:`step`.

    :func:`dpfy.federate` and :func:`dpfy.federated.resume` make servers. A cohort that is not
    stepped is given up when the next one is drawn: its round is paid for, and nothing of it is
    released. The model is what was released last: whatever else happened to its parameters and
    buffers is undone before the next round, before each step, and before an open round is saved or
    closed. Clients start from a copy that is made when their cohort is drawn.

    Args:
        context: The plan, the ledger and what else a round works with.
        optimizers: The server's optimizers, which apply released gradients or nothing.

    *Formal guarantee*: whatever is computed from the models after each round, released statistics,
    the plan and public data satisfies the (ε, δ)-differential privacy of the registered plan, under
    its relation between sets of clients: all that a client has and sends is one unit. Every round
    is durable in the ledger before its cohort is drawn. Proof: docs/proofs/federated.md.

    *Assumes*: the server is trusted, and so is its network with the clients: updates, and who is in
    a cohort, are known to it alone. Which clients can be reached, and what a client computes,
    depends on no other client's data. Local training leaves nothing behind for other clients.
    """

    context: RoundContext

    def __init__(
        self, context: RoundContext, optimizers: tuple[torch.optim.Optimizer, ...]
    ) -> None:
        super().__init__(context, optimizers)
        self._opener = Opener()
        self._open: Cohort | None = None
        self._tensors = [*context.model.parameters(), *context.model.buffers()]
        self._released = [each.detach().clone() for each in self._tensors]

    @property
    def engine(self) -> str:
        """What bounds the gradients: the server, one client at a time."""
        return "federated"

    @property
    def isolation(self) -> str:
        """How it is known that no client can influence what another one contributes."""
        return (
            "by construction: each client computes alone, and its update is bounded by itself. "
            "Assumed: which clients can be reached depends on nobody's data, and who takes part is "
            "known to the server alone"
        )

    def __iter__(self) -> Iterator[Cohort]:
        while self.steps_left and (cohort := self._draw()) is not None:
            yield cohort

    def step(self, cohort: Cohort) -> Released:
        """Release the noisy sum of a round, and let the optimizers apply it.

        Nothing is renormalised: the sum is divided by the plan's divisor, however many clients
        answered. Without any answer it is noise.

        Args:
            cohort: What iterating over this server yielded last.

        Returns:
            What was released: gradients that point against the mean update, and statistics.

        Raises:
            BatchAlreadyReleased: If the round is over, or the cohort is another server's.
            InvalidArgument: If the server is closed.
            LedgerError: In a fork of the process that made the server.
        """
        with certified():  # one thread at a time: two would release the round twice
            self._check_open(cohort)
            self._restore_model()
            self._open = None
            try:
                released = self._release(cohort)
            finally:
                cohort.close()  # overwrites sums of a step that failed, too
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            add_to_gradients(self.context.parameters, self.optimizers, released)
            self._gate.mark_released()
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            self._gate.mark_released()
        for tensor, kept in zip(self._tensors, self._released, strict=True):
            kept.copy_(tensor.detach())
        self.context.controllers.observe(released)
        for each in self._listeners:
            each.stepped(released, self.optimizers[0].param_groups[0]["lr"])
        return released

    def save(self, directory: str | Path, extra: Mapping[str, Any] | None = None) -> Path:
        """Write a checkpoint of the model as it was released last, for :func:`resume`.

        What local training did to the server's own model in an open round is undone first.

        Args:
            directory: The folder of the checkpoint.
            extra: Plain values, or objects with a ``state_dict`` such as a scheduler.

        Returns:
            The file.
        """
        if self._open is not None:
            self._restore_model()
        return super().save(directory, extra)

    def close(self) -> None:
        """Remove the gate and close the ledger; a round that is open is given up."""
        self._give_up()
        super().close()

    def _draw(self) -> Cohort | None:
        """Reserve the next round and draw its cohort; None if a filter has no room for it."""
        self._check_usable()
        self._give_up()
        self._restore_model()
        context, plan, progress = self.context, self.plan, self.context.progress
        if not are_finite(context.parameters.values()):
            raise DivergenceError(
                "The released model has non-finite parameters: training diverged. Lower the "
                "learning rate of the server or the clients; the ledger keeps what was spent."
            )
        step = progress.taken + 1
        for stream in context.streams:
            stream.refresh()
        context.noise.begin(step)
        config = context.controllers.config(step)
        if plan.correlation is not None:
            check_next_row(context.ledger, step)
        if isinstance(context.sampler, FixedOrderSampler | CyclicPoissonSampler):
            context.sampler.turn_to(step)
        policy = context.sampler.policy
        event = licensed_event(
            plan, policy if plan.correlation is not None else policy.at(step), step, config
        )
        if plan.adaptive and not context.ledger.admits(event):
            return None
        terms = self._terms(step, config)
        released = deepcopy(context.model)  # clients start from it, whatever happens to the model
        context.ledger.reserve(event, note=note_of(config))
        progress.taken = progress.handed_out = step
        clients = context.clients()
        drawn = tuple(clients[place] for place in context.sampler.draw(len(clients)).tolist())
        mechanism = terms.mechanism
        context.noise.prefetch(terms.layout.size, mechanism.stddev, mechanism.grid)
        self._open = Cohort(terms, released, drawn, step)
        return self._open

    def _terms(self, step: int, config: StepConfig) -> Terms:
        """Return how a round bounds and sums, from the plan, the model and released values."""
        context, query = self.context, config.query
        trained = {name: p for name, p in context.parameters.items() if p.requires_grad}
        if not trained:
            raise InvalidArgument("Every parameter is frozen by now: there is nothing to train.")
        layout = ReleaseLayout.of_step(step, config, trained)
        sensitivity, noise = query.joint_sensitivity(step), self.plan.noise_at(step) * config.noise
        mechanism = GaussianSum(
            sensitivity,
            noise / sensitivity,
            layout.size,
            roundings=1 + context.noise.roundings,
        )
        return Terms(layout, mechanism, noise, context.local, context.largest_weight)

    def _release(self, cohort: Cohort) -> Released:
        """Return the noisy sums of a round over the public divisor."""
        context, terms, divisor = self.context, cohort._terms, self.plan.divisor
        gradients, statistics = terms.layout.split(cohort._taken())
        sums = [*gradients, *statistics]
        outputs = terms.layout.outputs(sums)
        terms.mechanism.release_pieces(sums, terms.layout.factors(divisor), outputs, context.noise)
        stddev = terms.mechanism.stddev * context.noise.spread / divisor
        return terms.layout.released(outputs, cohort.step, terms.noise_multiplier, stddev)

    def _restore_model(self) -> None:
        """Undo what local training in this process may have done to the model."""
        with torch.no_grad():
            for tensor, kept in zip(self._tensors, self._released, strict=True):
                if not torch.equal(tensor, kept):
                    tensor.copy_(kept)

    def _give_up(self) -> None:
        """End the open round, if there is one, without a release."""
        if self._open is not None:
            self._open.close()
            self._open = None
            self._restore_model()

    def _check_open(self, cohort: Cohort) -> None:
        """Refuse to release any round but the open one of this server."""
        self._check_usable()
        if cohort is not self._open:
            raise BatchAlreadyReleased(
                f"The round of {cohort!r} is over: it was released, or given up for the next one. "
                "Take the next cohort of the server."
                if isinstance(cohort, Cohort)
                else "Expected a cohort that iterating over this server yielded."
            )

    def _check_usable(self) -> None:
        """Refuse a closed server, and one that a fork has copied: two would release one round."""
        if self._closed:
            raise InvalidArgument("This server is closed. Open another with dpfy.federate.")
        self._opener.require(
            "This server",
            "release the same round with other noise",
            "Go on there, or call dpfy.federated.resume here once it has ended.",
        )
