"""Release the loss of each sample as a statistic of the plan, so that it can be logged.

Tests: tests/integrations/huggingface/test_trainer.py.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dpfy.gradients.losses import Losses
from dpfy.mechanisms.query import Statistic
from dpfy.plans import Plan
from dpfy.types import Budget

LOSS = "loss"
_GUESSED = {
    "causal_lm": "vocab_size",
    "masked_lm": "vocab_size",
    "seq2seq": "vocab_size",
    "classification": "num_labels",
    "token_classification": "num_labels",
}


def with_statistic(loss_fn: Callable[..., torch.Tensor]) -> Callable[[Any], Losses]:
    """Return a loss that has itself as a statistic.

    It is a partial function, as the checks of a loss look into these and into no object of ours.
    """
    return partial(_twice, loss_fn)


def _twice(loss_fn: Callable[..., torch.Tensor], batch: Any) -> Losses:
    losses = loss_fn(batch)
    return Losses(losses, {LOSS: losses})


def releases_loss(plan: Plan) -> bool:
    """Whether a plan has a statistic for the loss."""
    return any(each.name == LOSS for each in plan.query.statistics)


def with_loss(plan: Plan, task: str | None, model: Any) -> Plan:
    """Return a plan that releases the loss too, within the same budget if it has one.

    A loss counts as that of a blind guess if it is above it, and 4 is the least bound.
    """
    if releases_loss(plan):
        return plan
    guessed = _GUESSED.get(task or "")
    outcomes = getattr(model.config, guessed, 1) if guessed else 1
    bound = max(4.0, math.ceil(math.log(outcomes)))
    statistics = (*plan.query.statistics, Statistic(LOSS, bound=bound))
    more = replace(plan, query=replace(plan.query, statistics=statistics))
    if not isinstance(plan.budget, Budget):  # budgets of groups hold: all sums cost what one does
        return more
    return more.calibrate(plan.budget.epsilon, plan.budget.delta)
