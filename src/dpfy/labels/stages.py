"""Multi-stage training (LP-MST): models of earlier stages are the prior of later answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dpfy import _validate
from dpfy.errors import InvalidArgument
from dpfy.labels.noisy import NoisyLabels, checked_priors
from dpfy.labels.reading import Labels, class_numbers, count_of
from dpfy.labels.release import Declared, LabelRelease, Parts, StrPath
from dpfy.labels.response import PriorResponse
from dpfy.ledger import Ledger
from dpfy.ledger.composite_events import Parallel
from dpfy.noise import SecureStream

Predictor = Callable[[Any], Any]
TrainOne = Callable[[Any, NoisyLabels], Predictor]
"""A function of features and noisy labels that returns a predictor: features to probabilities."""


@dataclass(frozen=True)
class Staged:
    """A model that was trained in stages, and the noisy labels that it was trained on.

    Args:
        model: What ``train_one`` returned for all records and their noisy labels.
        noisy: The noisy labels of all records.
    """

    model: Any
    noisy: NoisyLabels


def multi_stage(
    train_one: TrainOne,
    x: Any,
    y: Labels,
    classes: int,
    epsilon: float,
    stages: int,
    ledger: Ledger | StrPath,
    *,
    rule: str = "information",
    insecure_test_key: int | bytes | None = None,
) -> Staged:
    """Train in stages on labels that are answered once each, with earlier models as priors.

    Record i is in stage i mod ``stages``. The first stage answers without a prior, each later one
    with a model of the earlier stages as the prior; the last model is trained on all answers. With
    ``rule="truth"``, ``stages=1`` is randomized response and one training (LP-1ST).

    *Formal guarantee*: ε-differentially private for replacing one label, models included.

    *Assumes* that ``train_one`` and the predictors that it returns look at nothing but their
    arguments and public data, and that features, their order and number are public.

    Args:
        train_one: A function of features and :class:`NoisyLabels` that returns a predictor. Called
            with features, the predictor returns the probabilities of all classes for each record.
            :func:`likelihood_loss` is a loss that knows the noise.
        x: The public features: a tensor or an array, one row for each record.
        y: The private labels, as class numbers from 0; what is no class counts as class 0.
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.
        stages: The number of stages, at least 1.
        ledger: The path of a ledger, or an open one; the noisy labels are saved beside it.
        rule: How answers are chosen; see :class:`PriorResponse`.
        insecure_test_key: A key that makes the draw reproducible, and the labels not private.

    Returns:
        The last model, and the noisy labels.

    Raises:
        InvalidArgument: If an argument is out of its range, or if a predictor returns no
            probabilities.
        LedgerMismatch: If the ledger was begun for something else.
        BudgetExhausted: If labels were drawn before, and are lost.

    Reference: Ghazi, Golowich, Kumar, Manurangsi & Zhang 2021 (LP-MST);
    ``docs/proofs/labels.md``, Proposition 2.

    >>> def train_one(x, noisy):  # a model that knows how often classes are
    ...     shares = (torch.bincount(noisy.labels, minlength=2) + 1.0) / (len(x) + 2.0)
    ...     return lambda x: shares.expand(len(x), 2)
    >>> with Ledger.in_memory() as ledger:
    ...     found = multi_stage(train_one, torch.zeros(8, 1), [1] * 8, 2, 20.0, 2, ledger)
    >>> found.model(torch.zeros(1, 1)).argmax().item()
    1
    """
    noisy = staged_labels(
        train_one,
        x,
        y,
        classes,
        epsilon,
        stages,
        ledger,
        rule=rule,
        insecure_test_key=insecure_test_key,
    )
    return Staged(train_one(x, noisy), noisy)


def staged_labels(
    train_one: TrainOne,
    x: Any,
    y: Labels,
    classes: int,
    epsilon: float,
    stages: int,
    ledger: Ledger | StrPath,
    *,
    rule: str = "information",
    insecure_test_key: int | bytes | None = None,
) -> NoisyLabels:
    """Return the noisy labels of :func:`multi_stage`, for a last training of one's own.

    *Formal guarantee*: that of :func:`multi_stage`.

    Args:
        train_one: As of :func:`multi_stage`; it is called once for each stage but the first.
        x: The public features.
        y: The private labels.
        classes: The declared number of classes, at least 2.
        epsilon: The ε of the release, above 0.
        stages: The number of stages, at least 1.
        ledger: The path of a ledger, or an open one.
        rule: How answers are chosen; see :class:`PriorResponse`.
        insecure_test_key: A key that makes the draw reproducible, and the labels not private.

    Returns:
        The noisy labels of all records.

    Raises:
        InvalidArgument: As of :func:`multi_stage`.
        LedgerMismatch: If the ledger was begun for something else.
        BudgetExhausted: If labels were drawn before, and are lost.
    """
    records = count_of(y)
    if len(x) != records:
        raise InvalidArgument(
            f"Expected features and labels of the same records, got {len(x)} and {records}."
        )
    response = PriorResponse(classes, epsilon, rule)
    event = Parallel((response.event,) * _validate.count("stages", stages), moves=False)
    parameters = {"stages": stages, "rule": rule}
    declared = Declared("multi_stage", classes, epsilon, records, event, parameters)
    noisy = NoisyLabels(torch.zeros(records, dtype=torch.int64), torch.ones(records, classes))
    with LabelRelease(declared, ledger, insecure_test_key) as release:
        for stage in range(stages):
            here, before = _places(records, stages, stage)
            priors = None
            if stage and not release.drawn(stage):
                priors = train_one(x[before], noisy[before])(x[here])
            found = _stage(release, stage, response, y, here, priors)
            noisy.labels[here], noisy.likelihood[here] = found.labels, found.likelihood
    return noisy


def _stage(
    release: LabelRelease,
    stage: int,
    response: PriorResponse,
    y: Labels,
    here: torch.Tensor,
    priors: Any,
) -> NoisyLabels:
    """Return the noisy labels of one stage, drawn if this is the first time."""
    if priors is not None:
        priors = checked_priors(priors, len(here), response.classes)  # before anything is spent

    def draw(stream: SecureStream) -> Parts:
        numbers = class_numbers(y, response.classes, here.tolist())
        drawn = response.release(numbers, priors, stream)
        return {"labels": drawn.labels, "likelihood": drawn.likelihood}

    return NoisyLabels(**release.once(stage, draw))


def _places(records: int, stages: int, stage: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of a stage, and those of the stages before it."""
    stage_of = torch.arange(records) % stages
    return (stage_of == stage).nonzero()[:, 0], (stage_of < stage).nonzero()[:, 0]
