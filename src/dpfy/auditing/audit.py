"""Audits of private runs: what canaries reveal, compared with what the ledger guarantees."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfy import _validate
from dpfy.accounting import FilterGuarantee, account
from dpfy.accounting.conversions import TradeoffCurve, tradeoff_curve
from dpfy.auditing.bounds import (
    Guesses,
    Trials,
    epsilon_from_trials,
    gaussian_epsilon,
    guesses_refute,
    inverse_of,
    mu_from_trials,
    one_run_epsilon,
    one_run_mu,
    trials_refute,
)
from dpfy.auditing.canaries import Canaries, GradientCanaries, coins, following
from dpfy.auditing.inputs import ATTACKS, KINDS, InputCanaries, make, shape_of
from dpfy.auditing.membership import as_trials
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.ledger.basis import Ground
from dpfy.ledger.grant import Booking
from dpfy.mechanisms.query import Contributing
from dpfy.plans import Plan
from dpfy.records.example import declared_example
from dpfy.reporting.basis import grounds
from dpfy.reporting.record import LedgerRecord
from dpfy.run.privatize import as_optimizers, privatize
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.label_settings import require_records
from dpfy.trainer.trainer import Trainer
from dpfy.types import Relation

_FEWEST = 50  # canaries; with fewer no bound is informative
_FALSE_ALARM = 1e-6
_RATES = [round(0.01 * number, 2) for number in range(101)]


@dataclass(frozen=True)
class Audit:
    """The result of an attack with canaries on one run, beside the guarantee of the run's ledger.

    The one-run bounds (Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri 2024) assume
    only fair coins. The bounds from trials treat canaries as independent trials. Input canaries are
    not independent, nor are canaries under bounds that follow released values; for them these
    bounds are 0 and ``trials`` is None.

    Args:
        setting: the kind of canaries and what the attacker sees, in words.
        epsilon_claimed: the upper bound on ε from the ledger.
        delta: the δ of all ε.
        confidence: the confidence of each lower bound.
        epsilon_one_run: lower bound on ε from guesses about one run.
        mu_one_run: lower bound on the μ of Gaussian DP from guesses about one run.
        epsilon_trials: lower bound on ε from trials.
        mu_trials: lower bound on μ from trials.
        refuted: whether canaries reveal more than the ledger allows, which happens to a correct
            pipeline with probability below 1e-6.
        canaries: the number of canaries.
        guesses: the guesses and how many of them were correct.
        trials: the errors of the attack as a test, or None.
        claimed: the trade-off curve that the ledger guarantees.
        attack: the trade-off curve that the attack reached.
        basis: the grounds of the claim, as in a report.
    """

    setting: str
    epsilon_claimed: float
    delta: float
    confidence: float
    epsilon_one_run: float
    mu_one_run: float
    epsilon_trials: float
    mu_trials: float
    refuted: bool
    canaries: int
    guesses: Guesses
    trials: Trials | None
    claimed: TradeoffCurve
    attack: TradeoffCurve
    basis: tuple[Ground, ...] = ()

    @property
    def epsilon_lower(self) -> float:
        """The best lower bound on ε that needs no assumption about the mechanism."""
        return max(self.epsilon_one_run, self.epsilon_trials)

    @property
    def gaussian_lower(self) -> float:
        """The lower bound on ε if the run is as private as some Gaussian mechanism.

        Sampled Gaussian mechanisms nearly are.
        """
        return max(gaussian_epsilon(mu, self.delta) for mu in (self.mu_one_run, self.mu_trials))

    def to_json(self) -> dict[str, Any]:
        """Return the audit as plain JSON values."""
        return {
            **asdict(self),
            "epsilon_lower": self.epsilon_lower,
            "gaussian_lower": self.gaussian_lower,
            "basis": [{**ground.to_json(), "status": ground.status} for ground in self.basis],
        }


def audit_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    plan: Plan,
    loss_fn: Callable[..., Any],
    delta: float,
    *,
    canaries: int | Sequence[Any] = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    engine: str = "auto",
    key: int | None = None,
    attack: str = "white-box",
    public: bool = False,
    example_input: Any = None,
    booking: Booking | None = None,
    tell: Callable[[int, int], None] = lambda step, steps: None,
) -> Audit:
    """Train as planned with canaries among the records, and guess which canaries were included.

    The run is separate and has a ledger in memory, so nothing that it learns about ``data`` may
    stay: the model and the optimizer are restored, and the result depends on canaries and noise
    alone. Plans that follow what they release would break that, and are refused unless ``data`` is
    ``public``.

    *Input* canaries, unlike gradient canaries, share parameters with ``data``, so the result
    depends on it: it must be ``public``, synthetic or empty. They are scored by the released
    gradients or, with ``attack="black-box"``, by the losses of the last model.

    Args:
        model: the model to train; it is restored afterwards.
        optimizer: its optimizer; it is restored afterwards.
        data: the records beside the canaries.
        plan: the plan to audit, for adding or removing a record.
        loss_fn: the loss per example, as in training.
        delta: the δ at which ε is bounded, in (0, 1).
        canaries: the number of gradient canaries, at least 50, or a list of synthetic records:
            those of :func:`~dpfy.auditing.mislabelled` and :func:`~dpfy.auditing.crafted`, or your
            own.
        guesses: the number of guesses, about the canaries with the highest and the lowest scores.
            It is fixed beforehand; by default it is an eighth of the canaries.
        confidence: the confidence of each lower bound, in (0, 1).
        engine: the gradient engine.
        key: a public key that makes the audit repeatable; None draws a secret one.
        attack: "white-box" or "black-box".
        public: whether ``data`` is public.
        example_input: as for :func:`dpfy.privatize`.
        booking: what :meth:`dpfy.BudgetBook.pay_for` returned for a new ledger, if the budget of a
            data set is to pay for the audited run. Each audit is a run of its own, and is charged.
        tell: is called after every step with the step and the number of steps.

    Returns:
        The bounds from below and from above.

    Raises:
        InvalidArgument: if a value is outside its range, or if the result would depend on private
            records.

    *Formal guarantee*: with probability at least ``confidence`` each lower bound is below what the
    pipeline really has, for adding or removing a record.
    """
    _validate.delta(delta)
    _validate.real("confidence", confidence, 0, 1, open_low=True, open_high=True)
    watched, made = _watched(model, loss_fn, plan, canaries, guesses, key, attack, public)
    if booking is not None and booking.path.exists():
        raise InvalidArgument(
            f"{booking.path} exists. An audit is a run of its own: give the path of a new ledger."
        )
    ledger = Ledger.in_memory() if booking is None else booking
    loss = watched.loss(model, loss_fn)
    optimizers = (*as_optimizers(optimizer), *watched.optimizers)
    with _put_back(model, optimizer):
        among, example = watched.among(data, example_input)
        with (
            watched.on(model),
            privatize(
                model,
                optimizers,
                among,
                plan,
                ledger,
                engine=engine,
                announce=False,
                insecure_test_key=key,
                example_input=example,
            ) as run,
        ):
            for batch in run:
                for each in optimizers:
                    each.zero_grad()
                watched.see(run.backward(loss, batch))
                for each in optimizers:
                    each.step()
                tell(batch.step, plan.steps)
        scores = watched.scores()  # before the model is put back
    return _judge(scores, watched, plan, run.ledger, delta, made, confidence)


def _watched(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    plan: Plan,
    canaries: int | Sequence[Any],
    guesses: int | None,
    key: int | None,
    attack: str,
    public: bool,
) -> tuple[Canaries, int]:
    """Return the canaries with their coins, and the number of guesses."""
    _validate.choice("attack", attack, ATTACKS)
    if isinstance(canaries, Sequence):
        if not public:
            raise InvalidArgument(
                "Input canaries share parameters with the records beside them, so an audit would "
                "show something of these. Give public or synthetic records (dpfy.auditing.MadeUp), "
                "and say so with public=True."
            )
        made = _check(plan, len(canaries), guesses)
        return InputCanaries(
            coins(len(canaries), key), canaries, model, loss_fn, plan.clip, attack
        ), made
    made = _check(plan, canaries, guesses)
    if attack != "white-box":
        raise InvalidArgument(
            f"Expected attack='white-box' with gradient canaries, got {attack!r}: no loss of the "
            "model shows them. Use input canaries."
        )
    if (names := following(plan)) and not public:
        raise InvalidArgument(
            f"This plan follows what it releases ({', '.join(names)}), so what canaries show would "
            "depend on the records beside them, and no ledger would say so. Use canaries that are "
            "records and run alone (mislabelled or crafted), or public=True for public records."
        )
    return GradientCanaries(coins(canaries, key)), made


@contextmanager
def _put_back(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Restore the model and the optimizer when the block ends."""
    kept = deepcopy(model.state_dict()), deepcopy(optimizer.state_dict())
    try:
        yield
    finally:
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
        optimizer.zero_grad()


