"""Membership inference: guess from a model's losses which records were in its training data.

Scores are higher for records that look like members. On canaries and on public twins of the data
the answer may be shown to anybody. On real members it is a release of private data that nothing
protects: see :func:`owner_diagnostic`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import norm

from dpfy.accounting.conversions import TradeoffCurve
from dpfy.auditing.bounds import Trials
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.ledger.events import NonPrivate

_FEWEST_SHADOWS = 4  # on each side, to estimate a standard deviation
_LEAST_SPREAD = 1e-3


@dataclass(frozen=True)
class Membership:
    """The success of scores in telling members from others.

    Args:
        area: the area under the ROC curve.
        curve: the error rates at every threshold.
    """

    area: float
    curve: TradeoffCurve

    def tpr_at(self, fpr: float) -> float:
        """Return the true positive rate at a false positive rate."""
        rates = [
            1 - miss
            for alarm, miss in zip(self.curve.fpr, self.curve.fnr, strict=True)
            if alarm <= fpr
        ]
        return max(rates, default=0.0)


def loss_scores(losses: torch.Tensor) -> torch.Tensor:
    """Return scores of the loss-threshold attack: members have smaller losses.

    Args:
        losses: one loss per record.

    Returns:
        One score per record.

    >>> loss_scores(torch.tensor([0.5, 2.0])).tolist()
    [-0.5, -2.0]

    Reference: Yeom et al. 2018.
    """
    return -losses.double()


def likelihood_ratio_scores(
    confidence: torch.Tensor, shadows: torch.Tensor, present: torch.Tensor
) -> torch.Tensor:
    """Return the scores of the likelihood-ratio attack, LiRA.

    Both sides are modelled as Gaussian, record by record.

    Args:
        confidence: [records], the logit log(p/(1 − p)) of the true class under the audited model.
        shadows: [models, records], the same under models trained on random halves.
        present: [models, records], which records each of these models was trained on.

    Returns:
        One score per record.

    Raises:
        InvalidArgument: if shapes differ, or if a record was in or out of fewer than four models.

    Reference: Carlini et al. 2022.
    """
    if shadows.shape != present.shape or shadows.shape[1:] != confidence.shape:
        raise InvalidArgument(
            f"Expected shadows and present to be [models, records] for {len(confidence)} records, "
            f"got {tuple(shadows.shape)} and {tuple(present.shape)}."
        )
    fewest = min(int(present.sum(0).min()), int((~present).sum(0).min()))
    if fewest < _FEWEST_SHADOWS:
        raise InvalidArgument(
            f"Some record was in or out of only {fewest} shadow models; at least {_FEWEST_SHADOWS} "
            "on each side are needed to know how its confidence spreads. Train more of them."
        )
    inside, outside = _law(shadows, present), _law(shadows, ~present)
    value = confidence.double()
    return torch.from_numpy(norm.logpdf(value, *inside) - norm.logpdf(value, *outside))


def _law(values: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the standard deviation of the chosen values of every column."""
    count, kept = chosen.sum(0), torch.where(chosen, values.double(), 0.0)
    mean = kept.sum(0) / count
    squares = torch.where(chosen, (values.double() - mean) ** 2, 0.0).sum(0)
    return mean, (squares / (count - 1)).sqrt().clamp(min=_LEAST_SPREAD)


def membership(scores: torch.Tensor, present: torch.Tensor) -> Membership:
    """Compare scores of canaries, or of a public twin run, with which records were in.

    Args:
        scores: one score per record.
        present: whether each record was in.

    Returns:
        The area under the curve, and its points.

    Raises:
        InvalidArgument: if all records were in, or none.

    >>> present = torch.tensor([True, True, False, False])
    >>> membership(torch.tensor([3.0, 2.0, 1.0, 0.0]), present).area
    1.0
    """
    inside, outside = scores[present].double(), scores[~present].double()
    if not len(inside) or not len(outside):
        raise InvalidArgument(
            "Expected records of both kinds: some that were in and some that were not."
        )
    above = (inside[:, None] > outside[None]).double() + 0.5 * (
        inside[:, None] == outside[None]
    ).double()
    thresholds = torch.cat([torch.tensor([torch.inf]), scores.double().unique().flip(0)])
    fpr = [float((outside >= threshold).double().mean()) for threshold in thresholds]
    fnr = [float((inside < threshold).double().mean()) for threshold in thresholds]
    return Membership(float(above.mean()), TradeoffCurve(tuple(fpr), tuple(fnr)))


def as_trials(scores: torch.Tensor, present: torch.Tensor, threshold: float) -> Trials:
    """Return the errors of the test that says "in" above a threshold chosen beforehand."""
    says_in = scores > threshold
    return Trials(
        int((~present).sum()),
        int((says_in & ~present).sum()),
        int(present.sum()),
        int((~says_in & present).sum()),
    )


def owner_diagnostic(
    ledger: Ledger,
    attack: Callable[[], Any],
    reason: str = "membership inference on real members",
) -> Any:
    """Run an attack on real members, for the data's owner only, and record it as non-private.

    The ledger is first charged with a non-private event, so every later report from it says so. Use
    canaries or a twin run on public data for anything that is to be shown.

    Args:
        ledger: the ledger of the audited run.
        attack: runs the attack and returns its result.
        reason: the reason that the ledger records.

    Returns:
        The result of the attack.
    """
    ledger.reserve(NonPrivate(reason))
    return attack()
