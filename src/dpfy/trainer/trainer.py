"""Train from a configuration, and write a folder with the model, the ledger and the report."""

import inspect
import json
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import nn

from dpfy.accounting import RenyiFilter, account
from dpfy.budgets.grant import Grant
from dpfy.budgets.runs import BookedRun
from dpfy.errors import CheckpointError, DpfyError, InvalidArgument, TrainingInterrupted
from dpfy.gradients.losses import Losses
from dpfy.gradients.sharded.rows import Shards, is_divided, shard_by_layers
from dpfy.ledger import Ledger
from dpfy.ledger.events import Policy
from dpfy.ledger.individual import Individual
from dpfy.mechanisms.query import Contributing, Statistic
from dpfy.mechanisms.statistics import soft_accuracy
from dpfy.plans import Plan
from dpfy.reporting import RunFacts, report
from dpfy.run.callbacks import Callback, CsvLog, Evaluation, Step, TensorBoardLog
from dpfy.run.checkpoint import FILE as CHECKPOINT, resume
from dpfy.run.contributing import ContributingShare
from dpfy.run.export import export
from dpfy.run.listening import READINGS, by_group, metrics_of, tell
from dpfy.run.privatize import privatize
from dpfy.run.progress import ProgressBar
from dpfy.run.ranks import Ranks, joined
from dpfy.run.released import Released
from dpfy.run.run import Run
from dpfy.run.sharded_checkpoint import INDEX
from dpfy.run.step_log import StepLog
from dpfy.trainer.builders import (
    completed,
    load_data,
    make_average,
    make_model,
    make_optimizer,
    make_scheduler,
    mean_on,
    move_to_device,
    on_cpu,
    on_device_of,
    without_batchnorm,
)
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.correlation import as_registered
from dpfy.trainer.group_budgets import named_budgets
from dpfy.trainer.label_settings import require_records
from dpfy.trainer.loggers import open_loggers
from dpfy.trainer.objectives import PerRecord, objective_for, scores_and_labels
from dpfy.trainer.old_names import current_names
from dpfy.trainer.options import (
    named_algorithm,
)
from dpfy.trainer.plans import make_plan, released_statistics, uncalibrated_plan
from dpfy.trainer.result import TrainingResult
from dpfy.trainer.signals import StopSignals
from dpfy.types import (
    Budget,
    GroupBudgets,
    Interval,
    interval_from_json,
)

LEDGER, CONFIG, MODEL = "ledger.dpl", "config.json", "model.safetensors"
PROGRESS = "progress.jsonl"