def audit_settings(
    settings: TrainConfig,
    kind: str = "gradient",
    canaries: int = 1000,
    public: bool = False,
    **options: Any,
) -> Audit:
    """Audit the run that ``dpfy train`` would make with these settings.

    Mislabelled and crafted canaries run without other records, unless the data are ``public``:
    others would only hide them. Of private data only the declared shape is used.

    Args:
        settings: the settings of the run.
        kind: "gradient", "mislabelled" or "crafted".
        canaries: the number of canaries.
        public: whether the data are public.
        **options: further arguments of :func:`audit_run`.

    Returns:
        The audit.
    """
    require_records(settings.protect, "an audit")
    trainer = Trainer(settings)
    _check_settings(trainer, _validate.choice("kind", kind, ("gradient", *KINDS)))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(trainer.model(x), y, reduction="none")

    data: Any = trainer.data.train
    example = declared_example(data, None, trainer.data.example).chunk
    planted: int | Sequence[Any] = canaries
    if kind != "gradient":
        _check(trainer.plan, canaries, options.get("guesses"))
        shape = shape_of(tuple(field[0] for field in example.arguments))
        with torch.no_grad():
            classes = trainer.model(torch.zeros(1, *shape)).shape[-1]
        data = data if public else []
        planted = make(kind, trainer.model, loss, shape, classes, canaries, trainer.plan.clip)
        public = True
    return audit_run(
        trainer.model,
        trainer.optimizer,
        data,
        trainer.plan,
        loss,
        trainer._delta,
        engine=trainer.config.engine,
        canaries=planted,
        public=public,
        example_input=example.arguments,
        **options,
    )


