"""Carry out a search, from its budget to the released model.

Its trials run in scopes of one ledger, so that one ledger has the cost of all of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import nn

from dpfy._version import __version__
from dpfy.accounting import EnvelopeGuard, calibrate_envelope
from dpfy.budgets.runs import BookedRun, without_password
from dpfy.errors import InvalidArgument, LedgerMismatch, TrainingInterrupted
from dpfy.ledger import Header, Ledger
from dpfy.ledger.composite_events import Composed
from dpfy.ledger.events import Envelope, Repeated
from dpfy.ledger.scopes import Scope, Selection, composition
from dpfy.ledger.selection import Selected
from dpfy.mechanisms.trials import draw_trials
from dpfy.noise.random_stream import SecureStream
from dpfy.plans import Plan
from dpfy.run.ranks import Ranks
from dpfy.tuning.config import TuneConfig
from dpfy.tuning.folder import Folder, TuningResult
from dpfy.tuning.proposals import AtRandom, Bayesian, Proposals, check_storage
from dpfy.tuning.silence import alike, silence
from dpfy.tuning.study import StudyFolder
from dpfy.tuning.trial import Objects, Outcome, Trial, try_settings
from dpfy.types import Budget

Tell = Callable[[int, int], None]


def tune(
    config: TuneConfig,
    *,
    model: Callable[[], nn.Module] | None = None,
    train: Any = None,
    test: Any = None,
    unit_of: Any = None,
    tell: Tell = lambda done, trials: None,
    insecure_test_key: int | None = None,
) -> TuningResult:
    """Search for settings within one budget, and release the best trial's model.

    Args:
        config: The search.
        model: Makes a new model at each call. Default: the model that the settings name.
        train: The private data set. Default: the data that the settings name.
        test: The public data set. Default: that of the data that the settings name.
        unit_of: The user of each row, if users are to be protected; see :func:`dpfy.privatize`.
        tell: Called with the number of trials done and of all trials, under ``"compose"`` only.
        insecure_test_key: Makes the whole search repeatable; nothing is then private. For tests.

    Returns:
        The results of the search.

    Raises:
        InvalidArgument: The search cannot be carried out as declared, or its folder exists.
        TrainingInterrupted: Ctrl-C was pressed; the message says what holds then.

    *Formal guarantee*: ledger, model, settings and everything else in the folder, taken together,
    are (``epsilon``, ``delta``)-differentially private for the unit and the relation of
    ``config.base``: trials, choice and model. Under ``"select"`` nothing tells how many trials
    there were, or how the others ended; under ``"compose"`` all may be seen. A trial that
    fails is an outcome that scores lowest, and is never repeated.

    *Assumes* what :class:`dpfy.Run` does; under ``"select"``, that how long the search takes is not
    seen, and that the code of models and data sets neither keeps nor tells how often it was called:
    what it prints, warns and logs inside trials is dropped, and every trial finds the generators of
    torch, NumPy and Python as the first one did.

    Reference: Papernot & Steinke 2022; ``docs/proofs/private-selection.md``, Theorem 1;
    ``docs/proofs/scopes.md``.
    """
    search = _Search(config, Objects(model, train, test, unit_of), insecure_test_key)
    folder, noise_multiplier = search.declared()
    return search.run(folder, noise_multiplier, tell)


def resume_tuning(
    folder: str | Path,
    *,
    model: Callable[[], nn.Module] | None = None,
    train: Any = None,
    test: Any = None,
    unit_of: Any = None,
    tell: Tell = lambda done, trials: None,
) -> TuningResult:
    """Go on with an interrupted search, with the trials that were not begun.

    The trial that was lost stays paid for. A selection cannot be resumed: nobody knows what was
    seen of it, and every trial was charged, or is charged now if the process was lost.

    Args:
        folder: The folder of the search.
        model: Makes a new model at each call. Default: the model that the settings name.
        train: The private data set. Default: the data that the settings name.
        test: The public data set. Default: that of the data that the settings name.
        unit_of: The user of each row, if users are to be protected; see :func:`dpfy.privatize`.
        tell: Called with the number of trials done and of all trials.

    Returns:
        The results of the search.

    Raises:
        InvalidArgument: The search is a selection, is shared by workers or has ended.
        CheckpointError: The folder holds no search.
        TrainingInterrupted: Ctrl-C was pressed; the message says how to go on.
    """
    found, search, noise_multiplier = _opened(
        folder, Objects(model, train, test, unit_of), shared=False
    )
    if search.config.accounting == "select":
        if found.ledger.exists():
            # Opening it charges what a lost process left.
            Ledger.open(found.ledger, anchor=search.config.base.anchor).close()
        raise InvalidArgument(
            "A selection that was interrupted cannot go on: its trials may have been seen, so each "
            f"is charged as if it had been released; `dpfy report {folder}` says what holds then. "
            "Begin a new search with a budget of its own; accounting='compose' can be resumed."
        )
    search.check()
    return search.run(found, noise_multiplier, tell)


def share_tuning(
    config: TuneConfig,
    *,
    model: Callable[[], nn.Module] | None = None,
    train: Any = None,
    test: Any = None,
    unit_of: Any = None,
) -> Path | str:
    """Declare a search and pay for all of its trials, which workers take.

    Args:
        config: The search, with ``accounting`` ``"compose"`` or ``"public"``.
        model: Makes a new model at each call. Default: the model that the settings name.
        train: The private data set. Default: the data that the settings name.
        test: The public data set. Default: that of the data that the settings name.
        unit_of: The user of each row, if users are to be protected; see :func:`dpfy.privatize`.

    Returns:
        The folder of the search, for :func:`work_on_tuning` and :func:`finish_tuning`; of a search
        on public data with a ``storage``, its address there, which takes the place of the folder.

    Raises:
        InvalidArgument: The search is a selection or cannot be carried out, or its folder exists.

    *Formal guarantee*: that of :func:`tune` under composition, for all workers together. The ledger
    has every trial, durably, before the first can be taken.

    *Assumes* that workers share the folder, on a file system on which a file that must not exist is
    made only once, and that nobody restores an earlier copy of it.

    Reference: ``docs/proofs/scopes.md``, Claim 4; Vadhan & Zhang 2023 (concurrent composition).
    """
    if config.accounting == "select":
        raise InvalidArgument(
            "Expected accounting='compose' or 'public' for workers: how many trials a selection "
            "has is secret, and workers would see it; so would who reads the job list of a "
            "scheduler. Run a selection in one process."
        )
    if config.proposals == "bayesian" and config.storage is None:
        raise InvalidArgument(
            "Bayesian proposals of several workers need storage=, a database of Optuna's from "
            "which they learn of each other. Give one, or use proposals='random'."
        )
    search = _Search(config, Objects(model, train, test, unit_of), None)
    if config.accounting == "public" and config.storage is not None:
        return search.declared_in_storage().address
    folder, noise_multiplier = search.declared(shared=True)
    if config.accounting == "compose":
        with search.ledger(folder, noise_multiplier) as ledger:
            (run,) = search.envelope(noise_multiplier)
            for _ in range(run.times):
                ledger.reserve(run.event)
        if search.booked is not None:
            search.booked.finish()
    return folder.path


def work_on_tuning(
    folder: str | Path,
    *,
    data_dir: str | None = None,
    model: Callable[[], nn.Module] | None = None,
    train: Any = None,
    test: Any = None,
    unit_of: Any = None,
    tell: Tell = lambda done, trials: None,
) -> int:
    """Take trials of a shared search until none is left.

    Any number of processes on any number of machines may do so at once. A trial that a lost worker
    had begun is not taken again: it stays paid for.

    Args:
        folder: The folder of the search, or its address in a storage.
        data_dir: The folder of the data sets on this machine. Default: that of the settings.
        model: Makes a new model at each call. Default: the model that the settings name.
        train: The private data set. Default: the data that the settings name.
        test: The public data set. Default: that of the data that the settings name.
        unit_of: The user of each row, if users are to be protected; see :func:`dpfy.privatize`.
        tell: Called with the number of trials begun by all workers and of all trials.

    Returns:
        The number of trials that this process has done.

    Raises:
        InvalidArgument: The search is not shared or has ended.
        LedgerMismatch: The ledger does not hold the trials of this search.
        TrainingInterrupted: Ctrl-C was pressed; the message says how to go on.
    """
    found, search, noise_multiplier = _opened(
        folder, Objects(model, train, test, unit_of), True, data_dir
    )
    search.check()
    return search.work(
        found, noise_multiplier, search.claimed(found, noise_multiplier), lambda: found.begun, tell
    )


def finish_tuning(
    folder: str | Path,
    *,
    data_dir: str | None = None,
    model: Callable[[], nn.Module] | None = None,
    train: Any = None,
    test: Any = None,
    unit_of: Any = None,
) -> TuningResult:
    """Release the best of the trials that workers have finished, and end the search.

    Args:
        folder: The folder of the search, or its address in a storage.
        data_dir: The folder of the data sets on this machine. Default: that of the settings.
        model: Makes a new model at each call. Default: the model that the settings name.
        train: The private data set. Default: the data that the settings name.
        test: The public data set. Default: that of the data that the settings name.
        unit_of: The user of each row, if users are to be protected; see :func:`dpfy.privatize`.

    Returns:
        The results of the search.

    Raises:
        InvalidArgument: No trial is finished, or the search is not shared or has ended.
        LedgerMismatch: The ledger does not hold the trials of this search.
    """
    found, search, noise_multiplier = _opened(
        folder, Objects(model, train, test, unit_of), True, data_dir
    )
    search.paid(found, noise_multiplier)
    trials = int(search.config.trials)
    if not found.trials():
        raise InvalidArgument(
            f"No trial of the search in {folder} is finished, so there is nothing to release. "
            + (
                f"Start workers with `dpfy tune --work {folder}`."
                if found.begun < trials
                else "All of them were begun, and stay paid for: wait for workers that run; if "
                "none does, begin a new search."
            )
        )
    while found.claim(trials) is not None:  # a worker that came later would find none
        continue
    return search.release(found, search.best(found, noise_multiplier), noise_multiplier)


def _opened(
    folder: str | Path,
    objects: Objects,
    shared: bool,
    data_dir: str | None = None,
) -> tuple[Folder, "_Search", float]:
    """Return the search that a folder holds, and its noise."""
    address = str(folder)
    found = StudyFolder.at(address) if "://" in address else Folder(Path(folder))
    config, noise_multiplier = found.search()
    if found.shared != shared:
        raise InvalidArgument(
            f"The search in {folder} is shared: go on with `dpfy tune --work {folder}`, and end it "
            f"with `dpfy tune --finish {folder}`."
            if found.shared
            else f"The search in {folder} is not shared by workers. Begin one with --share."
        )
    if data_dir is not None:
        config = replace(config, base=replace(config.base, data_dir=data_dir))
    return found, _Search(config, objects, None), noise_multiplier


@dataclass
class _Search:
    """A search that is checked and not begun."""

    config: TuneConfig
    objects: Objects
    insecure_test_key: int | None
    booked: BookedRun | None = None

    def __post_init__(self) -> None:
        base = self.config.base
        # Trials are silent, so none of them releases the number of contributing records.
        changes: dict[str, Any] = {
            "epsilon": self.config.epsilon,
            "anchor": None,
            "budget": None,
            "contributing": False,
            "private_metrics": base.private_metrics or self.config.score == "private",
        }
        self.draft = Trial(replace(base, **changes), self.objects)
        if base.delta is None:
            changes["delta"] = self.draft.config.delta
        if base.delta == "auto":
            # Settled here once: each trial would print its δ again.
            changes["delta"] = min(0.5, float(self.draft.data.records) ** -1.1)
        self.base = replace(base, **changes)
        assert self.config.epsilon is not None  # as TuneConfig checks
        assert isinstance(self.base.delta, float | int)
        self.budget = Budget(self.config.epsilon, self.base.delta)
        self.stream = SecureStream(self.insecure_test_key, purpose="training")

    def check(self) -> None:
        """Refuse a search that cannot be carried out, before there is a ledger."""
        if Ranks.present().size > 1:
            raise InvalidArgument(
                "A search runs its trials in one process. Start it without torchrun."
            )
        if self.draft.plan.adaptive:
            raise InvalidArgument(
                "Trials are declared before they run, and this plan chooses its noise from "
                "outputs. Use a noise schedule that is fixed in advance."
            )
        if self.config.base.budget is not None and self.config.accounting == "select":
            raise InvalidArgument(
                "Expected no budget with accounting='select': a selection that is interrupted is "
                "charged for all its trials, whose number is not known in advance, so that no book "
                "can keep budget for it. Use accounting='compose'."
            )
        if self.config.score == "public" and self.draft.data.test is None:
            raise InvalidArgument(
                "There are no public records to score trials on. Give test=, or use "
                "score='private', which scores by noisy numbers that trials release."
            )
        if self.config.proposals == "bayesian":
            Bayesian(self.config.space, 0, None, "check")

    def declared(self, shared: bool = False) -> tuple[Folder, float]:
        """Check the search, calibrate its noise and make its folder."""
        noise_multiplier, name = self._calibrated(), self._name
        if self.config.proposals == "bayesian" and self.config.storage is not None:
            check_storage(self.config.storage, name)
        return Folder.create(
            Path(self.config.base.out) / name, self.config, noise_multiplier, shared
        ), noise_multiplier

    def declared_in_storage(self) -> StudyFolder:
        """Check the search, calibrate its noise and declare it in a study of its storage."""
        return StudyFolder.declare(self.config, self._name, self._calibrated())

    def _calibrated(self) -> float:
        self.check()
        return calibrate_envelope(
            self.envelope,
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            relation=self.draft.plan.relation,
        )

    @property
    def _name(self) -> str:
        base = self.config.base
        return base.name or f"tune-{base.data.replace(':', '-')}-{datetime.now():%Y%m%d-%H%M%S}"

    def plan(self, noise_multiplier: float) -> Plan:
        """Return the plan of a trial."""
        return replace(self.draft.plan, noise_multiplier=noise_multiplier)

    def envelope(self, noise_multiplier: float) -> Envelope:
        """Return the events of the whole search, or of the run that a public search is for."""
        run = Composed.of(self.plan(noise_multiplier).envelope)
        if self.config.accounting == "select":
            return (Repeated(Selected(run, self.config.trials_law), 1),)
        return (
            Repeated(run, int(self.config.trials) if self.config.accounting == "compose" else 1),
        )

    def ledger(self, folder: Folder, noise_multiplier: float) -> Ledger:
        """Open the ledger of the search for writing."""
        envelope, plan = self.envelope(noise_multiplier), self.plan(noise_multiplier)
        guard = EnvelopeGuard(envelope, self.budget, plan.relation)
        declared = {
            **plan.to_json(),
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "tuning": {
                name: value for name, value in self.config.to_json().items() if name != "base"
            },
        }
        header = Header(
            unit=plan.unit,
            relation=plan.relation,
            plan=declared,
            envelope=envelope,
            key_source=self.stream.key_source,
            guard=guard.describe(),
            library=__version__,
        )
        base = self.config.base
        if base.budget is not None:
            purpose = f"search {folder.path.name}"
            self.booked = BookedRun(base.budget, header, folder.ledger, purpose)
        grant = None if self.booked is None else self.booked.grant
        return Ledger.open(folder.ledger, guard, header, anchor=base.anchor, grant=grant)

    def run(self, folder: Folder, noise_multiplier: float, tell: Tell) -> TuningResult:
        """Run what is left of the trials in this process and release the best."""
        if self.config.accounting == "public":
            self.work(
                folder, noise_multiplier, self._free(folder), lambda: len(folder.trials()), tell
            )
            return self.release(folder, self.best(folder, noise_multiplier), noise_multiplier)
        (event,) = self.envelope(noise_multiplier)
        with self.ledger(folder, noise_multiplier) as ledger:
            if self.config.accounting == "select":
                best = self._select(ledger, event, noise_multiplier)
            else:
                self.work(
                    folder, noise_multiplier, _paid(ledger, event), lambda: ledger.count, tell
                )
                best = self.best(folder, noise_multiplier)
        return self.release(folder, best, noise_multiplier)

    def best(self, folder: Folder, noise_multiplier: float) -> Outcome | None:
        """Return the best of the trials that are kept."""
        return folder.best(lambda: Trial(self.base, self.objects, noise_multiplier))

    def release(
        self, folder: Folder, best: Outcome | None, noise_multiplier: float
    ) -> TuningResult:
        """Release a trial, with what the whole search costs."""
        return folder.release(
            best,
            self.config,
            self.base,
            self.draft,
            self.plan(noise_multiplier),
            self.budget.delta,
            None if self.booked is None else self.booked.finish(),
        )

    def work(
        self,
        folder: Folder,
        noise_multiplier: float,
        tickets: Iterator[tuple[int, Ledger]],
        begun: Callable[[], int],
        tell: Tell,
    ) -> int:
        """Carry out trials and return their number.

        Each is paid for, so it may be kept, shown and learnt from.
        """
        proposals, trials, done = self._proposals(folder), int(self.config.trials), 0
        tell(begun(), trials)
        try:
            for number, ledger in tickets:
                found = self._try(proposals, noise_multiplier, ledger)
                folder.keep(found, number)
                # Last, because Optuna's database may fail: the trial is kept by then.
                proposals.learn(found.settings, found.score)
                done += 1
                tell(begun(), trials)
        except KeyboardInterrupt:
            raise TrainingInterrupted(
                "Interrupted; finished trials are kept, and the one under way stays paid for. Go "
                f"on with: dpfy tune --{'work' if folder.shared else 'resume'} "
                f"{without_password(folder.address)}"
            ) from None
        return done

    def claimed(self, folder: Folder, noise_multiplier: float) -> Iterator[tuple[int, Ledger]]:
        """Yield the trials that this process takes, each with a ledger that admits it only."""
        (event,) = self.envelope(noise_multiplier)
        outer = self.paid(folder, noise_multiplier)
        while (number := folder.claim(int(self.config.trials))) is not None:
            yield number, Scope(outer, event.event)

    def paid(self, folder: Folder, noise_multiplier: float) -> Ledger:
        """Read the ledger of a shared search; refuse one without all of its trials."""
        if self.config.accounting == "public":
            return Ledger.in_memory()
        ledger = Ledger.read(folder.ledger, self.config.base.anchor)
        if ledger.uses != self.envelope(noise_multiplier):
            raise LedgerMismatch(
                f"{folder.ledger} does not hold the trials of this search: settings, data or "
                "library make other ones here, or not all of them were paid for. Nothing was read."
            )
        return ledger

    def _free(self, folder: Folder) -> Iterator[tuple[int, Ledger]]:
        """Yield the trials of a search on public data."""
        for number in range(len(folder.trials()) + 1, int(self.config.trials) + 1):
            yield number, Ledger.in_memory()

    def _select(self, ledger: Ledger, event: Repeated, noise_multiplier: float) -> Outcome | None:
        """Run a secret number of trials silently, and return the best.

        Nothing is written or printed between the first trial and the last, and each begins with the
        same state of all random generators.
        """
        assert isinstance(event.event, Selected)
        law, proposals = event.event.trials, AtRandom(self.config.space, self.stream)
        numbers = SecureStream(self.insecure_test_key, purpose="sampling")
        best: Outcome | None = None
        try:
            with (
                silence(),
                Selection(ledger, event.event, lambda: draw_trials(law, numbers)) as trials,
            ):
                for trial in trials:
                    with alike():
                        found = self._try(proposals, noise_multiplier, trial)
                    # Of equal scores the first stays: trials are exchangeable, so their order
                    # tells nothing.
                    best = found if best is None or found.score > best.score else best
        except KeyboardInterrupt:
            raise TrainingInterrupted(
                "Interrupted. Every trial is charged as if it had been released, which is beyond "
                "the budget: a selection has to end by itself."
            ) from None
        return best

    def _proposals(self, folder: Folder) -> Proposals:
        if self.config.proposals == "random" and not isinstance(folder, StudyFolder):
            return AtRandom(self.config.space, self.stream)
        seed = int(self.stream.words(1)[0] >> 32)  # another one for each worker
        if isinstance(folder, StudyFolder):
            return folder.proposing(self.config, seed)
        proposals = Bayesian(self.config.space, seed, self.config.storage, folder.path.name)
        for trial in folder.trials():
            proposals.learn(trial["settings"], trial["score"])
        return proposals

    def _try(self, proposals: Proposals, noise_multiplier: float, ledger: Ledger) -> Outcome:
        key = None if self.insecure_test_key is None else self.stream.words(4).tobytes()
        return try_settings(
            self.base,
            proposals.propose(),
            noise_multiplier,
            self.config.score,
            self.objects,
            ledger,
            key,
        )


def _paid(ledger: Ledger, run: Repeated) -> Iterator[tuple[int, Ledger]]:
    """Yield the trials that are left, each paid for when it begins."""
    assert isinstance(run.event, Composed)
    while ledger.count < run.times:
        scope = composition(ledger, run.event)
        yield ledger.count, scope
