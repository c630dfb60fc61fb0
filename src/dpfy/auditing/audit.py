"""An audit of a private run: how much canaries betray of it, beside what its ledger guarantees."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dpfy import _validate
from dpfy.accounting import account
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
from dpfy.auditing.canaries import NAME, Canaries, WatchedData, watched_loss
from dpfy.errors import InvalidArgument
from dpfy.ledger import Ledger
from dpfy.plan import Plan
from dpfy.training.config import TrainConfig
from dpfy.training.privatize import as_optimizers, privatize
from dpfy.training.trainer import Trainer
from dpfy.types import Relation

_FEWEST = 50  # canaries below which no bound would say anything
_FALSE_ALARM = 1e-6
_RATES = [round(0.01 * number, 2) for number in range(101)]


@dataclass(frozen=True)
class Audit:
    """What an attack with canaries achieved on one run, and what the run's ledger guarantees.

    ``epsilon_one_run`` (Steinke, Nasr & Jagielski 2023) and ``mu_one_run`` (Mahloujifar, Melis & Chaudhuri 2024) assume
    nothing but fair coins; ``epsilon_trials`` and ``mu_trials`` take the canaries for independent trials. All are lower
    bounds at ``confidence``; ``epsilon_claimed`` is the upper bound. ``refuted`` says that canaries betray more than
    the ledger allows, which a correct pipeline does with probability below 1e-6.
    """

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
    trials: Trials
    claimed: TradeoffCurve
    attack: TradeoffCurve

    @property
    def epsilon_lower(self) -> float:
        """The best lower bound on ε that needs no assumption on the mechanism."""
        return max(self.epsilon_one_run, self.epsilon_trials)

    @property
    def gaussian_lower(self) -> float:
        """The lower bound on ε if the run is as private as some Gaussian mechanism, which sampled ones nearly are."""
        return max(gaussian_epsilon(mu, self.delta) for mu in (self.mu_one_run, self.mu_trials))

    def to_json(self) -> dict[str, Any]:
        """Return the audit as plain JSON values."""
        return {**asdict(self), "epsilon_lower": self.epsilon_lower, "gaussian_lower": self.gaussian_lower}


def audit_run(model: nn.Module, optimizer: torch.optim.Optimizer, data: Any, plan: Plan,
              loss_fn: Callable[..., Any], delta: float, *, canaries: int = 1000, guesses: int | None = None,
              confidence: float = 0.95, engine: str = "auto", key: int | None = None,
              tell: Callable[[int, int], None] = lambda step, steps: None) -> Audit:
    """Train as planned with gradient canaries among the records, and try to tell which of them were in.

    The run is a run of its own with a ledger in memory, so nothing that it learns about ``data`` may stay: the model
    and the optimizer are put back to where they were, and what is returned depends on canaries and noise alone.
    ``guesses`` are made about the canaries with the highest and the lowest scores; their number is fixed beforehand, an
    eighth of the canaries by default. ``tell`` is called after every step.

    *Formal guarantee*: with probability at least ``confidence`` each lower bound is below what the pipeline really has,
    for adding or removing a record.
    """
    made = _check(plan, canaries, guesses)
    watched, ledger = Canaries(canaries, key), Ledger.in_memory()
    loss = watched_loss(model, loss_fn)
    scores = torch.zeros(canaries, dtype=torch.float64)
    optimizers = (*as_optimizers(optimizer), torch.optim.SGD([watched.parameter], lr=0.0))
    with _put_back(model, optimizer), watched.on(model), privatize(
            model, optimizers, WatchedData(data, watched), plan, ledger, engine=engine, announce=False,
            insecure_test_key=key) as run:
        for batch in run:
            for each in optimizers:
                each.zero_grad()
            scores += run.backward(loss, batch).gradients[NAME].double()
            for each in optimizers:
                each.step()
            tell(batch.step, plan.steps)
    return _judge(scores, watched.present, plan, ledger, delta, made, confidence)


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


def audit_settings(settings: TrainConfig, **options: Any) -> Audit:
    """Audit what ``dpfy train`` would run with these settings; ``options`` are those of :func:`audit_run`."""
    trainer = Trainer(settings)
    assert trainer.plan.budget is not None

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(trainer.model(x), y, reduction="none")

    return audit_run(trainer.model, trainer.optimizer, trainer.data.train, trainer.plan, loss,
                     trainer.plan.budget.delta, engine=trainer.config.engine, **options)


def _check(plan: Plan, canaries: int, guesses: int | None) -> int:
    """Return the number of guesses."""
    if _validate.count("canaries", canaries) < _FEWEST:
        raise InvalidArgument(f"Expected at least {_FEWEST} canaries: with {canaries} even perfect guesses would prove "
                              "almost nothing. A thousand is a good number.")
    if plan.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise InvalidArgument(f"Canaries are in or out, so an audit is about adding or removing a record; the plan is "
                              f"about {plan.relation}.")
    made = max(2, canaries // 8) if guesses is None else _validate.count("guesses", guesses, minimum=2)
    if made > canaries:
        raise InvalidArgument(f"Expected at most as many guesses as canaries ({canaries}), got {made}.")
    return made - made % 2


def _judge(scores: torch.Tensor, present: torch.Tensor, plan: Plan, ledger: Ledger, delta: float, made: int,
           confidence: float) -> Audit:
    guarantee = account(ledger)
    order = scores.argsort()
    right = int(present[order[-made // 2:]].sum()) + int((~present[order[:made // 2]]).sum())
    found = Guesses(len(scores), made, right)
    # Half of what a canary adds in expectation: fixed before the first step.
    says_in = scores > plan.steps * plan.rate * plan.clip / plan.divisor / 2
    trials = Trials(int((~present).sum()), int((says_in & ~present).sum()),
                    int(present.sum()), int((~says_in & present).sum()))
    refuted = (trials_refute(trials, guarantee, 1 - _FALSE_ALARM / 2)
               or guesses_refute(found, inverse_of(guarantee), _FALSE_ALARM / 2))
    return Audit(
        epsilon_claimed=guarantee.claim(delta), delta=delta, confidence=confidence,
        epsilon_one_run=one_run_epsilon(found, delta, confidence), mu_one_run=one_run_mu(found, confidence),
        epsilon_trials=epsilon_from_trials(trials, delta, confidence), mu_trials=mu_from_trials(trials, confidence),
        refuted=refuted, canaries=len(scores), guesses=found, trials=trials,
        claimed=tradeoff_curve(guarantee, _RATES), attack=_attack(scores, present))


def _attack(scores: torch.Tensor, present: torch.Tensor) -> TradeoffCurve:
    """The error rates of the attack at every threshold that matters, thinned out."""
    thresholds = scores[~present].quantile(torch.linspace(1, 0, 101, dtype=torch.float64))
    fpr = [float((scores[~present] > threshold).double().mean()) for threshold in thresholds]
    fnr = [float((scores[present] <= threshold).double().mean()) for threshold in thresholds]
    return TradeoffCurve(tuple(fpr), tuple(fnr))
