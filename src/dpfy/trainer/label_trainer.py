"""Train on labels that are released once with noise: ``protect = "labels"``.

The release is all that is private. Training afterwards is ordinary training in torch, which reads
public features and noisy labels.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_model
from torch import nn
from torch.utils.data import TensorDataset

from dpfy.accounting import account
from dpfy.errors import CheckpointError, DpfyError, InvalidArgument, TrainingInterrupted
from dpfy.labels import (
    Alibi,
    NoisyLabels,
    by_clusters,
    likelihood_loss,
    randomized_response,
    staged_labels,
)
from dpfy.ledger import Ledger
from dpfy.reporting import RunFacts, report
from dpfy.run.callbacks import Callback, Evaluation, Step, TensorBoardLog
from dpfy.run.listening import tell
from dpfy.run.progress import ProgressBar
from dpfy.run.ranks import Ranks
from dpfy.trainer.builders import (
    TrainingData,
    accuracy_of,
    completed,
    load_data,
    make_average,
    make_model,
    make_optimizer,
    make_scheduler,
    move_to_device,
    on_cpu,
    on_device_of,
)
from dpfy.trainer.config import TrainConfig
from dpfy.trainer.label_settings import NOT_FOR_LABELS, named_label_method
from dpfy.trainer.objectives import PerRecord, objective_for
from dpfy.trainer.result import TrainingResult
from dpfy.trainer.signals import StopSignals
from dpfy.trainer.trainer import LEDGER, MODEL, Trainer, new_name
from dpfy.types import Unit

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From places of records, and a model's scores of them, to a loss, by what was released of their
labels."""

_PART = 1000  # records at a time that a model scores