def _check_settings(trainer: Trainer, kind: str) -> None:
    """Refuse settings for which something else would be audited."""
    if trainer.config.algorithm != "dpsgd":
        raise InvalidArgument(
            f"Expected algorithm='dpsgd' in an audit, got {trainer.config.algorithm!r}: canaries "
            "are watched in the gradients of ordinary steps, and this one compares losses too."
        )
    if (
        any(not isinstance(each, Contributing) for each in trainer._statistics())
        or trainer.data.owners is not None
    ):
        raise InvalidArgument(
            "An audit plants records and watches gradients. Leave private_metrics, private "
            "BatchNorm and users out of its settings."
        )
    if kind == "gradient" and trainer.config.groups != "flat":
        raise InvalidArgument(
            f"Expected groups='flat' with gradient canaries, got {trainer.config.groups!r}: their "
            "parameter is in none of the groups. Use canaries that are records (mislabelled or "
            "crafted)."
        )


def _check(plan: Plan, canaries: int, guesses: int | None) -> int:
    """Return the number of guesses."""
    if _validate.count("canaries", canaries) < _FEWEST:
        raise InvalidArgument(
            f"Expected at least {_FEWEST} canaries: with {canaries} even perfect guesses would "
            "prove almost nothing. A thousand is a good number."
        )
    if plan.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise InvalidArgument(
            "Canaries are in or out, so an audit is about adding or removing a record; the plan "
            f"is about {plan.relation}."
        )
    made = (
        max(2, canaries // 8) if guesses is None else _validate.count("guesses", guesses, minimum=2)
    )
    if made > canaries:
        raise InvalidArgument(
            f"Expected at most as many guesses as canaries ({canaries}), got {made}."
        )
    return made - made % 2


def _judge(
    scores: torch.Tensor,
    watched: Canaries,
    plan: Plan,
    ledger: Ledger,
    delta: float,
    made: int,
    confidence: float,
) -> Audit:
    guarantee, present = account(ledger), watched.present
    order = scores.argsort()
    right = int(present[order[-made // 2 :]].sum()) + int((~present[order[: made // 2]]).sum())
    found = Guesses(len(scores), made, right)
    threshold = watched.threshold(plan)
    trials = None if threshold is None else as_trials(scores, present, threshold)
    refuted = (
        trials is not None and trials_refute(trials, guarantee, 1 - _FALSE_ALARM / 2)
    ) or guesses_refute(found, inverse_of(guarantee), _FALSE_ALARM / 2)
    return Audit(
        setting=watched.setting,
        epsilon_claimed=guarantee.claim(delta),
        delta=delta,
        confidence=confidence,
        epsilon_one_run=one_run_epsilon(found, delta, confidence),
        mu_one_run=one_run_mu(found, confidence),
        epsilon_trials=0.0 if trials is None else epsilon_from_trials(trials, delta, confidence),
        mu_trials=0.0 if trials is None else mu_from_trials(trials, confidence),
        refuted=refuted,
        canaries=len(scores),
        guesses=found,
        trials=trials,
        claimed=tradeoff_curve(guarantee, _RATES),
        attack=_attack(scores, present),
        basis=grounds(
            LedgerRecord.of(ledger),
            guarantee.filter if isinstance(guarantee, FilterGuarantee) else None,
        ),
    )


def _attack(scores: torch.Tensor, present: torch.Tensor) -> TradeoffCurve:
    """Return the error rates of the attack at about a hundred thresholds."""
    thresholds = scores[~present].quantile(torch.linspace(1, 0, 101, dtype=torch.float64))
    fpr = [float((scores[~present] > threshold).double().mean()) for threshold in thresholds]
    fnr = [float((scores[present] <= threshold).double().mean()) for threshold in thresholds]
    return TradeoffCurve(tuple(fpr), tuple(fnr))
