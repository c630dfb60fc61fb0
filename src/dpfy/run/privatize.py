"""Bind a plan to a model and its optimizers, to private records, and to a ledger.

Tests: tests/run/test_run.py.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from dpfy import _validate
from dpfy.checks.model_kinds import require_python_modules
from dpfy.checks.parameters import trainable
from dpfy.checks.probe import check_collation
from dpfy.errors import InvalidArgument, LedgerFinished
from dpfy.gradients import ENGINES, PER_RECORD_GRADIENTS
from dpfy.gradients.bookkeeping.native import convolution
from dpfy.gradients.sharded.engine import engines_of
from dpfy.ledger import Ledger
from dpfy.ledger.events import ImportanceSchedule
from dpfy.ledger.grant import Booking, Grant
from dpfy.ledger.individual import FilteredPoisson, Individual
from dpfy.mechanisms.sampling import CyclicPoissonSampler, FixedOrderSampler, sampler_for
from dpfy.mechanisms.sampling.fixed import require_declared
from dpfy.noise import SecureStream
from dpfy.noise.native import kernels
from dpfy.plans import Plan
from dpfy.records.example import declared_example
from dpfy.records.kinds import check_records_usable
from dpfy.records.loaders import taken_from
from dpfy.records.membership import Membership
from dpfy.records.rows import check_map_style
from dpfy.records.users import records_by_unit
from dpfy.run.context import Progress, StepContext, Streams
from dpfy.run.controller_states import ControllerStates
from dpfy.run.correlation import check_optimizers, history_for, noise_for
from dpfy.run.draws import draws_for
from dpfy.run.engine_choice import EngineChoice
from dpfy.run.importance_sampling import ImportanceSampling
from dpfy.run.individual_sampling import (
    IndividualBounds,
    IndividualSampling,
    RecordBudgets,
    check_individual,
)
from dpfy.run.ledger_file import new_path, nothing_left, open_ledger
from dpfy.run.norm_sums import extra_releases
from dpfy.run.ranks import Ranks
from dpfy.run.record_bounds import GroupBounds, RecordBounds, UniformBounds
from dpfy.run.release_layout import check_leaves
from dpfy.run.run import Run, is_exhausted
from dpfy.run.sampling_strategy import (
    IndependentSampling,
    SamplingStrategy,
    ScheduledSampling,
)
from dpfy.run.sharding import Division, check_plan
from dpfy.run.strict import strict_engine
from dpfy.sandbox.rng_isolation import has_known_generators
from dpfy.types import Unit


def privatize(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    data: Any,
    plan: Plan,
    ledger: str | Path | Ledger | Booking = "run.dpl",
    *,
    max_physical_batch: int | None = None,
    engine: str = "auto",
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    prefetch: int = 0,
    example_input: Any = None,
    insecure_test_key: int | bytes | None = None,
    anchor: str | Path | None = None,
    block: int = 1,
    if_exists: str = "continue",
    announce: bool = True,
    unit: Unit | str | None = None,
    unit_of: Any = None,
    rows_per_user: int | None = None,
    group_of: Any = None,
    strict: bool = False,
    grant: Grant | None = None,
) -> Run:
    """Bind a plan to a model, its optimizer, private data and a ledger.

    The model and the optimizer stay what they are; until the run is closed, the optimizer refuses a
    gradient that was not released. In a process group of ``torch.distributed`` every rank calls
    this with the same arguments: the model becomes that of rank 0, each sample is divided among the
    ranks, and the ledger and the noise are rank 0's.

    Args:
        model: the model to train; BatchNorm and other layers that mix records are refused.
        optimizer: one or several optimizers over the model's parameters.
        data: a map-style data set, or a ``DataLoader`` over one whose order is the plan's sampling.
        It
            is not iterated: the run draws by the same law from its own generator.
        plan: what will run. A plan under a filter (:meth:`Plan.under`) declares it in the ledger,
        whose
            guard then admits or refuses every step before records are read, and whatever your own
            code reserves with ``run.ledger.reserve``.
        ledger: the file of the ledger, an open one, or what :meth:`dpfy.BudgetBook.pay_for`
            returned. Default: ``run.dpl``.
        max_physical_batch: the most rows in memory at once; it changes rounding errors only.
        Default:
            as many as suit the engine.
        engine: ``auto``, ``bookkeeping``, ``ghost``, ``vmap`` or ``loop``. Default: ``auto``, the
            fastest that is safe for the model.
        collate_fn: turns a list of one record into a batch of one. Default: torch's.
        num_workers: processes that load records. Default: 0.
        prefetch: 1 to pay for, draw and load the next step while a step computes; see
            docs/how-to/own-loop.md. It needs ``num_workers``, and a plan whose next event follows
            from no output. Default: 0.
        example_input: a collated batch of synthetic examples, of the largest shape that a record
        may
            have. It decides the engine and the scale of the noise; records that do not fit it
            contribute nothing. A ``TensorDataset`` needs none, nor does a data set that has it as
            an attribute.
        insecure_test_key: fixes all randomness, for tests. Nothing is private then, and the ledger
        says
            so. Default: a fresh key of the operating system.
        anchor: a file in another place that also keeps the head of the ledger.
        block: the number of steps to reserve at once. Default: 1.
        if_exists: ``continue`` to take the steps that an existing ledger has left, or ``new`` to
            leave it as it is and begin ``run-2.dpl``, say, beside it. What was trained on the same
            records costs the ε of all their ledgers together. Default: ``continue``.
        announce: whether to print that steps were spent on the ledger before, to refuse a ledger
            that has none left, and to print why ``auto`` took a slower engine. Default: True.
        unit: ``record`` or ``user``: what is protected. Default: as the plan says.
        unit_of: whose the rows are, for users: one id per row, a function from a row's index to its
            id, or :class:`dpfy.Users` where rows are sorted by user. A step draws users;
            ``loss_fn`` still returns one loss per row.
        rows_per_user: the most rows of a user in a step, drawn for each step; a user counts with
            the mean of their losses. Default: 16.
        group_of: which group each record is in, for a plan of :func:`dpfy.idpsgd`: one label per
            record, or a function or mapping from a record's index to its label. A label is the name
            of a group or its position in the plan; a record with any other label never takes part,
            silently. With users, a function or mapping from the user's id to the label; where
            ``unit_of`` is :class:`dpfy.Users`, one label per user. Labels are public: see
            docs/how-to/individual-budgets.md.
        strict: whether to refuse whatever rests on an allowance instead of a proof; see
            docs/how-to/engines.md. Default: False.
        grant: the grant of a :class:`~dpfy.budgets.BudgetBook` that pays for the run from the
            budget of its data set. Default: none, so that what other runs spent on the same records
            is not known.

    Returns:
        The run; iterate over it for batches.

    Raises:
        InvalidArgument: if the model, the optimizer, the plan and the options do not fit each
        other.
        DataError: if the data set is not map-style, or the shape of its records is not
        declared.
        LedgerFinished: if all steps of the plan were spent on the ledger before.
        LedgerError: if the ledger cannot be opened or belongs to another plan.
        BookError: if the book does not let the run begin.
    """
    optimizers = as_optimizers(optimizer)
    plan = _protecting(plan, unit)
    check_optimizers(plan, optimizers)
    history = history_for(plan)
    _check_model(model)
    _validate.choice("engine", engine, ("auto", *ENGINES))
    _validate.choice("if_exists", if_exists, ("continue", "new"))
    _validate.count("num_workers", num_workers, minimum=0)
    division = Division.of(model)
    if division is not None:
        check_plan(plan, engine)
    parameters = trainable(model, optimizers)
    check_leaves(plan.query, parameters, dict(model.named_parameters()))
    convolution.compile_ahead(model)  # in the order in which they are needed
    kernels.compile_ahead(sum(p.numel() for p in parameters.values()))
    if max_physical_batch is not None:
        _validate.count("max_physical_batch", max_physical_batch)
    if isinstance(data, DataLoader):
        data, collate_fn, num_workers = taken_from(data, plan.sampling, collate_fn, num_workers)
    check_map_style(data)
    draws = draws_for(prefetch, plan, num_workers)
    example = declared_example(data, collate_fn, example_input)
    check_records_usable(data, collate_fn, example.chunk)
    if collate_fn is not None and example.record is not None:
        check_collation(collate_fn, example.record)
    ranks = Ranks.present()
    own_noise = (lambda stream: stream) if division is None else ranks.own
    streams = Streams(
        noise=own_noise(SecureStream(insecure_test_key, purpose="noise")),
        sampling=SecureStream(insecure_test_key, purpose="sampling"),
        training=ranks.own(SecureStream(insecure_test_key, purpose="training")),
    )
    records = records_by_unit(
        data,
        collate_fn,
        num_workers,
        plan.unit,
        unit_of,
        rows_per_user,
        example.chunk,
        streams.training,
    )
    with ranks.together():
        groups = Membership.of(group_of, plan.sampling, records, unit_of, plan.records)
    if (declared := getattr(plan.sampling, "records", None)) is not None:
        require_declared(len(records), declared)
    if strict:
        engine = strict_engine(
            engine,
            sampling=plan.sampling.tag,
            test_key=insecure_test_key is not None,
            devices={p.device.type for p in parameters.values()},
            anchored=ledger.anchored if isinstance(ledger, Ledger) else anchor is not None,
        )
    if ranks.size > 1:
        ranks.agree(
            {
                "plan": plan.to_json(),
                "number of records": len(records),
                "unit_of or rows_per_user": records.owners,
                "group_of": groups and groups.digest(),
                "engine or max_physical_batch": (engine, max_physical_batch),
                "prefetch": prefetch,
                "example_input": repr(example.chunk.signature),
                "set of trained parameters": [
                    (name, p.shape, p.dtype) for name, p in parameters.items()
                ],
            }
        )
        ranks.share([*model.parameters(), *model.buffers()])
        if division is not None:
            division.share(model)
    with ranks.together():
        if if_exists == "new" and ranks.first:
            ledger = new_path(ledger, anchor)
        opened = (
            open_ledger(ledger, plan, streams.noise.key_source, anchor, block, strict, grant)
            if ranks.first
            else None
        )
    try:
        controllers = ControllerStates(plan, parameters, engine)
        sampling, record_bounds = _sampling(
            plan, streams.sampling, engine, ranks.size, parameters, groups, opened, len(records)
        )
        engines = PER_RECORD_GRADIENTS if controllers.needs_gradients else sampling.engines
        if division is not None:
            engines = engines_of(division.gathering)
        taken = _steps_taken(plan, opened, ranks)
        context = StepContext(
            plan=plan,
            model=model,
            parameters=parameters,
            records=records,
            example=example,
            open_ledger=opened,
            ranks=ranks,
            streams=streams,
            sampling=sampling,
            draws=draws,
            noise=noise_for(history, streams.noise, taken + 1),
            controllers=controllers,
            engines=EngineChoice(engine, engines, announce),
            progress=Progress(taken, taken),
            record_bounds=record_bounds,
            max_physical_batch=max_physical_batch,
            strict=strict,
            division=division,
        )
        if announce and (taken >= plan.steps or is_exhausted(context)):
            raise LedgerFinished(nothing_left(plan, ledger, taken))
        run = Run(context, optimizers)
    except BaseException:
        if opened is not None and opened is not ledger:
            opened.close()  # nobody else could
        raise
    if opened is not None and opened.plan_count > 0 and announce:
        sys.stdout.write(
            f"{plan.steps - run.steps_left} of the plan's {plan.steps} steps were spent on this "
            f"ledger before; {run.steps_left} are left. dpfy.resume continues a saved model.\n"
        )
    return run


def _protecting(plan: Plan, unit: Unit | str | None) -> Plan:
    """Return the plan with the unit that is asked for; one that protects users is not weakened."""
    if unit is None or _validate.choice("unit", unit, tuple(Unit)) == plan.unit:
        return plan
    if plan.unit is Unit.USER:
        raise InvalidArgument(
            "The plan protects users. Make one with unit='record' if records are what is to be "
            "protected; leave unit= out otherwise."
        )
    return replace(plan, unit=Unit(unit))


def _sampling(
    plan: Plan,
    stream: SecureStream,
    engine: str,
    ranks: int,
    parameters: Mapping[str, nn.Parameter],
    groups: Membership | None,
    ledger: Ledger | None,
    records: int,
) -> tuple[SamplingStrategy, RecordBounds]:
    """Return the strategy that draws what the plan's policy says, and how records are bounded."""
    policy = plan.sampling
    if isinstance(policy, ImportanceSchedule):
        return ImportanceSampling(plan, stream, engine, ranks, parameters), UniformBounds()
    if isinstance(policy, FilteredPoisson):
        check_individual(engine, ranks, parameters)
        assert ledger is not None  # there is one process
        budgets = RecordBudgets(plan, ledger, records)
        return IndividualSampling(plan, stream, budgets), IndividualBounds(budgets)
    numbers = None if groups is None else groups.numbers
    bounds: RecordBounds = UniformBounds()
    if isinstance(policy, Individual) and numbers is not None and set(policy.bounds) != {1.0}:
        bounds = GroupBounds(policy, numbers)
    sampler = sampler_for(policy, stream, numbers)
    if plan.correlation is not None:
        assert isinstance(sampler, FixedOrderSampler | CyclicPoissonSampler)
        return ScheduledSampling(sampler), bounds
    return IndependentSampling(sampler), bounds


