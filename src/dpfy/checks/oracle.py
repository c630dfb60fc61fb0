"""Clipped sums that an engine must reproduce: plain autograd, one synthetic record at a time.

Tests: tests/checks/test_probe.py, tests/gradients/test_isolation.py.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from dpfy.checks.recycled import RecycledProducts
from dpfy.checks.sharded_oracle import sharded_sums
from dpfy.checks.tolerance import are_equal_sums, is_within, squared_norm
from dpfy.checks.trial import SEED, Trial
from dpfy.errors import LossError
from dpfy.gradients import Engine, LoopEngine
from dpfy.gradients.base import LossCall, LossFn, Originals
from dpfy.gradients.bookkeeping.workspace import Workspace
from dpfy.gradients.chunk import Chunk
from dpfy.gradients.losses import per_example
from dpfy.gradients.sharded.rows import local, totals
from dpfy.gradients.synthetic import wobbled
from dpfy.mechanisms.clipping import Clipping, clip_to
from dpfy.sandbox.rng_isolation import fix_seed

_GRID = 2.0**-40
_CLIP = 1.0
_FACTORS = (2.0**12, 2.0**8, 2.0**16)  # of losses; powers of two, which change no digit
_MORE_DRAWS = 6  # of records, where the first left doubts
_DRAWS = 100  # apart are the seeds of draws, beyond those of other checks


def agrees_elsewhere(trial: Trial, engine: Engine, memory: Workspace) -> bool:
    """Whether an engine gives the oracle's sums on most of several other synthetic records.

    A batch is rounded otherwise than a record alone. Where that moves an activation to the other
    side of a kink, as of a ReLU or of max-pooling, gradients differ by much more than rounding,
    and both are right. About one network in twenty of ResNet18's size meets one; an engine
    that is wrong is wrong on all. A kink changes gradients and never their bound: an engine that
    exceeds it on any of the records on which it differs is refused.
    """
    try:
        if not _is_bounded(trial, engine, draw=0):  # on which it differed
            return False
        agreed = 0
        for draw in range(1, _MORE_DRAWS + 1):
            expected = oracle_sums(trial, memory, draw)
            if have_equal_sums(trial, engine_sums(trial, engine, draw), expected):
                agreed += 1
            elif not _is_bounded(trial, engine, draw):
                return False
    except Exception:  # on synthetic records: they cannot decide
        return False
    return agreed > _MORE_DRAWS // 2


def _is_bounded(trial: Trial, engine: Engine, draw: int) -> bool:
    """Whether an engine clips what each record of a draw adds to the sum, up to rounding."""
    return all(
        is_within(engine_sums(trial, engine, draw, record), _CLIP, trial.shortest, _joined(trial))
        for record in range(len(_FACTORS))
    )


def have_equal_sums(trial: Trial, found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Whether sums are equal as vectors; of a sharded model, the rows of all processes."""
    return are_equal_sums(found, expected, trial.shortest, _joined(trial))


def _joined(trial: Trial) -> Callable[[list[float]], list[float]]:
    """Return what adds up squared norms over the processes that have parts of the vectors."""
    if trial.gathering is None:
        return lambda squares: squares
    group = trial.gathering.shards.group
    return lambda squares: totals(squares, group)


def oracle_sums(trial: Trial, memory: Workspace, draw: int = 0) -> list[torch.Tensor]:
    """Return clipped sums of gradients that plain autograd computes one record at a time.

    A loss that no parameter takes part in is refused. Of a large model there are never more
    than two gradients in memory: the sums, and one that is written to ``memory``.
    """
    loss_fn, chunk, clipping = _clipped(trial, draw)
    if trial.gathering is not None:
        with trial.gathering.paused():
            return sharded_sums(trial.model, trial.parameters, loss_fn, chunk, clipping)
    oracle, call = LoopEngine(trial.model, trial.parameters), LossCall(trial.model, loss_fn)
    state, sums = Originals(trial.model, trial.parameters), None
    try:
        for position in range(chunk.size):
            with RecycledProducts(trial.parameters.values(), memory):
                found, _ = oracle.gradients_at(call, state, chunk, position)
            if all(gradient is None for gradient in found):
                raise LossError(
                    "No trainable parameter takes part in the loss. loss_fn must call the very "
                    "model that was given to privatize, not a copy, a compiled or a wrapped "
                    "one."
                )
            sums = _with_clipped(sums, found, trial.parameters.values(), clipping)
            del found  # before the next ones are computed
    except RuntimeError as error:
        remedy = (
            " Give torch.utils.checkpoint.checkpoint use_reentrant=False."
            if "use_reentrant" in str(error)
            else ""
        )
        raise LossError(
            f"The loss of one synthetic example cannot be differentiated ({error}).{remedy}"
        ) from None
    assert sums is not None
    return sums


def engine_sums(
    trial: Trial, engine: Engine, draw: int = 0, record: int | None = None
) -> list[torch.Tensor]:
    """Return the clipped sums of an engine, as it forms them in a step of one chunk.

    Given a record, return what it alone adds: the losses of the others in the chunk are zero.
    """
    loss_fn, chunk, clipping = _clipped(trial, draw, record)
    fix_seed(SEED)
    # memory that is not touched where the engine forms the sum in its own
    own = [local(p.detach()) for p in trial.parameters.values()]
    rooms = [torch.empty_like(rows, dtype=torch.float64) for rows in own]
    return engine.bounded_sums(loss_fn, chunk, clipping).formed_in(rooms)


def _clipped(trial: Trial, draw: int, record: int | None = None) -> tuple[LossFn, Chunk, Clipping]:
    """Return loss, records and clipping by which engines are compared.

    Losses are scaled up, each by its own factor, so that every record is clipped: a sum
    without clipping would be the same if gradients were counted for the wrong record. Given a
    record, the losses of all others are zero.
    """
    clipping = Clipping(clip_to(_CLIP), _GRID, (0,) * len(trial.parameters))
    chunk = trial.input(len(_FACTORS), _DRAWS * draw)
    chunk = wobbled(chunk, draw) if draw else chunk  # declared records are the same in every draw

    def scaled(*fields: Any) -> torch.Tensor:
        losses = per_example(trial.loss_fn(*fields[:-1]), len(fields[-1]))
        return losses * fields[-1].to(losses.device)

    factors = torch.tensor(
        [factor if record in (None, place) else 0.0 for place, factor in enumerate(_FACTORS)]
    )
    return scaled, Chunk((*chunk.arguments, factors), chunk.size), clipping


def _with_clipped(
    sums: list[torch.Tensor] | None,
    found: tuple[torch.Tensor | None, ...],
    parameters: Iterable[torch.Tensor],
    clipping: Clipping,
) -> list[torch.Tensor]:
    """Add the clipped gradient of one record to sums, in float32 at least; sums may be changed.

    Gradients are not: those of different parameters may share memory.
    """
    gradients = [
        torch.zeros_like(p) if g is None else g.to_dense()
        for g, p in zip(found, parameters, strict=True)
    ]
    norms = clipping.norms(
        [torch.tensor([squared_norm(g)], dtype=torch.float64) for g in gradients]
    )
    weights = [float(weight) for weight in clipping.weights(norms)]
    wide = [g.to(torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    if sums is None:
        return [
            g * weight if weight else torch.zeros_like(g)  # 0·inf would be NaN
            for g, weight in zip(wide, weights, strict=True)
        ]
    for total, g, weight in zip(sums, wide, weights, strict=True):
        if weight:
            total.add_(g, alpha=weight)
    return sums
