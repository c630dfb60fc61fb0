"""Check whether the loss of a record depends on the others in its batch, or on earlier ones.

Tests: tests/checks/test_probe.py.
"""

from itertools import product

from dpfy.checks.culprits import first_moved, first_unlike_alone, refusal
from dpfy.checks.trial import SIZES, Trial
from dpfy.gradients.synthetic import with_row_from

# the precision to which records in chunks of very different sizes agree, statistics included
COARSE = 2.0**-12


def are_consistent(trial: Trial) -> bool:
    """Whether records have the same losses in batches of other sizes, dropout aside."""
    return trial.varies or all(
        trial.same(
            trial.base_losses(size, scale), trial.base_losses(SIZES[-1], scale)[:size], COARSE
        )
        for size, scale in product(SIZES, trial.scales)
    )


def check_neighbours(
    trial: Trial, sizes: tuple[int, ...] = SIZES, scales: tuple[float, ...] | None = None
) -> None:
    """Refuse a model in which changing one example changes another one's loss.

    This is tried at several sizes, scales and positions.
    """
    for size, scale in product(sizes, trial.scales if scales is None else scales):
        base, other = trial.base(size, scale), trial.input(size, 2, scale)
        losses = trial.base_losses(size, scale)
        for position in sorted({0, size // 2, size - 1}):
            changed = with_row_from(base, other, position)
            rest = [row for row in range(size) if row != position]
            if not trial.same(losses[rest], trial.losses(changed)[rest]):
                culprit = first_moved(
                    trial.outputs(base), trial.outputs(changed), rest, trial.equal
                )
                raise refusal(trial.model, culprit, "lets one example change another one's loss")


def check_alone(trial: Trial) -> None:
    """Refuse a loss that differs between an example alone, in a batch and in a large batch.

    The loss must not be random, and dropout is off. Kernels for another number of examples round
    differently, in half precision by as much as its precision. The losses that are known are those
    with dropout, which may be others.
    """
    found = trial.alone_traced
    if found is None:
        found = trial.alone(trial.bases)
    for scale, alone in zip(trial.scales, found.split(SIZES[-1]), strict=True):
        for size in SIZES:
            base = trial.base(size, scale)
            if not (
                trial.same(trial.base_losses(size, scale), alone[:size], trial.shortest)
                or trial.same(trial.losses(base), alone[:size], trial.shortest)
            ):
                culprit = first_unlike_alone(
                    trial.outputs(base), trial.outputs(base.record(0)), base.size, trial.equal
                )
                raise refusal(
                    trial.model, culprit, "gives an example another loss alone than in a batch"
                )


def check_memory(trial: Trial) -> None:
    """Refuse a loss that changes once other records were seen.

    If it does not vary, it has not changed after other records either.
    """
    if not trial.varies:
        return
    size = SIZES[0]
    trial.losses(trial.input(size, 3, trial.scales[-1]))
    if not trial.same(trial.base_losses(size), trial.losses(trial.base(size))):
        raise refusal(trial.model, None, "keeps state between steps that changes later losses")


def check_many(trial: Trial, size: int, precision: float) -> None:
    """Refuse a loss that gives the first examples other losses among ``size`` than among a few.

    As in :func:`check_alone`, the losses that are known may be those with dropout.
    """
    if trial.random:
        return
    few = trial.base(min(size, SIZES[-1]))
    found = trial.losses(trial.many(size))[: few.size]
    if not (
        trial.same(found, trial.base_losses(SIZES[-1])[: few.size], precision)
        or trial.same(found, trial.losses(few), precision)
    ):
        raise refusal(
            trial.model,
            None,
            "gives an example another loss in a large batch than in a small one",
        )