def _steps_taken(plan: Plan, ledger: Ledger | None, ranks: Ranks) -> int:
    """Return how many steps of the plan the ledger of rank 0 holds already."""

    def counted() -> bytes:
        assert ledger is not None
        events = ledger.plan_count - extra_releases(plan, ledger)
        return b"%d" % min(events * plan.steps_per_event, plan.steps)

    return int(ranks.from_first(counted))


def as_optimizers(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
) -> tuple[torch.optim.Optimizer, ...]:
    """Return one or several optimizers as a tuple, without the wrappers of Accelerate.

    A wrapper has the step of the optimizer inside as its own, so that the gate is in both.
    """
    given = tuple(optimizer) if isinstance(optimizer, Sequence) else (optimizer,)
    return tuple(
        each.optimizer if type(each).__module__.startswith("accelerate.") else each  # type: ignore[attr-defined]
        for each in given
    )


def _check_model(model: nn.Module) -> None:
    require_python_modules(model)
    for device in {p.device for p in model.parameters()}:
        if not has_known_generators(device):
            raise InvalidArgument(
                f"The model is on {device.type!r}, whose random generators torch can not save and "
                "restore, so that masks of dropout would not be secret. Use the CPU or CUDA."
            )
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise InvalidArgument(
                f"{type(module).__name__} averages raw gradients. Pass the module inside (its "
                ".module): in a process group the run divides the work itself."
            )
    if any(
        hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        for module in model.modules()
    ):
        raise InvalidArgument(
            "Compiled models drop the substitution of parameters that per-example gradients need. "
            "Pass the module that you compiled, and let loss_fn call it."
        )
