"""An audit of a private run: how much canaries betray of it, beside what its ledger guarantees."""

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
from dpfy.mechanisms.query import Contributing
from dpfy.plans import Plan
from dpfy.records.example import declared_example
from dpfy.reporting.basis import grounds
from dpfy.reporting.record import LedgerRecord
from dpfy.run.privatize import as_optimizers, privatize
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.trainer import Trainer
from dpfy.types import Relation

_FEWEST = 50  # canaries below which no bound would say anything
_FALSE_ALARM = 1e-6
_RATES = [round(0.01 * number, 2) for number in range(101)]


@dataclass(frozen=True)
class Audit:
    """What an attack with canaries achieved on one run, and what the run's ledger guarantees.

    ``epsilon_one_run`` (Steinke, Nasr & Jagielski 2023) and ``mu_one_run`` (Mahloujifar, Melis &
    Chaudhuri 2024) assume nothing but fair coins; ``epsilon_trials`` and ``mu_trials`` take the
    canaries for independent trials, which input canaries, and those under bounds that follow what
    is released, are not: theirs are 0, and ``trials`` is None. All are lower bounds at
    ``confidence``; ``epsilon_claimed`` is the upper bound. ``refuted`` says that canaries betray
    more than the ledger allows, which a correct pipeline does with probability below 1e-6.
    ``basis`` is what the claim rests on, as in a report.
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
        """The best lower bound on ε that needs no assumption on the mechanism."""
        return max(self.epsilon_one_run, self.epsilon_trials)

    @property
    def gaussian_lower(self) -> float:
        """The lower bound on ε if the run is as private as some Gaussian mechanism, which sampled
        ones nearly are.
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
    tell: Callable[[int, int], None] = lambda step, steps: None,
) -> Audit:
    """Train as planned with canaries among the records, and try to tell which of them were in.

    The run is a run of its own with a ledger in memory, so nothing that it learns about ``data``
    may stay: the model and the optimizer are put back to where they were, and what is returned
    depends on canaries and noise alone. Plans that follow what they release would break that, and
    are refused unless ``data`` is ``public``. ``guesses`` are made about the canaries with the
    highest and the lowest scores; their number is fixed beforehand, an eighth of the canaries by
    default. ``example_input`` is as for :func:`dpfy.privatize`. ``tell`` is called after every
    step.

    ``canaries`` is a number of gradient canaries, or a list of made-up records: those of
    :func:`~dpfy.auditing.mislabelled` and :func:`~dpfy.auditing.crafted`, or your own. Such *input*
    canaries are scored by the gradients that were released or, with ``attack="black-box"``, by what
    the last model's losses show. They share parameters with ``data``, so that what is returned
    depends on it: it must be ``public``, made up or empty.

    *Formal guarantee*: with probability at least ``confidence`` each lower bound is below what the
    pipeline really has, for adding or removing a record.
    """
    _validate.delta(delta)
    _validate.real("confidence", confidence, 0, 1, open_low=True, open_high=True)
    watched, made = _watched(model, loss_fn, plan, canaries, guesses, key, attack, public)
    ledger, loss = Ledger.in_memory(), watched.loss(model, loss_fn)
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
    return _judge(scores, watched, plan, ledger, delta, made, confidence)


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
                "show something of these. Give public or made-up records (dpfy.auditing.MadeUp), "
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
    """Leave the model and the optimizer as they were found."""
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
    """Audit what ``dpfy train`` would run with these settings; ``options`` are those of
    :func:`audit_run`.

    ``kind`` is gradient, mislabelled or crafted. The latter two run alone, unless the data are
    ``public``: others would only hide them. Of private ones nothing is looked at but the shape that
    is declared.
    """
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
    """Refuse settings of which something else would be audited."""
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
    """The error rates of the attack at every threshold that matters, thinned out."""
    thresholds = scores[~present].quantile(torch.linspace(1, 0, 101, dtype=torch.float64))
    fpr = [float((scores[~present] > threshold).double().mean()) for threshold in thresholds]
    fnr = [float((scores[present] <= threshold).double().mean()) for threshold in thresholds]
    return TradeoffCurve(tuple(fpr), tuple(fnr))
