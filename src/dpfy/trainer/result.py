"""The results of a training run.

Tests: tests/trainer/test_trainer.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from dpfy.run.callbacks import Evaluation
from dpfy.types import Interval, Unit


@dataclass(frozen=True)
class TrainingResult:
    """The results of a training run; all of them are released or public.

    Args:
        folder: The folder with the model, the ledger and the report.
        spent: An interval that holds the ε spent at ``delta``.
        claim: The ε that may be claimed at ``delta``: that of the whole plan if the run stopped
            early after an evaluation. Of several groups of records, that of the weakest.
        delta: The δ of the guarantee.
        evaluations: The evaluations on public data.
        stopped_early: Whether the run stopped because the accuracy on public data did not improve.
        contributing: The mean of the noisy shares of records that contributed, or None if they were
            not released.
        groups: The ε that may be claimed for each group of records, where groups have budgets of
            their own.
        model: The trained model, or the average of its weights if one was asked for: what the
            folder holds, and :func:`dpfy.load_model` loads.
        unit: The unit of privacy.
    """

    folder: Path
    spent: Interval
    claim: float
    delta: float
    evaluations: tuple[Evaluation, ...]
    stopped_early: bool
    contributing: float | None = None
    groups: Mapping[str, float] = field(default_factory=dict)
    model: nn.Module | None = field(default=None, repr=False, compare=False)
    unit: Unit = Unit.RECORD