class Trainer:
    """Train a model with DP-SGD, DPIS or IDP-SGD from a configuration, and write the report.

    Objects that are given here replace those that the configuration names. Started by ``torchrun``
    in several processes, the trainers train together; rank 0 alone writes files and calls
    callbacks.

    Args:
        config: The settings; the defaults train on the embedded digits at ε = 3.
        model: The model to train.
        train: The private data set.
        test: The public data set to evaluate on.
        unit_of: The user of each row, if users are to be protected; see :func:`dpfy.privatize`.
        group_of: The group of each record, if groups have budgets of their own; see
            :func:`dpfy.privatize`.
        example_input: Declares the shape of a record; see :func:`dpfy.privatize`.
        loss: Your own loss: a function of the model and of the fields of collated records (``model,
            x, y`` for pairs, ``model, record`` for dicts) to one loss for each record. Default:
            that of the setting ``task``.
        metric: Your own metric on public data: a function of the same to one number for each
            record. Default: that of the task, or your own loss.
        callbacks: Listeners; see :class:`dpfy.Callback`.

    Raises:
        InvalidArgument: A setting does not fit the data or the model.
        DataError: The data set cannot be loaded.

    *Formal guarantee*: that of :class:`dpfy.Run`; the trainer evaluates on public data only, so
    everything in its folder and everything that callbacks see is a function of released values,
    declared constants and public data.
    """

    def __new__(
        cls, config: TrainConfig | None = None, *arguments: Any, **objects: Any
    ) -> "Trainer":
        """Return the trainer for labels where the configuration protects labels alone."""
        if cls is Trainer and config is not None and config.protect == "labels":
            from dpfy.trainer.label_trainer import LabelTrainer  # it builds on this class

            return super().__new__(LabelTrainer)
        return super().__new__(cls)

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        model: nn.Module | None = None,
        train: Any = None,
        test: Any = None,
        unit_of: Any = None,
        group_of: Any = None,
        example_input: Any = None,
        loss: PerRecord | None = None,
        metric: PerRecord | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        config = config or TrainConfig()
        if config.protect == "labels":
            require_records(config.protect, type(self).__name__)
        self.config = completed(config)
        self.objective = objective_for(self.config, loss, metric)
        self.data = load_data(self.config, train, test, unit_of, example_input, group_of)
        torch.manual_seed(self.config.seed)
        self.model = without_batchnorm(
            self.config,
            model if model is not None else make_model(self.config, self.data),
            self.data,
        )
        if self.config.device is not None:
            move_to_device(self.model, self.config.device)
        # partial functions, as the checks of a loss look into these and into no method of ours
        self._loss = (
            partial(_loss_with_metrics, self.model)
            if self.config.private_metrics
            else partial(_loss_of, self.objective.loss, self.model)
        )
        self.optimizer = make_optimizer(self.config, self.model)
        self.plan = self._make_plan()
        self.scheduler = make_scheduler(self.config, self.optimizer, self.plan.steps)
        self.average = make_average(self.config, self.model, self.plan.steps)
        if self.config.tensorboard:
            TensorBoardLog.check()
        self.folder = Path(self.config.out) / (self.config.name or new_name(self.config))
        self._extra_callbacks = tuple(callbacks)
        self._loggers: tuple[Callback, ...] = ()
        self._evaluations: list[Evaluation] = []
        self._said: set[str] = set()
        self._booked: BookedRun | None = None
        self._shows_progress = False
        counted = any(isinstance(each, Contributing) for each in self.plan.query.statistics)
        self.contributing = ContributingShare(self.plan) if counted else None

    def fit(
        self, *, resume_if_exists: bool = False, progress: bool | None = None
    ) -> TrainingResult:
        """Train from the beginning and write everything to a new folder.

        Args:
            resume_if_exists: Whether to go on with a run of this name that was begun with the same
                settings, so that a job can be started again by the same command.
            progress: Whether to show a bar. Default: on a terminal and in a notebook, if ``rich``
                is installed.

        Returns:
            The results of the run.

        Raises:
            InvalidArgument: The folder exists; with ``resume_if_exists``, its run has other
                settings, or the configuration names no run.
            TrainingInterrupted: Ctrl-C or SIGTERM came; the message says how to go on.
        """
        self._shows_progress = ProgressBar.is_seen() if progress is None else progress
        with joined() as ranks:
            if resume_if_exists and ranks.from_first(self._begun_before):
                return self.resume(progress=self._shows_progress)
            self._open_loggers(ranks)
            self._shard(ranks)
            self.folder = Path(ranks.from_first(self._make_folder).decode())
            try:
                run = self._begin()
            except DpfyError:
                # Refused before anything was declared: leave no trace.
                if ranks.first and not (self.folder / LEDGER).exists():
                    if self._booked is not None:
                        self._booked.give_up()
                    shutil.rmtree(self.folder)
                raise
            return self._train(run)

    def resume(self, *, progress: bool | None = None) -> TrainingResult:
        """Go on from the last checkpoint in the folder, with fresh samples and fresh noise.

        A run that was lost before its first checkpoint begins again; what its ledger has spent by
        then stays spent.

        Args:
            progress: Whether to show a bar, as for :meth:`fit`.

        Returns:
            The results of the run.

        Raises:
            CheckpointError: The settings make another plan than the one that was registered.
            TrainingInterrupted: Ctrl-C or SIGTERM came; the message says how to go on.
        """
        self._shows_progress = ProgressBar.is_seen() if progress is None else progress
        with joined() as ranks:
            self._open_loggers(ranks)
            self._shard(ranks)
            if not ranks.from_first(lambda: b"saved" if self._has_checkpoint() else b""):
                return self._train(self._begin_again())
            run = resume(
                self.folder,
                self.model,
                self.optimizer,
                self.data.train,
                self.folder / LEDGER,
                extra=self._stateful(),
                grant=self._grant(),
                **self._options(),
            )
            try:
                self._adopt(run.plan)
            except CheckpointError:
                run.close()
                raise
            self._evaluations = [Evaluation(*values) for values in run.restored["evaluations"]]
            return self._train(run)

    def _shard(self, ranks: Ranks) -> None:
        """Divide the model among the processes, if that is wanted and there are several."""
        if self.config.shard == "auto" and ranks.size > 1 and Shards.of(self.model) is None:
            ranks.share([*self.model.parameters(), *self.model.buffers()])
            shard_by_layers(self.model)
            self.optimizer = make_optimizer(self.config, self.model)
            self.scheduler = make_scheduler(self.config, self.optimizer, self.plan.steps)

    def _has_checkpoint(self) -> bool:
        return any((self.folder / name).exists() for name in (CHECKPOINT, INDEX, MODEL))

    def _begun_before(self) -> bytes:
        """Tell whether the folder holds a run with these settings; refuse one with others."""
        if self.config.name is None:
            raise InvalidArgument(
                "Expected a name for a run that may exist: without one, every start makes a new "
                "run. Give --name, or the setting name."
            )
        if not self.folder.exists():
            return b""
        saved = completed(TrainConfig.from_mapping(saved_settings(self.folder)))
        differ = [
            item.name
            for item in fields(TrainConfig)
            if item.name != "out" and getattr(saved, item.name) != getattr(self.config, item.name)
        ]
        if differ:
            raise InvalidArgument(
                f"{self.folder} was begun with another {' and '.join(differ)}, and a run keeps its "
                "settings. Give the same ones, or another name."
            )
        return b"begun"

    def _make_folder(self) -> bytes:
        """Make the folder with its settings at once, so that a killed run can be resumed."""
        if self.folder.exists():
            raise InvalidArgument(
                f"{self.folder} exists. Choose another name, or go on with `dpfy train --resume "
                f"{self.folder}`."
            )
        staged = self.folder.with_name(f"{self.folder.name}.new")
        staged.mkdir(parents=True, exist_ok=True)
        (staged / CONFIG).write_text(
            json.dumps(self.config.to_mapping(), indent=2) + "\n", encoding="utf-8"
        )
        staged.rename(self.folder)
        return str(self.folder).encode()

    def _begin(self) -> Run:
        self.plan = _shared_plan(self.plan)
        return privatize(
            self.model,
            self.optimizer,
            self.data.train,
            self.plan,
            self.folder / LEDGER,
            announce=False,
            grant=self._grant(),
            **self._options(),
        )

    def _grant(self) -> Grant | None:
        """Take the grant of the run, on the rank that has its ledger."""
        ranks, address = Ranks.present(), self.config.budget
        with ranks.together():
            if address is not None and ranks.first:
                self._booked = BookedRun(
                    address, self.plan, self.folder / LEDGER, f"train {self.folder.name}"
                )
        return None if self._booked is None else self._booked.grant

    def _begin_again(self) -> Run:
        ranks, ledger = Ranks.present(), self.folder / LEDGER
        with ranks.together():
            header = (
                Ledger.read(ledger, self.config.anchor).header
                if ranks.first and ledger.exists()
                else None
            )
            if header is not None and header.plan is not None:
                self._adopt(Plan.from_json(header.plan))
        run = self._begin()
        run.lost_steps = run.steps_taken
        if not run.steps_left or run.exhausted:
            run.close()
            raise CheckpointError(
                f"There is no checkpoint in {self.folder}, and all steps of its plan are paid for: "
                "nothing is left to train with. Begin a run of another name."
            )
        if run.lost_steps and ranks.first:
            sys.stdout.write(
                f"There is no checkpoint: training begins again. {run.lost_steps} steps were paid "
                f"for and are lost; {run.steps_left} of {self.plan.steps} are left.\n"
            )
        return run

    def _adopt(self, registered: Plan) -> None:
        """Take the plan as registered, even if the accountant would calibrate another noise now."""
        if (
            replace(
                self.plan,
                noise_multiplier=registered.noise_multiplier,
                filter=registered.filter,
                sampling=_as_registered(self.plan.sampling, registered.sampling),
                correlation=as_registered(self.plan.correlation, registered.correlation),
            )
            != registered
        ):
            raise CheckpointError(
                f"The settings in {self.folder / CONFIG} make another plan than the one that was "
                "registered. Restore them; a new plan needs a new run."
            )
        self.plan = registered

    def _options(self) -> dict[str, Any]:
        config = self.config
        return {
            "engine": config.engine,
            "max_physical_batch": config.max_physical_batch,
            "num_workers": config.num_workers,
            "prefetch": config.prefetch,
            "anchor": config.anchor,
            "unit_of": self.data.owners,
            "rows_per_user": config.rows_per_user,
            "group_of": self.data.groups,
            "example_input": self.data.example,
            "strict": config.strict,
        }

    def _make_plan(self) -> Plan:
        return make_plan(self.config, self.data, self.model)

    def _uncalibrated(self) -> Plan:
        return uncalibrated_plan(self.config, self.data, self.model)

    def _statistics(self) -> list[Statistic]:
        return released_statistics(self.config, self.model)

    def _stateful(self) -> dict[str, Any]:
        found = {
            "scheduler": self.scheduler,
            "average": self.average,
            "contributing": self.contributing,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def _delta(self) -> float:
        limit = self.plan.budget or self.plan.filter
        assert isinstance(limit, Budget | GroupBudgets | RenyiFilter)  # as calibrate leaves it
        return limit.delta

    def _open_loggers(self, ranks: Ranks) -> None:
        """Refuse a tracker that does not answer, before anything is made or paid for."""
        with ranks.together():
            if ranks.first:
                self._loggers = open_loggers(self.config, self.folder)

    def _callbacks(self) -> tuple[Callback, ...]:
        if not Ranks.present().first:
            return ()
        own: list[Callback] = []
        if self.config.csv:
            groups = tuple(named_budgets(self.config.budgets)) if self.config.budgets else ()
            path = self.folder / "evaluations.csv"
            own.append(CsvLog(path, groups, self.objective.metric))
        if self.config.tensorboard:
            own.append(TensorBoardLog(self.folder / "tensorboard"))
        if self._shows_progress:
            own.append(ProgressBar())
        return (*own, *self._loggers, *self._extra_callbacks)

    def _train(self, run: Run) -> TrainingResult:
        callbacks = self._callbacks()
        if Ranks.present().first:
            callbacks = (StepLog(self.folder / PROGRESS, run.lost_steps), *callbacks)
        try:
            stopped_early = self._walked(run, callbacks)
            if self._is_sharded:
                export(self.model, self.folder / MODEL)
            finish = partial(self._finish, run, stopped_early, callbacks)
            found = json.loads(Ranks.present().from_first(finish))
        finally:
            tell(callbacks, "on_end")
        share = None if self.contributing is None else self.contributing.mean
        return TrainingResult(
            self.folder,
            interval_from_json(found["spent"]),
            found["claim"],
            self._delta,
            tuple(self._evaluations),
            stopped_early,
            share,
            found["groups"],
            self._evaluated_model(),
            self.plan.unit,
        )

    def _walked(self, run: Run, callbacks: tuple[Callback, ...]) -> bool:
        """Take the steps and close the run; return whether public data stopped it early."""
        with StopSignals(announce=Ranks.present().first) as stop, run:
            try:
                tell(callbacks, "on_start", self.plan.steps, self.plan.steps - run.steps_left)
                self._save(run)
                stopped_early = self._steps(run, callbacks, stop)
            except KeyboardInterrupt:
                if stop.received:  # the second one, in the middle of a step
                    raise
                self._save(run)
                raise self._interrupted(signal.SIGINT) from None
            self._save(run)
        return stopped_early

    def _interrupted(self, number: int) -> TrainingInterrupted:
        cause = "Interrupted" if number == signal.SIGINT else "Ended by SIGTERM"
        return TrainingInterrupted(
            f"{cause}; the state is saved and the ledger keeps what was spent. Go on with: dpfy "
            f"train --resume {self.folder}",
            number,
        )

    def _steps(self, run: Run, callbacks: tuple[Callback, ...], stop: StopSignals) -> bool:
        """Take the steps of the plan; return whether the public data stopped them early.

        A signal stops them between two steps, on all ranks at once.
        """
        ranks = Ranks.present()
        between = max(1, self.plan.steps // READINGS)
        spent = (
            run.spent(self._delta)
            if ranks.first and self.plan.steps > run.steps_left
            else Interval(0.0, 0.0)
        )
        for released, rate in self._walk(run):
            step = released.step
            if self.average is not None:
                self.average.update_parameters(self.model)
            last = run.steps_left == 0 or run.exhausted
            evaluates = self._ends_epochs(step, self.config.evaluate_every) or last
            if ranks.first and (evaluates or step % between == 0):
                spent = run.spent(self._delta)
            self._notice(run, released, callbacks)
            metrics, groups = metrics_of(released), by_group(spent)
            told = Step(step, self.plan.steps, rate, spent.upper, metrics, groups)
            tell(callbacks, "on_step", told)
            if evaluates and self._evaluate(run, step, spent, callbacks) and not last:
                return True
            received = ranks.largest(stop.received)
            if received or self._ends_epochs(step, self.config.checkpoint_every):
                self._save(run)
            if received:
                raise self._interrupted(received)
        return False

    def _ends_epochs(self, step: int, every: int) -> bool:
        """Whether a step is the last of an epoch whose number is a multiple of ``every``."""
        epoch = self.plan.epoch_of(step)
        return epoch % every == 0 and step == self.plan.last_step_of(epoch)

    def _notice(self, run: Run, released: Released, callbacks: tuple[Callback, ...]) -> None:
        """Say once why steps are slow, and if hardly any records contribute.

        The one is about the model and the loss; the number of records was released and paid for.
        """
        share = None if self.contributing is None else self.contributing.observe(released)
        slow = "" if run.engine_notice in self._said else run.engine_notice
        for text in filter(None, (slow, share)):
            self._said.add(text)
            if Ranks.present().first:
                sys.stderr.write(f"{text}\n")  # results alone are on standard output
                tell(callbacks, "on_notice", text)

    def _walk(self, run: Run) -> Iterator[tuple[Released, float]]:
        """Train, and yield what each step released and its learning rate."""
        name, options = named_algorithm(self.config.algorithm)
        if name != "dpsgd":
            from dpfy import recipes

            for taken in getattr(recipes, name)(run, self._loss, **options):
                yield taken.released, taken.step_size
            return
        for batch in run:
            self.optimizer.zero_grad()
            released = run.backward(self._loss, batch)
            rate = getattr(self.optimizer, "learning_rate", self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            self.scheduler.step()
            yield released, rate

    @property
    def _is_sharded(self) -> bool:
        """Whether the model is divided among several processes."""
        return any(is_divided(parameter) for parameter in self.model.parameters())

    def _evaluated_model(self) -> nn.Module:
        return self.average.module if self.average is not None else self.model

    def _evaluate(
        self, run: Run, step: int, spent: Interval, callbacks: tuple[Callback, ...]
    ) -> bool:
        """Measure the metric on public data; return whether it has not improved for too long."""
        if self.data.test is None:
            return False
        measured = partial(mean_on, self.data.test, self._evaluated_model(), self.objective.measure)
        if self._is_sharded:  # all go through the model together
            together = measured()
            measured = partial(float, together)
        found = Ranks.present().from_first(
            lambda: json.dumps([spent.upper, measured(), by_group(spent)]).encode()
        )
        metric, score = self.objective.metric, self.objective.score
        epsilon, value, groups = json.loads(found)
        epoch = step * self.plan.rate
        self._evaluations.append(Evaluation(step, epoch, epsilon, value, groups, metric))
        run.measured(score(self._evaluations[-1].value), metric)
        tell(callbacks, "on_evaluation", self._evaluations[-1])
        return self._without_improvement()

    def _without_improvement(self) -> bool:
        """Tell whether the last evaluations on public data were no better than one before."""
        recent = [self.objective.score(evaluation.value) for evaluation in self._evaluations]
        patience = self.config.early_stop
        return (
            bool(patience)
            and len(recent) > patience
            and max(recent[:-patience]) >= max(recent[-patience:])
        )

    def _save(self, run: Run) -> None:
        values = [[getattr(e, item.name) for item in fields(Evaluation)] for e in self._evaluations]
        run.save(self.folder, extra={**self._stateful(), "evaluations": values})

    def _finish(self, run: Run, stopped_early: bool, callbacks: tuple[Callback, ...]) -> bytes:
        """Write the model and the report; return the ε spent and the claim, as JSON."""
        if not self._is_sharded:
            save_model(on_cpu(self._evaluated_model()), str(self.folder / MODEL))
        history = tuple((evaluation.step, evaluation.value) for evaluation in self._evaluations)
        use = (
            "evaluation and for the statistics of BatchNorm"
            if self.config.batchnorm == "public"
            else "evaluation only"
        )
        public = "none" if self.data.test is None else f"the held-out test records, for {use}"
        facts = RunFacts(
            name=self.folder.name,
            title=f"Privacy report: {self.folder.name}",
            dataset=self.data.description,
            record=self.data.unit,
            released="the model after every step",
            engine=run.engine,
            isolation=run.isolation,
            model=f"{type(self.model).__name__} with "
            f"{sum(p.numel() for p in self.model.parameters()):,} parameters",
            hyperparameters=self.config.hyperparameters(),
            public_data=public,
            metric=f"{self.objective.metric} on public data",
            history=history,
            book=None if self._booked is None else self._booked.finish(),
        )
        ledger = Ledger.read(self.folder / LEDGER, self.config.anchor)
        tell(callbacks, "on_report", report(ledger, self._delta, facts).write(self.folder))
        spent = run.spent(self._delta)
        registered = account(ledger).envelope
        claimed = (
            registered.epsilon(self._delta) if stopped_early and registered is not None else spent
        )
        return json.dumps(
            {"spent": spent.to_json(), "claim": claimed.upper, "groups": by_group(claimed)}
        ).encode()


# help() and editors read the arguments of __new__ first, which passes them on
_self, *_arguments = inspect.signature(Trainer.__init__).parameters.values()
Trainer.__signature__ = inspect.Signature(_arguments)  # type: ignore[attr-defined]


def resume_training(
    folder: str | Path, callbacks: Sequence[Callback] = (), *, progress: bool | None = None
) -> TrainingResult:
    """Go on with the run that a folder holds, with the configuration saved there.

    Args:
        folder: The folder of the run.
        callbacks: Listeners; see :class:`dpfy.Callback`.
        progress: Whether to show a bar, as for :meth:`Trainer.fit`.

    Returns:
        The results of the run.

    Raises:
        CheckpointError: The folder holds no run that could be resumed.
        TrainingInterrupted: Ctrl-C or SIGTERM came; the message says how to go on.
    """
    path = Path(folder)
    with joined() as ranks:
        values = json.loads(ranks.from_first(lambda: json.dumps(saved_settings(path)).encode()))
        config = TrainConfig.from_mapping(values)
        return Trainer(config, callbacks=callbacks).resume(progress=progress)


def saved_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder, which may have been moved, by today's names."""
    try:
        values = dict(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise CheckpointError(
            f"{folder} holds no run that could be resumed ({CONFIG} is missing or damaged)."
        ) from None
    values.setdefault("contributing", False)  # an older version has released nothing of it
    return {**current_names(values), "out": str(folder.parent), "name": folder.name}


def _as_registered(policy: Policy, registered: Policy) -> Policy:
    """Return the rates and bounds of groups as they were calibrated when they were registered."""
    if isinstance(policy, Individual) and isinstance(registered, Individual):
        return replace(policy, rates=registered.rates, bounds=registered.bounds)
    return policy


def _shared_plan(plan: Plan) -> Plan:
    """Return the plan of rank 0: it is calibrated or registered there."""
    return Plan.from_json(
        json.loads(Ranks.present().from_first(lambda: json.dumps(plan.to_json()).encode()))
    )


def _loss_of(loss: PerRecord, model: nn.Module, *fields: Any) -> Any:
    """Return one loss per record."""
    return loss(model, *on_device_of(model, *fields))


def _loss_with_metrics(model: nn.Module, *fields: Any) -> Losses:
    """Return one loss per record of a classification, and the private metrics."""
    scores, labels = scores_and_labels(model, *on_device_of(model, *fields))
    losses = nn.functional.cross_entropy(scores, labels, reduction="none")
    return Losses(losses, {"accuracy": soft_accuracy(scores, labels), "loss": losses})


def new_name(config: TrainConfig) -> str:
    """Return a name of a run that has none: the data set and the time."""
    return f"{config.data.replace(':', '-').replace('.', '-')}-{datetime.now():%Y%m%d-%H%M%S}"
