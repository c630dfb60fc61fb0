"""A search from its budget to the released model: trials in scopes of one ledger, and what may be said of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import nn

from dpfy._version import __version__
from dpfy.accounting import EnvelopeGuard, calibrate_envelope
from dpfy.errors import InvalidArgument, TrainingInterrupted
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Envelope, Repeated
from dpfy.ledger.scopes import Selection, composition
from dpfy.ledger.selection import Selected
from dpfy.ledger.wrapping import Composed
from dpfy.mechanisms.noise.randomness import SecureStream
from dpfy.mechanisms.trials import draw_trials
from dpfy.plan import Plan
from dpfy.training.distributed import Ranks
from dpfy.tuning.config import TuneConfig
from dpfy.tuning.folder import Folder, TuningResult
from dpfy.tuning.proposals import AtRandom, Bayesian, Proposals
from dpfy.tuning.trial import Objects, Outcome, Trial, try_settings
from dpfy.types import Budget

Tell = Callable[[int, int], None]


def tune(config: TuneConfig, *, model: Callable[[], nn.Module] | None = None, train: Any = None, test: Any = None,
         unit_of: Any = None, tell: Tell = lambda done, trials: None, insecure_test_key: int | None = None,
         ) -> TuningResult:
    """Search for settings within one budget, and release the best trial's model.

    *Formal guarantee*: ledger, model, settings and everything else in the folder, taken together, are (``epsilon``,
    ``delta``)-differentially private for the unit and the relation of ``config.base``: trials, choice and model. Under
    ``"select"`` nothing tells how many trials there were, or what became of the others; under ``"compose"`` all may be
    seen. A trial that fails is an outcome that scores lowest, and is never repeated.

    *Assumes* what :class:`dpfy.Run` does; under ``"select"``, that how long the search takes is not seen.

    ``model`` makes a new model at each call. ``tell`` hears how many of all trials are done, under ``"compose"`` only.
    With ``insecure_test_key`` the number of trials and the settings repeat, and nothing is private.

    Reference: Papernot & Steinke 2022; ``docs/proofs/private-selection.md``, Theorem 1; ``docs/proofs/scopes.md``.
    """
    search = _Search(config, Objects(model, train, test, unit_of), insecure_test_key)
    search.check()
    noise_multiplier = calibrate_envelope(search.envelope, epsilon=search.budget.epsilon, delta=search.budget.delta,
                                          relation=search.draft.plan.relation)
    name = config.base.name or f"tune-{config.base.data.replace(':', '-')}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = Folder.create(Path(config.base.out) / name, config, noise_multiplier)
    return search.run(folder, noise_multiplier, tell)


def resume_tuning(folder: str | Path, *, model: Callable[[], nn.Module] | None = None, train: Any = None,
                  test: Any = None, unit_of: Any = None, tell: Tell = lambda done, trials: None) -> TuningResult:
    """Go on with an interrupted search, with the trials that were not begun; the one that was lost stays paid for.

    A selection cannot be resumed: what was seen of it is not known, and every trial was charged.
    """
    found = Folder(Path(folder))
    config, noise_multiplier = found.search()
    if config.accounting == "select":
        raise InvalidArgument("A selection that was interrupted cannot go on: its trials may have been seen, so each "
                              "is charged as if it had been released. Begin a new search with a budget of its own; "
                              "accounting='compose' can be resumed.")
    search = _Search(config, Objects(model, train, test, unit_of), None)
    search.check()
    return search.run(found, noise_multiplier, tell)


@dataclass
class _Search:
    """A search that is checked and not begun."""

    config: TuneConfig
    objects: Objects
    insecure_test_key: int | None

    def __post_init__(self) -> None:
        base = self.config.base
        changes: dict[str, Any] = {"epsilon": self.config.epsilon, "anchor": None,
                                   "private_metrics": base.private_metrics or self.config.score == "private"}
        self.draft = Trial(replace(base, **changes), self.objects)
        if base.delta == "auto":  # settled here: a trial that said so again would be a trial that is heard
            changes["delta"] = min(0.5, float(self.draft.data.records) ** -1.1)
        self.base = replace(base, **changes)
        assert self.config.epsilon is not None and isinstance(self.base.delta, float | int)  # as they are checked
        self.budget = Budget(self.config.epsilon, self.base.delta)
        self.stream = SecureStream(self.insecure_test_key, purpose="training")

    def check(self) -> None:
        """Refuse what cannot be searched, before there is a ledger."""
        if Ranks.present().size > 1:
            raise InvalidArgument("A search runs its trials in one process. Start it without torchrun.")
        if self.draft.plan.adaptive:
            raise InvalidArgument("Trials are declared before they run, and this plan chooses its noise from outputs. "
                                  "Use a noise schedule that is fixed in advance.")
        if self.config.score == "public" and self.draft.data.test is None:
            raise InvalidArgument("There are no public records to score trials on. Give test=, or use "
                                  "score='private', which scores by noisy numbers that trials release.")
        if self.config.proposals == "bayesian":
            Bayesian(self.config.space, 0, None, "check")

    def plan(self, noise_multiplier: float) -> Plan:
        """The plan of a trial."""
        return replace(self.draft.plan, noise_multiplier=noise_multiplier)

    def envelope(self, noise_multiplier: float) -> Envelope:
        """The events of the whole search."""
        run = Composed.of(self.plan(noise_multiplier).envelope)
        if self.config.accounting == "select":
            return (Repeated(Selected(run, self.config.trials_law), 1),)
        return (Repeated(run, int(self.config.trials)),)

    def run(self, folder: Folder, noise_multiplier: float, tell: Tell) -> TuningResult:
        """Run what is left of the trials and release the best."""
        envelope, plan = self.envelope(noise_multiplier), self.plan(noise_multiplier)
        guard = EnvelopeGuard(envelope, self.budget, plan.relation)
        declared = {**plan.to_json(), "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
                    "tuning": {name: value for name, value in self.config.to_json().items() if name != "base"}}
        header = Header(unit=plan.unit, relation=plan.relation, plan=declared, envelope=envelope,
                        key_source=self.stream.key_source, guard=guard.describe(), library=__version__)
        trials = self._select if self.config.accounting == "select" else self._compose
        with Ledger.open(folder.ledger, guard, header, anchor=self.config.base.anchor) as ledger:
            best = trials(ledger, envelope[0], noise_multiplier, folder, tell)
        return folder.release(best, self.config, self.base, self.draft, plan, self.budget.delta)

    def _select(self, ledger: Ledger, event: Repeated, noise_multiplier: float, folder: Folder, tell: Tell,
                ) -> Outcome | None:
        """Nothing is written or said between the first trial and the last."""
        assert isinstance(event.event, Selected)
        law, proposals = event.event.trials, AtRandom(self.config.space, self.stream)
        numbers = SecureStream(self.insecure_test_key, purpose="sampling")
        best: Outcome | None = None
        try:
            with Selection(ledger, event.event, lambda: draw_trials(law, numbers)) as trials:
                for trial in trials:
                    found = self._try(proposals, noise_multiplier, trial)
                    # Of equal scores the first stays: trials are alike, so their order tells nothing.
                    best = found if best is None or found.score > best.score else best
        except KeyboardInterrupt:
            raise TrainingInterrupted("Interrupted. Every trial is charged as if it had been released, which is beyond "
                                      "the budget: a selection has to end by itself.") from None
        return best

    def _compose(self, ledger: Ledger, run: Repeated, noise_multiplier: float, folder: Folder, tell: Tell,
                 ) -> Outcome | None:
        """Every trial is paid for, so each may be kept, shown and learnt from."""
        assert isinstance(run.event, Composed)
        proposals = self._proposals(folder)
        best = folder.best(lambda: Trial(self.base, self.objects, noise_multiplier))
        tell(ledger.count, run.times)
        try:
            while ledger.count < run.times:
                found = self._try(proposals, noise_multiplier, composition(ledger, run.event))
                proposals.learn(found.settings, found.score)
                better = best is None or found.score > best.score
                folder.keep(found, ledger.count, better)
                best = found if better else best
                tell(ledger.count, run.times)
        except KeyboardInterrupt:
            raise TrainingInterrupted("Interrupted; finished trials are kept, and the one under way stays paid for. Go "
                                      f"on with: dpfy tune --resume {folder.path}") from None
        return best

    def _proposals(self, folder: Folder) -> Proposals:
        if self.config.proposals == "random":
            return AtRandom(self.config.space, self.stream)
        seed = int(self.stream.words(1)[0] >> 32)
        proposals = Bayesian(self.config.space, seed, self.config.storage, folder.path.name)
        for trial in folder.trials():
            proposals.learn(trial["settings"], trial["score"])
        return proposals

    def _try(self, proposals: Proposals, noise_multiplier: float, ledger: Ledger) -> Outcome:
        return try_settings(self.base, proposals.propose(), noise_multiplier, self.config.score, self.objects, ledger)
