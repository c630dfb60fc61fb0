"""Bind a plan, a model and a population of clients to a ledger, and take its rounds.

Tests: tests/federated/test_server.py.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpfy import _validate
from dpfy.checks.parameters import trainable
from dpfy.errors import InvalidArgument, LedgerFinished
from dpfy.federated.contribution import Local
from dpfy.federated.server import Clients, RoundContext, Server
from dpfy.ledger import Ledger
from dpfy.ledger.events import FixedSize, Poisson, TruncatedPoisson
from dpfy.mechanisms.query import NormOfSum
from dpfy.mechanisms.sampling import sampler_for
from dpfy.mechanisms.sampling.fixed import require_declared
from dpfy.noise import SecureStream
from dpfy.plans import Plan
from dpfy.run.checkpoint import resumed
from dpfy.run.context import Progress
from dpfy.run.controller_states import ControllerStates
from dpfy.run.correlation import check_optimizers, history_for, noise_for
from dpfy.run.ledger_file import nothing_left, open_ledger
from dpfy.run.privatize import as_optimizers
from dpfy.run.ranks import Ranks
from dpfy.run.release_layout import check_leaves
from dpfy.types import Unit

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


def federate(
    model: nn.Module,
    server_optimizer: Optimizers,
    plan: Plan,
    ledger: str | Path | Ledger = "run.dpl",
    *,
    clients: Iterable[Hashable] | Callable[[], Iterable[Hashable]],
    local: Local = "fedavg",
    largest_weight: float | None = None,
    anchor: str | Path | None = None,
    insecure_test_key: int | bytes | None = None,
    announce: bool = True,
) -> Server:
    """Train a model with the updates of clients, and protect all that each client has.

    It is DP-FedAvg, or DP-FedSGD with ``local="fedsgd"``: a round draws a cohort, clips what each
    client of it sends, adds noise to the sum, divides by the plan's public divisor and lets the
    server's optimizer apply the result. ``torch.optim.SGD`` with a learning rate of 1 adds the mean
    update to the model; momentum and Adam work as well.

    *Formal guarantee*: that of the plan for the unit "user", where a user is a client; see
    :class:`~dpfy.federated.Server`.

    *Assumes*: the server is trusted with updates and with who takes part. Which clients can be
    reached depends on nobody's data. The plan's ``records`` and ``batch_size`` are public
    constants, the declared number of clients and the expected size of a cohort.

    Args:
        model: The model to train. Its trained parameters are averaged; buffers, such as the running
            statistics of BatchNorm, stay as they are.
        server_optimizer: One or several optimizers over the model's parameters.
        plan: What will run, with ``unit="user"``: of :func:`dpfy.dpsgd` where the server draws
            clients at random, of :func:`dpfy.dpftrl` where they take turns in a fixed order.
        ledger: The file of the ledger, or an open one.
        clients: The ids of all clients, in an order that does not change; or, for Poisson sampling,
            a function that returns those that can be reached now.
        local: ``"fedavg"`` if a client sends how local training changed the model, ``"fedsgd"`` if
            it sends a gradient.
        largest_weight: The weight at which an update counts in full. An update of weight w counts
            min(w, largest_weight)/largest_weight of its clipped self, and the divisor stays. By
            default all updates count the same, whatever their weight.
        anchor: A file in another place that also keeps the head of the ledger.
        insecure_test_key: Fixes all randomness, for tests. Nothing is private then, and the ledger
            says so. By default the operating system draws a key.
        announce: Whether to refuse a ledger that has no rounds left.

    Returns:
        The server; iterate over it for cohorts.

    Raises:
        InvalidArgument: If the model, the optimizer, the plan and the clients do not fit each
            other.
        LedgerFinished: If all rounds of the plan were spent on the ledger before.
        LedgerError: If the ledger cannot be opened or belongs to another plan.

    >>> import dpfy
    >>> plan = dpfy.dpsgd(records=100, batch_size=10, steps=1, noise_multiplier=1.0, unit="user")
    >>> model = nn.Linear(2, 1)
    >>> server = federate(
    ...     model,
    ...     torch.optim.SGD(model.parameters(), lr=1.0),
    ...     plan,
    ...     Ledger.in_memory(),
    ...     clients=range(100),
    ... )
    >>> for cohort in server:
    ...     for client in cohort.clients:  # ask each of them, and add what comes back
    ...         cohort.add(client, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    ...     released = server.step(cohort)
    >>> released.gradients["weight"].shape
    torch.Size([1, 2])

    Reference: McMahan et al. 2018, Learning Differentially Private Recurrent Language Models,
    Algorithm 1; docs/proofs/federated.md.
    """
    optimizers = as_optimizers(server_optimizer)
    _check_plan(plan)
    check_optimizers(plan, optimizers)
    _validate.choice("local", local, ("fedavg", "fedsgd"))
    if largest_weight is not None:
        _validate.positive("largest_weight", largest_weight)
    parameters = trainable(model, optimizers)
    check_leaves(plan.query, parameters, dict(model.named_parameters()))
    population = _population(clients, plan)
    noise, sampling = (
        SecureStream(insecure_test_key, purpose="noise"),
        SecureStream(insecure_test_key, purpose="sampling"),
    )
    sampler, history = sampler_for(plan.sampling, sampling), history_for(plan)
    opened = open_ledger(ledger, plan, noise.key_source, anchor, block=1, strict=False)
    try:
        taken = min(opened.plan_count, plan.steps)
        if announce and taken == plan.steps:
            raise LedgerFinished(nothing_left(plan, ledger, taken))
        context = RoundContext(
            plan=plan,
            model=model,
            parameters=parameters,
            ledger=opened,
            ranks=Ranks.present(),
            streams=(noise, sampling),
            sampler=sampler,
            noise=noise_for(history, noise, taken + 1),
            controllers=ControllerStates(plan, parameters, "auto"),
            progress=Progress(taken, taken),
            clients=population,
            local=local,
            largest_weight=largest_weight,
        )
        return Server(context, optimizers)
    except BaseException:
        if opened is not ledger:
            opened.close()  # nobody else could
        raise


def resume(
    directory: str | Path,
    model: nn.Module,
    server_optimizer: Optimizers,
    *,
    clients: Iterable[Hashable] | Callable[[], Iterable[Hashable]],
    ledger: str | Path | None = None,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Server:
    """Continue the server that :meth:`Server.save` wrote, with fresh cohorts and fresh noise.

    Args:
        directory: The folder of the checkpoint.
        model: A model of the same architecture.
        server_optimizer: The optimizer or optimizers, of the same kinds.
        clients: As for :func:`dpfy.federate`, in the same order.
        ledger: Where the ledger is now; None for where the checkpoint says.
        extra: Objects with ``load_state_dict``, by the names that they were saved under.
        options: Further arguments of :func:`dpfy.federate`.

    Returns:
        The server; ``lost_steps`` counts the rounds that were paid for after the checkpoint.

    Raises:
        CheckpointError: If the checkpoint does not fit the model, the optimizers or the ledger.
        LedgerError: If the ledger cannot be continued.
    """
    return resumed(
        directory,
        model,
        as_optimizers(server_optimizer),
        ledger,
        extra,
        lambda plan, path: federate(
            model, server_optimizer, plan, path, clients=clients, announce=False, **options
        ),
    )


def _check_plan(plan: Plan) -> None:
    """Refuse a plan whose rounds a server cannot take."""
    query = plan.query
    drawn = isinstance(plan.sampling, Poisson | FixedSize | TruncatedPoisson)
    for refused, reason in (
        (
            plan.unit is not Unit.USER,
            "the plan protects single records, and a client sends the update of all that it has. "
            "Make it with unit='user', where records= and batch_size= count clients.",
        ),
        (
            not drawn and plan.correlation is None,
            f"a server does not draw clients by the policy {plan.sampling.tag!r}. Use 'poisson', "
            "'fixed_size', 'truncated_poisson' or 'full', or dpfy.dpftrl where clients take turns.",
        ),
        (
            query.slots is not None or query.least_sample is not None,
            "microbatches and least_sample move sums by two bounds. Leave them out: a sum of "
            "updates is divided by a public constant.",
        ),
        (
            bool(plan.extra_events) or any(isinstance(x, NormOfSum) for x in query.statistics),
            "the norm of the sum, and controllers that release it, are for runs on records.",
        ),
        (
            Ranks.present().size > 1,
            "several processes of torch.distributed cannot be one server. Make it in one of them.",
        ),
    ):
        if refused:
            raise InvalidArgument(f"dpfy.federate: {reason}")


def _population(
    clients: Iterable[Hashable] | Callable[[], Iterable[Hashable]], plan: Plan
) -> Clients:
    """Return a function for the ids of all clients that a round may draw from."""
    if callable(clients):
        if not isinstance(plan.sampling, Poisson):
            raise InvalidArgument(
                f"The policy {plan.sampling.tag!r} needs all clients in a fixed order. Give a list "
                "as clients=; a function, whose list may change, goes with Poisson sampling."
            )
        return partial(_reachable, clients)
    if plan.correlation is not None and isinstance(clients, set | frozenset):
        raise InvalidArgument(
            "Clients that take turns need an order that does not change, and a set has another in "
            "the next process. Give a list as clients=, such as sorted(…)."
        )
    ids = tuple(clients)
    if len(set(ids)) < len(ids):
        raise InvalidArgument("Two clients have the same id. Give each client an id of its own.")
    if (declared := getattr(plan.sampling, "records", None)) is not None:
        require_declared(len(ids), declared)
    return lambda: ids


def _reachable(clients: Callable[[], Iterable[Hashable]]) -> Sequence[Hashable]:
    """Return the clients that can be reached now, each once: each flips one coin a round."""
    return tuple(dict.fromkeys(clients()))
