"""The distance of each engine from one record at a time, on synthetic records.

Tests: tests/checks/test_explain.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dpfy.checks.explain import as_chunk
from dpfy.checks.oracle import agrees_elsewhere, engine_sums, have_equal_sums, oracle_sums
from dpfy.checks.probe import Probe
from dpfy.checks.tolerance import are_equal_sums, squared_norm
from dpfy.checks.undisturbed import undisturbed, without_dropout
from dpfy.errors import InvalidArgument
from dpfy.gradients import ENGINES, Engine, LoopEngine
from dpfy.gradients.base import LossFn
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.sharded.engine import engines_of
from dpfy.gradients.sharded.gather import Gathering
from dpfy.gradients.sharded.rows import Shards, totals
from dpfy.mechanisms.clipping import Clipping
from dpfy.sandbox.torch_settings import certified

_RECORDS = 3
_GRID = 2.0**-40


@dataclass(frozen=True)
class Parity:
    """The comparison of one engine with the oracle; prints as a sentence.

    Args:
        engine: The name of the engine.
        agrees: Whether clipped sums agree, as the probe of a run decides.
        error: The distance of a record's gradient from the oracle's, relative to its norm; the
            largest
            of a few records. None if there is nothing to compare.
        parameter: The parameter in which the gradients differ most.
        reason: Why there is nothing to compare.
    """

    engine: str
    agrees: bool
    error: float | None
    parameter: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.engine} {self.reason}"
        if self.agrees:
            return (
                f"{self.engine} agrees to {self.error:.0e}"
                if self.error
                else f"{self.engine} agrees exactly"
            )
        return (
            f"{self.engine} differs by {self.error:.0e}, most of all in {self.parameter!r}, and is "
            "not used"
        )


def parity(model: nn.Module, batch: Any, loss_fn: LossFn) -> tuple[Parity, ...]:
    """Compare every engine with the oracle, ``loop``, which differentiates one record at a time.

    Dropout is off: it would draw other numbers for each engine.

    Args:
        model: The module to train.
        batch: A collated batch of *synthetic* examples.
        loss_fn: A function from the fields of the batch to one loss per example.

    Returns:
        A comparison for every engine but the oracle.

    >>> model = nn.Linear(3, 2)
    >>> found = parity(model, torch.rand(4, 3), lambda x: model(x).sum(1))
    >>> [each.engine for each in found], all(each.agrees and each.error < 1e-6 for each in found)
    (['bookkeeping', 'ghost', 'vmap'], True)
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    judge = Probe(model, trained, loss_fn, as_chunk(batch), declared=True)
    with certified(), undisturbed(model), without_dropout(model):
        if judge.random:
            return tuple(
                Parity(
                    name, False, None, reason="cannot be compared: the loss draws random numbers"
                )
                for name in ENGINES
                if name != LoopEngine.name
            )
        doubts = judge.doubts()
        oracle = LoopEngine(model, trained)
        expected = oracle_sums(judge, Workspace()), _gradients(judge, oracle)
        return tuple(
            _compared(judge, name, doubts, *expected) for name in ENGINES if name != LoopEngine.name
        )


def sharded_parity(model: nn.Module, batch: Any, loss_fn: LossFn) -> Parity:
    """Compare the engine for sharded models with the model's own autograd.

    Every process calls it with the same synthetic records.

    Args:
        model: A model on which ``fully_shard`` was called.
        batch: A collated batch of *synthetic* examples.
        loss_fn: A function from the fields of the batch to one loss per example.

    Returns:
        The comparison, once all checks of a run have passed.

    Raises:
        InvalidArgument: If the model is not sharded, or in a way for which there is no proof.
        IsolationError: If the model or the loss mixes records, or no engine serves it.
    """
    shards = Shards.of(model)
    if shards is None:
        raise InvalidArgument("Expected a model on which fully_shard was called.")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gathering = Gathering(model, shards)
    judge = Probe(
        model,
        trained,
        loss_fn,
        as_chunk(batch),
        declared=True,
        engines=engines_of(gathering),
        gathering=gathering,
    )
    engine = judge.choose("auto")
    with certified(), undisturbed(model), gathering.standing(), without_dropout(model):
        expected, found = oracle_sums(judge, Workspace()), engine_sums(judge, engine)
        agrees = have_equal_sums(judge, found, expected)
    pairs = zip(found, expected, strict=True)
    squares = [sum(squared_norm(f, e) for f, e in pairs), sum(map(squared_norm, expected))]
    difference, length = totals(squares, shards.group)
    return Parity(engine.name, agrees, math.sqrt(difference / length) if length else 0.0)


def _compared(
    judge: Probe,
    name: str,
    doubts: Callable[[Engine], str],
    sums: list[torch.Tensor],
    gradients: list[list[torch.Tensor]],
) -> Parity:
    """Compare one engine with the oracle's gradients."""
    engine = ENGINES[name](judge.model, judge.parameters)
    if doubt := doubts(engine):
        return Parity(name, False, None, reason=f"is not used: {doubt}")
    try:
        engine.prepare(judge.loss_fn, judge.input)
        agrees = are_equal_sums(
            engine_sums(judge, engine), sums, judge.shortest
        ) or agrees_elsewhere(judge, engine, Workspace())
        found = _gradients(judge, engine)
    except Exception as error:  # of torch's or the engine's, on synthetic records
        said = " ".join(str(error).split()) or type(error).__name__
        return Parity(name, False, None, reason=f"cannot serve this model: {said.rstrip('.')}")
    errors = [
        [float((f - e).norm()) for f, e in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(found, gradients, strict=True)
    ]
    lengths = [math.hypot(*(float(e.norm()) for e in theirs)) or 1.0 for theirs in gradients]
    largest, worst = max(
        (math.hypot(*each) / length, each) for each, length in zip(errors, lengths, strict=True)
    )
    return Parity(name, agrees, largest, max(zip(worst, judge.parameters, strict=True))[1])


def _gradients(judge: Probe, engine: Engine) -> list[list[torch.Tensor]]:
    """Return the gradient of each of a few records: the sum with weight 1 for it and 0 for others.

    Clipping is left out: an engine that bounds norms from above clips a little more than the
    oracle.
    """
    chunk, found = judge.input(_RECORDS), []
    for place, weights in enumerate(torch.eye(_RECORDS, dtype=torch.float64).unsqueeze(2)):
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in judge.parameters.values()]
        alone = isinstance(engine, LoopEngine)  # it weighs one at a time
        part, given = (
            (chunk.record(place), weights[place : place + 1]) if alone else (chunk, weights)
        )
        # whatever the norms are
        clipping = Clipping(partial(torch.Tensor.to, given), _GRID, (0,) * len(totals))
        engine.bounded_sums(judge.loss_fn, part, clipping).add_to(totals)
        found.append(totals)
    return found
