"""Collect what a run's guarantee rests on, and record it in the ledger before the first release.

Nothing of it is computed from records.
"""

import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dpfy._version import __version__
from dpfy.errors import IsolationError
from dpfy.gradients import Engine, LoopEngine
from dpfy.gradients.base import LossCall, Substitutes
from dpfy.ledger.basis import Ground, Kind
from dpfy.mechanisms.statistics import ROUNDING
from dpfy.records.rows import is_stored
from dpfy.run.terms import partition_for
from dpfy.sandbox.rng_isolation import bookmark
from dpfy.sandbox.torch_settings import TorchSettings

if TYPE_CHECKING:
    from dpfy.checks.probe import Probe
    from dpfy.run.context import StepContext

_OF_STORED_NORMS = "an individual filter, which bounds records by stored norms,"
_RANDOM_NUMBERS = "Random numbers of the loss, such as dropout masks"
_LIBRARIES = re.compile(
    r"^\s*- (.*(?:Math Kernel Library|MKL-DNN|OpenBLAS|Accelerate|CUDA Runtime|CuDNN).*)$", re.M
)


def record_basis(context: "StepContext", probe: "Probe", engine: Engine) -> None:
    """Record in the ledger what the steps of an engine rest on.

    Call it before the engine sees a record. Of several processes rank 0 writes, and all check.

    Args:
        context: the context of the run.
        probe: the probe that judged the engine on synthetic input.
        engine: the engine that was chosen.

    Raises:
        IsolationError: in a strict run, or under an individual filter, if the loss gives other
            bits for equal input.
    """
    if context.strict:
        _check_strictly(probe, engine)
    elif context.sampling.stores_norms:
        _check_equal_bits(probe, _OF_STORED_NORMS)
    if context.ranks.first:
        grounds = _grounds(context, engine, probe.draws_random_numbers)
        context.ledger.record_basis(
            {
                "engine": engine.name,
                "strict": context.strict,
                "environment": _environment(context),
                "grounds": [each.to_json() for each in grounds],
            }
        )


def _check_strictly(probe: "Probe", engine: Engine) -> None:
    """Refuse a loss whose bits may depend on more than the record."""
    if not isinstance(engine, LoopEngine):
        raise IsolationError(
            f"A strict run computes records one by one, and the engine is {engine.name!r}."
        )
    _check_equal_bits(probe, "a strict run")


def _check_equal_bits(probe: "Probe", purpose: str) -> None:
    """Refuse a loss that gives a record other bits when it is computed alone once more."""
    made, engine = probe.made_up(), LoopEngine(probe.model, probe.parameters)
    call, state = LossCall(probe.model, probe.loss_fn), Substitutes(probe.model, probe.parameters)
    last, again = made.size - 1, bookmark()
    in_company = engine.gradients_at(call, state, made, last)[0]
    again()
    alone = engine.gradients_at(call, state, made.record(last), 0)[0]
    if not all(_same_bits(one, other) for one, other in zip(in_company, alone, strict=True)):
        raise IsolationError(
            "The gradient of a synthetic record has other bits when it is computed again, so that "
            f"{purpose} is not possible: something in the model is not deterministic. Try "
            "torch.use_deterministic_algorithms(True), or torch.set_num_threads(1)."
        )


def _same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.to_dense(), other.to_dense())


def _grounds(context: "StepContext", engine: Engine, draws: bool) -> Iterator[Ground]:
    """Yield what the releases rest on, beside sampling, noise and accounting."""
    yield from _isolation(context, engine)
    yield from _rounding(context, engine)
    if context.sampling.stores_norms:
        yield from _stored_norms()
    yield from _shape(context)
    if draws and engine.one_by_one:
        yield Ground(
            Kind.THEOREM,
            "random_numbers",
            _RANDOM_NUMBERS,
            "The cipher draws whole states of torch's, numpy's and Python's generators for each "
            "record alone, so that what it draws is independent of all others: "
            "docs/proofs/isolation.md.",
        )
    elif draws:
        yield Ground(
            Kind.ALLOWANCE,
            "random_numbers",
            _RANDOM_NUMBERS,
            "They come from torch's, numpy's and Python's generators, whose whole states are drawn "
            "from the cipher for every chunk. That their output stands in for independent numbers "
            "is not proved.",
        )
    if not is_stored(context.records.data):
        yield Ground(
            Kind.THEOREM,
            "loading",
            "Random numbers that loading a record draws",
            "The generators have states that follow from a secret key of the step and from the "
            "record's index, in loading processes too: docs/proofs/isolation.md.",
        )