class LabelTrainer(Trainer):
    """Train a model on noisy labels from a configuration, and write the report.

    :class:`dpfy.Trainer` makes one if the configuration has ``protect="labels"``. The noisy labels
    are drawn once and saved beside the ledger. A run that is interrupted keeps them: resuming it
    trains from the beginning on the same ones, and costs nothing.

    Args:
        config: The settings.
        model: The model to train.
        train: A ``TensorDataset`` of public features and private labels.
        test: The public data set to evaluate on.
        unit_of: Not for labels.
        group_of: Not for labels.
        example_input: Not for labels.
        loss: Not for labels.
        metric: Not for labels.
        callbacks: Listeners; see :class:`dpfy.Callback`.

    Raises:
        InvalidArgument: A setting does not fit the data or the model.
        DataError: The data set cannot be loaded.

    *Formal guarantee*: that of the method of :mod:`dpfy.labels` that the setting ``label_method``
    names, for everything in the folder of the run and everything that callbacks see.

    *Assumes* that features, their order and the number of records are public, and that the model
    and its settings were chosen without the labels.
    """

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
        if any(each is not None for each in (unit_of, group_of, example_input, loss, metric)):
            raise InvalidArgument(
                "Expected no unit_of=, group_of=, example_input=, loss= or metric= with "
                "protect='labels': labels are protected one by one, before training."
            )
        self.config = completed(config or TrainConfig(protect="labels"))
        self.objective = objective_for(self.config)
        self.data = load_data(self.config, train, test)
        self._x, self._y = _tensors(self.data.train)
        self._classes = _classes(self.config, self.data)
        torch.manual_seed(self.config.seed)
        self.model = model if model is not None else make_model(self.config, self.data)
        if self.config.device is not None:
            move_to_device(self.model, self.config.device)
        self._untrained = deepcopy(self.model.state_dict())
        self.average = None
        if self.config.tensorboard:
            TensorBoardLog.check()
        self.folder = Path(self.config.out) / (self.config.name or new_name(self.config))
        self._extra_callbacks = tuple(callbacks)
        self._loggers = ()
        self._evaluations: list[Evaluation] = []
        self._shows_progress = False

    def fit(
        self, *, resume_if_exists: bool = False, progress: bool | None = None
    ) -> TrainingResult:
        """Draw the noisy labels, train on them, and write everything to a new folder.

        Args:
            resume_if_exists: Whether to go on with a run of this name that was begun with the same
                settings.
            progress: Whether to show a bar. Default: as for :meth:`dpfy.Trainer.fit`.

        Returns:
            The results of the run.

        Raises:
            InvalidArgument: The folder exists; with ``resume_if_exists``, its run has other
                settings, or the configuration names no run.
            TrainingInterrupted: Ctrl-C or SIGTERM came; the message says how to go on.
        """
        self._shows_progress = ProgressBar.is_seen() if progress is None else progress
        if resume_if_exists and self._begun_before():
            return self.resume(progress=self._shows_progress)
        self._open_loggers(Ranks.present())
        self._make_folder()
        try:
            return self._run()
        except DpfyError:
            if not (self.folder / LEDGER).exists():  # refused before anything was declared
                shutil.rmtree(self.folder)
            raise

    def resume(self, *, progress: bool | None = None) -> TrainingResult:
        """Train again from the beginning, on the noisy labels that were drawn before.

        Stages whose labels are saved are not asked again.

        Args:
            progress: Whether to show a bar. Default: as for :meth:`dpfy.Trainer.fit`.

        Returns:
            The results of the run.

        Raises:
            BudgetExhausted: A crash lost noisy labels before they were saved.
            CheckpointError: There is no run in the folder.
            TrainingInterrupted: Ctrl-C or SIGTERM came; the message says how to go on.
        """
        if not self.folder.exists():
            raise CheckpointError(f"{self.folder} holds no run. Begin it with fit().")
        self._shows_progress = ProgressBar.is_seen() if progress is None else progress
        self._open_loggers(Ranks.present())
        (self.folder / "evaluations.csv").unlink(missing_ok=True)  # of a training that was lost
        return self._run()

    def _run(self) -> TrainingResult:
        if Ranks.present().size > 1:
            raise InvalidArgument(
                "Expected one process with protect='labels', got several: the noisy labels are "
                "drawn by one. Start it without torchrun."
            )
        callbacks = self._callbacks()
        with StopSignals(announce=True) as stop:
            with Ledger.open(self.folder / LEDGER, anchor=self.config.anchor) as ledger:
                loss = self._released(ledger, stop)
            spent = account(Ledger.read(self.folder / LEDGER, self.config.anchor)).epsilon(
                self._delta
            )
            try:
                early = self._train_last(loss, spent.upper, callbacks, stop)
                tell(callbacks, "on_report", self._write())
            finally:
                tell(callbacks, "on_end")
        return TrainingResult(
            self.folder,
            spent,
            spent.upper,
            self._delta,
            tuple(self._evaluations),
            early,
            model=self._evaluated_model(),
            unit=Unit.LABEL,
        )

    @property
    def _delta(self) -> float:
        delta = self.config.delta
        return float(delta) if isinstance(delta, float) else min(0.5, len(self._x) ** -1.1)

    def _released(self, ledger: Ledger, stop: StopSignals) -> Loss:
        """Return the loss of training, from noisy labels that are drawn once."""
        name, options = named_label_method(self.config.label_method)
        x, y, classes, epsilon = self._x, self._y, self._classes, self.config.epsilon
        match name:
            case "rr":
                labels = randomized_response(y, classes, epsilon, ledger)
                return _likely(NoisyLabels.of_response(labels, classes, epsilon).likelihood)
            case "alibi":  # a posterior without a prior is the likelihood, up to a factor
                return _likely(Alibi(classes, epsilon).release(y, ledger).posterior())
            case "cluster":
                return _soft(by_clusters(x, y, classes, epsilon, ledger, **options).posterior())

        def train_one(x: torch.Tensor, noisy: NoisyLabels) -> Callable[..., Any]:
            for _ in self._steps_on(x, _likely(noisy.likelihood)):
                self._heed(stop)
            return _predictor(self._evaluated_model())

        noisy = staged_labels(train_one, x, y, classes, epsilon, ledger=ledger, **options)
        return _likely(noisy.likelihood)

    def _train_last(
        self, loss: Loss, epsilon: float, callbacks: tuple[Callback, ...], stop: StopSignals
    ) -> bool:
        """Train on all noisy labels; return whether the public data stopped it early."""
        steps, per_epoch = self._number_of_steps(len(self._x))
        tell(callbacks, "on_start", steps, 0)
        for step, rate in self._steps_on(self._x, loss):
            tell(callbacks, "on_step", Step(step, steps, rate, epsilon))
            evaluates = step % (self.config.evaluate_every * per_epoch) == 0 or step == steps
            if evaluates and self.data.test is not None:
                accuracy = accuracy_of(self._evaluated_model(), self.data.test)
                found = Evaluation(step, step / per_epoch, epsilon, accuracy)
                self._evaluations.append(found)
                tell(callbacks, "on_evaluation", found)
                if self._without_improvement() and step < steps:
                    return True
            self._heed(stop)
        return False

    def _steps_on(self, x: torch.Tensor, loss: Loss) -> Iterator[tuple[int, float]]:
        """Train from the initial weights, and yield each step and its learning rate."""
        torch.manual_seed(self.config.seed)
        self.model.load_state_dict(self._untrained)
        self.model.train()
        steps, _ = self._number_of_steps(len(x))
        optimizer = make_optimizer(self.config, self.model)
        scheduler = make_scheduler(self.config, optimizer, max(1, steps))
        self.average = make_average(self.config, self.model, max(1, steps))
        for step, places in enumerate(self._batches(len(x), steps), start=1):
            (batch,) = on_device_of(self.model, x[places])
            optimizer.zero_grad()
            loss(places, self.model(batch)).backward()  # type: ignore[no-untyped-call]
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
            if self.average is not None:
                self.average.update_parameters(self.model)
            yield step, rate

    def _batches(self, records: int, steps: int) -> Iterator[torch.Tensor]:
        """Yield the places of each step, shuffled anew in each epoch."""
        assert self.config.batch_size is not None  # as completed
        left = steps
        while left > 0:
            for places in torch.randperm(records).split(self.config.batch_size)[:left]:
                yield places
                left -= 1

    def _number_of_steps(self, records: int) -> tuple[int, int]:
        """Return the number of steps, and that of an epoch; there are none without records."""
        assert self.config.batch_size is not None and self.config.epochs is not None
        per_epoch = -(-records // self.config.batch_size)
        return (max(1, round(self.config.epochs * per_epoch)) if records else 0), max(1, per_epoch)

    def _heed(self, stop: StopSignals) -> None:
        if stop.received:
            raise TrainingInterrupted(
                "Interrupted; the noisy labels that were drawn are saved. Train on them with: dpfy "
                f"train --resume {self.folder}",
                stop.received,
            )

    def _write(self) -> tuple[Path, Path, Path]:
        """Write the model and the report, and return the files of the report."""
        save_model(on_cpu(self._evaluated_model()), str(self.folder / MODEL))
        without = {*NOT_FOR_LABELS, "contributing"}
        facts = RunFacts(
            name=self.folder.name,
            title=f"Privacy report: {self.folder.name}",
            dataset=self.data.description,
            record=self.data.unit,
            released="the noisy labels, and the model that was trained on them",
            engine="none: ordinary training on noisy labels",
            isolation="labels are answered one by one, before training",
            model=f"{type(self.model).__name__} with "
            f"{sum(p.numel() for p in self.model.parameters()):,} parameters",
            hyperparameters={
                name: value
                for name, value in self.config.hyperparameters().items()
                if name.partition(".")[0] not in without
            },
            public_data="all features"
            + ("" if self.data.test is None else "; the held-out test records, for evaluation"),
            metric="accuracy on public data",
            history=tuple((each.step, each.accuracy) for each in self._evaluations),
        )
        ledger = Ledger.read(self.folder / LEDGER, self.config.anchor)
        return report(ledger, self._delta, facts).write(self.folder)


def _likely(likelihood: torch.Tensor) -> Loss:
    """Return the loss that knows how likely each class makes a noisy label."""
    return lambda places, scores: likelihood_loss(scores, likelihood[places].to(scores.device))


def _soft(targets: torch.Tensor) -> Loss:
    """Return cross entropy with soft labels."""
    return lambda places, scores: F.cross_entropy(scores, targets[places].to(scores.device))


def _predictor(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the probabilities that a model gives to classes, as a function of features."""
    frozen = deepcopy(model).eval()

    def predict(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            parts = [frozen(*on_device_of(frozen, part)).softmax(1) for part in x.split(_PART)]
        return torch.cat(parts).double().cpu()

    return predict


def _tensors(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and labels, which are read as they are: no code runs that sees both."""
    if not isinstance(data, TensorDataset) or len(data.tensors) != 2:
        raise InvalidArgument(
            "Expected a TensorDataset of features and labels with protect='labels', got "
            f"{type(data).__name__}: reading a record of another data set runs code that sees its "
            "label. Load features and labels into two tensors."
        )
    x, y = data.tensors
    return x, y


def _classes(config: TrainConfig, data: TrainingData) -> int:
    """Return the declared number of classes."""
    classes = config.classes or (None if data.source is None else data.source.classes)
    if classes is None:
        raise InvalidArgument(
            "Your own data needs classes= with protect='labels', the declared number of classes: "
            "it is never read off the labels."
        )
    return classes