def _isolation(context: "StepContext", engine: Engine) -> Iterator[Ground]:
    title = "A record's gradient is computed without the others"
    if context.plan.query.slots is not None:
        yield Ground(
            Kind.THEOREM,
            "slots",
            "A record changes the mean of one slot",
            "Means of slots are clipped, and a slot shares its arithmetic with no other: "
            "docs/proofs/microbatches.md.",
        )
    else:
        yield Ground(
            Kind.THEOREM,
            "contribution",
            "A record adds at most the clip bound",
            "Its weight is computed from the very gradient that is added, or from an upper bound "
            "of its norm: docs/proofs/gaussian-sum.md, docs/proofs/clipping-engines.md.",
        )
        yield Ground(
            Kind.THEOREM if engine.isolates else Kind.CHECK,
            "isolation",
            title,
            f"Engine {engine.name}, {engine.isolation}.",
        )
        if not isinstance(engine, LoopEngine):
            yield Ground(
                Kind.CHECK,
                "agreement",
                "The engine computes what it should",
                f"Sums of {engine.name} were compared with those of records that were "
                "differentiated one by one, for this model and this loss.",
            )
    yield Ground(
        Kind.CHECK,
        "no_memory",
        "Model and loss keep nothing of a record",
        "Losses, buffers, parameters and attributes were looked at before and after other input.",
    )


def _rounding(context: "StepContext", engine: Engine) -> Iterator[Ground]:
    """Yield what is known of last bits."""
    if context.strict:
        yield Ground(
            Kind.THEOREM,
            "last_bits",
            "One record more changes no bit of what the others add",
            "Each is copied to memory of its own, aligned alike, and given alone to kernels of one "
            "shape; what float64 sums lose is in the noise scale: docs/proofs/isolation.md.",
        )
        yield Ground(
            Kind.CHECK,
            "equal_bits",
            "Equal records give equal bits",
            "The gradient of a record was computed among others and alone, and compared bit by "
            "bit.",
        )
        return
    co_batched = co_batched_records(context, engine)
    if co_batched:
        yield Ground(
            Kind.ALLOWANCE,
            "last_bits",
            "Last bits of what the others add",
            f"One record more may change how kernels round what up to {co_batched} others of its "
            f"block add. The noise is scaled for {engine.rounding:.2g} clip bounds for each of "
            "them, and assumes that none lies where a derivative jumps. Parameters: "
            f"{_dtypes(context)}. docs/proofs/isolation.md.",
        )
    if co_batched and context.plan.query.statistics:
        yield Ground(
            Kind.ALLOWANCE,
            "last_bits_of_statistics",
            "Last bits of the others' statistics",
            f"As above, with {ROUNDING:.2g} bounds of a statistic for each of up to {co_batched} "
            "others: docs/proofs/queries.md.",
        )
    if context.sampling.accepts_by_norm:
        yield Ground(
            Kind.ALLOWANCE,
            "last_bits_of_norms",
            "Last bits of the norms by which records are accepted",
            "One record more may move the norms of others by 2^-19 of their size; what coins tell "
            "by that is part of the cost: docs/proofs/dpis.md.",
        )


def co_batched_records(context: "StepContext", engine: Engine) -> int:
    """Return how many records may share their arithmetic with another one."""
    if context.plan.query.slots is not None:
        return 0
    step = max(1, context.progress.taken)
    return partition_for(context, engine, step, context.controllers.config(step)).largest


def _stored_norms() -> Iterator[Ground]:
    yield Ground(
        Kind.THEOREM,
        "own_filters",
        "A record's bound, and the step at which it leaves, follow from this record alone",
        "Given earlier outputs. It is clipped to its stored bound, and a record that has left is "
        "not computed: docs/proofs/individual-filter.md.",
    )
    yield Ground(
        Kind.CHECK,
        "equal_norms",
        "Equal records have equal norms",
        "Norms are computed one record at a time. The gradient of a synthetic record was computed "
        "among others and alone, and compared bit by bit.",
    )


def _shape(context: "StepContext") -> Iterator[Ground]:
    yield Ground(
        Kind.DECLARATION,
        "shape",
        "What a record looks like",
        f"Declared by {context.example.how}: {context.example.shapes}. What is larger or of "
        "another type contributes nothing.",
    )


def _environment(context: "StepContext") -> dict[str, Any]:
    """Where it was computed and with what, as plain JSON values."""
    device = next(iter(context.parameters.values())).device
    return {
        "dpfy": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "libraries": [
            " ".join(found.split()) for found in _LIBRARIES.findall(torch.__config__.show())
        ],
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "parameters": _dtypes(context),
        "matmul_precision": TorchSettings.present().matmul_precision,
        "autocast": torch.is_autocast_enabled(device.type),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "processes": context.ranks.size,
        "loading_processes": context.records.num_workers,
    }


def _dtypes(context: "StepContext") -> str:
    return ", ".join(
        sorted({str(p.dtype).removeprefix("torch.") for p in context.parameters.values()})
    )


def _processor() -> str:
    """The processor's own name where Linux tells it, else its kind."""
    try:
        found = re.search(
            r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M
        )
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()
