"""Train models of Hugging Face privately, in the loop of transformers' own Trainer.

The loop is transformers': its arguments, schedules, callbacks, evaluations and checkpoints. What it
takes for a batch is a handle without a record, and what it takes for backward is a release of the
run: records are read inside of :meth:`dpfy.Run.backward` and nowhere else.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from dpfy._extras import require
from dpfy.accounting import account
from dpfy.errors import InvalidArgument
from dpfy.integrations.huggingface import arguments, checkpoint
from dpfy.integrations.huggingface.collation import Collator
from dpfy.integrations.huggingface.facts import facts_of
from dpfy.integrations.huggingface.losses import Normalise, Task, private_loss
from dpfy.integrations.huggingface.participation import require_gradients
from dpfy.integrations.huggingface.released_loss import (
    LOSS,
    releases_loss,
    with_loss,
    with_statistic,
)
from dpfy.integrations.huggingface.steps import RunCallback, StepsOfEpoch, handles
from dpfy.ledger import Ledger
from dpfy.plans import Plan
from dpfy.records.example import declared_example
from dpfy.records.rows import check_map_style
from dpfy.reporting import RunFacts, report
from dpfy.run.position import go_on, registered_plan
from dpfy.run.privatize import privatize
from dpfy.run.ranks import Ranks
from dpfy.run.run import Run
from dpfy.types import Interval, interval_from_json

require("transformers", "huggingface")
from transformers import Trainer, TrainingArguments  # noqa: E402

LEDGER = "ledger.dpl"
# What the loop makes of losses, records and the time that they take.
_UNRELEASED = (
    "loss",
    "train_loss",
    "total_flos",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
)
_log = logging.getLogger(__name__)


class DPTrainer(Trainer):
    """Train a model of Hugging Face with differential privacy, by TrainingArguments and a plan.

    The plan says how many steps there are and what a sample is; the arguments say everything else:
    optimizer, schedule, logging, checkpoints. Settings that contradict the plan, or that would show
    records, are refused. Started by ``torchrun``, the processes train together.

    Args:
        model: A model of transformers with a head, or a ``PeftModel`` around one.
        args: The TrainingArguments, which stay as they are. Steps, epochs and the size of a batch
            follow the plan: leave them out.
        data_collator: Collates records, each by itself; :func:`collate_to` returns one.
        train_dataset: The private records: a data set with ``__len__`` and ``__getitem__``.
        eval_dataset: Public records to evaluate on.
        processing_class: The tokenizer, to be saved with checkpoints.
        plan: What will run, such as :func:`dpfy.dpsgd` returns, with its noise.
        ledger: The file of the ledger. Default: ``ledger.dpl`` in ``args.output_dir``.
        task: What the model is trained for; see :func:`private_loss`.
        loss_fn: Returns one loss per record of a collated batch, instead of that of a task.
        normalise: What the loss of a record is divided by; see :func:`private_loss`.
        eval_is_public: Says that no private record is in the data that is evaluated or predicted.
            Evaluations are refused without it. Default: False.
        private_metrics: Whether to release the loss of each sample, with noise, and to log it. A
            plan with a budget gets more noise for it, so that its ε stays. Default: False: no loss
            is known, unless the plan has a statistic ``loss``.
        example_input: Collated synthetic records that declare the shape of a record; see
            :func:`dpfy.privatize`. Default: that of a :func:`collate_to`.
        max_physical_batch: The most rows in memory at once.
        engine: How gradients are computed; see :func:`dpfy.privatize`.
        unit_of: Whose the rows are, if users are to be protected; see :func:`dpfy.privatize`.
        rows_per_user: The most rows of a user in a step.
        anchor: A file in another place that also keeps the head of the ledger.
        strict: Whether to refuse whatever rests on an allowance; see :func:`dpfy.privatize`.
        insecure_test_key: Fixes all randomness, for tests. Nothing is private then.
        options: Further arguments of ``transformers.Trainer``.

    Raises:
        InvalidArgument: An argument contradicts the plan, or would show records.
        DataError: The data set is not map-style.
        MissingExtra: transformers is not installed.

    *Formal guarantee*: that of :class:`dpfy.Run` for the model after every step, and with it for
    logs, ``trainer_state.json``, checkpoints and what callbacks are given: all of it is a function
    of released values, declared constants and data that was said to be public.

    *Assumes*: callbacks and metrics of your own read no private record.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: "TrainingArguments | None" = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        *,
        plan: Plan,
        ledger: str | Path | None = None,
        task: Task | None = None,
        loss_fn: Callable[..., torch.Tensor] | None = None,
        normalise: Normalise = "tokens",
        eval_is_public: bool = False,
        private_metrics: bool = False,
        example_input: Any = None,
        max_physical_batch: int | None = None,
        engine: str = "auto",
        unit_of: Any = None,
        rows_per_user: int | None = None,
        anchor: str | Path | None = None,
        strict: bool = False,
        insecure_test_key: int | bytes | None = None,
        **options: Any,
    ) -> None:
        args = TrainingArguments() if args is None else args
        arguments.check_loss(task, loss_fn, options)
        if train_dataset is not None:
            check_map_style(train_dataset)
        callbacks = list(options.pop("callbacks", None) or ())
        arguments.check_collator(data_collator, processing_class, task)
        arguments.check_public(args, callbacks, eval_is_public)
        args = arguments.for_plan(args, plan)
        if isinstance(data_collator, Collator):
            args.remove_unused_columns = False  # it takes the columns that it needs itself
        self.run: Run | None = None
        self.eval_is_public = eval_is_public
        self._autocast = torch.bfloat16 if args.mixed_precision == "bf16" else None
        self._task, self._normalise, self._loss_fn = task, normalise, loss_fn
        self._example_input = example_input
        self._resumed: tuple[dict[str, Any], Path] | None = None
        self._told, self._running = False, False
        self._run_options = {
            "max_physical_batch": max_physical_batch,
            "engine": engine,
            "num_workers": args.dataloader_num_workers,
            "unit_of": unit_of,
            "rows_per_user": rows_per_user,
            "anchor": anchor,
            "strict": strict,
            "insecure_test_key": insecure_test_key,
        }
        super().__init__(
            model,
            args,
            data_collator,
            train_dataset,
            eval_dataset,
            processing_class,
            callbacks=[RunCallback(self._begin), *callbacks],
            **options,
        )
        arguments.for_plan(self.args, plan)  # the accelerator may have changed them
        self.ledger = Path(self.args.output_dir) / LEDGER if ledger is None else Path(ledger)
        self.plan = with_loss(plan, task, self.model) if private_metrics else plan
        self.private_metrics = releases_loss(self.plan)

    # What was spent

    def spent(self, delta: float) -> Interval:
        """Return the ε of all that the ledger holds, as a certified interval.

        Args:
            delta: The failure probability, between 0 and 1.

        Returns:
            The interval; its upper end may be claimed. As :meth:`dpfy.Run.spent`, it has
            ``groups`` where groups of records have budgets of their own.
        """

        def computed() -> bytes:
            return json.dumps(account(self._open_ledger()).epsilon(delta).to_json()).encode()

        return interval_from_json(json.loads(Ranks.present().from_first(computed)))

    def report(
        self, folder: str | Path, *, delta: float | None = None, facts: RunFacts | None = None
    ) -> Path:
        """Write the privacy report as ``report.md``, ``report.json`` and ``report.html``.

        Args:
            folder: The folder to write into.
            delta: The δ of the claim. Default: that of the plan's budget.
            facts: What to declare about the run. Default: what the trainer knows.

        Returns:
            The folder.

        Raises:
            InvalidArgument: There is no δ: the plan has no budget, and none was given.
        """
        delta = self._delta if delta is None else delta
        if delta is None:
            raise InvalidArgument("The plan has no budget and so no δ. Give delta=.")

        def written() -> bytes:
            found = facts_of(self) if facts is None else facts
            report(self._open_ledger(), delta, found).write(folder)
            return b""

        Ranks.present().from_first(written)
        return Path(folder)

    @property
    def _delta(self) -> float | None:
        return getattr(self.plan.budget or self.plan.filter, "delta", None)

    def _open_ledger(self) -> Ledger:
        """Return the ledger as it is now; of several processes, rank 0 has it."""
        if self._running and self.run is not None:
            return self.run.ledger
        if not self.ledger.exists():
            raise InvalidArgument("Nothing was spent yet: there is no ledger. Call train() first.")
        return Ledger.read(self.ledger, self._run_options["anchor"])

    # Training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Take the steps of the plan that are left.

        Args:
            resume_from_checkpoint: A checkpoint of this plan and ledger, or True for the last one
                in ``args.output_dir``. Steps that were paid for after it are lost. Default: None,
                train from the beginning; what the ledger has spent stays spent.
            trial: Refused: a search over private data is a release of its own.
            ignore_keys_for_eval: Passed on to evaluations.

        Returns:
            What ``transformers.Trainer`` returns; ``training_loss`` is NaN unless it was released.

        Raises:
            CheckpointError: The checkpoint does not belong to the ledger or the plan.
            InvalidArgument: The model, the data and the plan do not fit each other.
        """
        if trial is not None:
            raise _no_search()
        self._resumed = None
        if resume_from_checkpoint:
            resume_from_checkpoint = self._verified(resume_from_checkpoint)
        try:
            output = super().train(resume_from_checkpoint, None, ignore_keys_for_eval)
        finally:
            self._running = False
            if self.run is not None:
                self.run.close()
        return output if self.private_metrics else output._replace(training_loss=math.nan)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: the best of several private trainings is a release of its own."""
        raise _no_search()

    def get_train_dataloader(self) -> Any:
        """Return a handle for each step of an epoch; no record is in it."""
        return handles(self.plan.steps_per_epoch, lambda: cast(Run, self.run))

    def training_step(
        self, model: nn.Module, inputs: Mapping[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Release the gradients of the next sample; return its released loss, or zero."""
        assert self.run is not None
        model.train()
        if callable(prepare := getattr(self.optimizer, "train", None)):
            prepare()  # optimizers without a schedule average weights
        released = self.run.backward(self._loss, next(iter(self.run)))
        unknown = math.nan if self.private_metrics else 0.0  # transformers leaves out a NaN
        value = float(released.statistics.get(LOSS, unknown))
        return torch.tensor(value, device=self.args.device)

    def create_accelerator_and_postprocess(self) -> None:
        """Make an accelerator that wraps no model: DDP would average raw gradients."""
        super().create_accelerator_and_postprocess()
        prepare = self.accelerator.prepare_model
        self.accelerator.prepare_model = partial(prepare, evaluation_mode=True)

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """Leave mixed precision to the loss: the accelerator would replace the model's forward."""
        return {**super()._build_accelerator_args(**kwargs), "mixed_precision": "no"}

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> AbstractContextManager[Any]:
        """Return the context in which public data is evaluated."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.args.device.type, self._autocast, cache_enabled=cache_enabled)

    def _begin(self) -> Run:
        """Make the run, once the model and the optimizer are as they will be trained."""
        if arguments.checkpoints_activations(self.args):
            self.model.disable_input_require_grads()  # which only checkpoints inside backward need
        self._loss = self._make_loss()
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        example = self._example()
        declared = declared_example(self.train_dataset, collate, example)
        if declared.valid:
            self.model.eval()  # activations that are computed again would not see moved parameters
            require_gradients(self.model, self._loss, declared.chunk.arguments)
            self.model.train()
        self.run = privatize(
            self.model,
            cast(torch.optim.Optimizer, getattr(self.optimizer, "optimizer", self.optimizer)),
            self.train_dataset,
            self.plan,
            self.ledger,
            collate_fn=collate,
            example_input=example,
            announce=self._resumed is None,
            **self._run_options,
        )
        self._running = True
        if self._resumed is not None:
            position, folder = self._resumed
            go_on(self.run, position, checkpoint.read_controllers(folder))
        return self.run

    def _make_loss(self) -> Callable[..., Any]:
        loss_fn: Callable[..., torch.Tensor] = self._loss_fn or private_loss(
            self.model, cast(Task, self._task), normalise=self._normalise, autocast=self._autocast
        )
        return with_statistic(loss_fn) if self.private_metrics else loss_fn

    def _example(self) -> Any:
        """Return synthetic records that declare the shape of one: as given, or the collator's."""
        if self._example_input is not None or not isinstance(self.data_collator, Collator):
            return self._example_input
        return self.data_collator.example(_labels(self.model))

    # Released gradients

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip released gradients, which costs nothing."""
        assert self.run is not None
        if not self._told:
            self._told = True
            _log.warning(
                f"max_grad_norm={self.args.max_grad_norm} clips the released gradient, noise and "
                "all, after each record's was clipped by the plan. It costs no privacy; "
                "max_grad_norm=0 leaves the gradient as it is."
            )
        with self.run.postprocessing():
            return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of the released gradients without writing to them."""
        if grad_norm is not None:
            return grad_norm
        return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])

    # What is told

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of records: the plan's for private ones, which are not counted."""
        if isinstance(getattr(dataloader, "batch_sampler", None), StepsOfEpoch):
            return round(self.plan.expected_batch / self.plan.rate)
        return int(super().num_examples(dataloader))

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the expected number of records in a step."""
        return round(self.plan.expected_batch)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what is released or public, and on rank 0 the ε that is spent."""
        kept = (LOSS, "train_loss") if self.private_metrics else ()
        for name in _UNRELEASED:
            if name not in kept:
                logs.pop(name, None)
        if self.run is not None and self._delta is not None and Ranks.present().first:
            spent = account(self._open_ledger()).epsilon(self._delta)
            logs["epsilon"] = spent.upper
            for name, each in getattr(spent, "groups", {}).items():
                logs[f"epsilon of {name}"] = each.upper
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate on data that was said to be public."""
        self._require_public(self.eval_dataset if eval_dataset is None else eval_dataset)
        return dict(super().evaluate(eval_dataset, ignore_keys, metric_key_prefix))

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
    ) -> Any:
        """Predict on data that was said to be public."""
        self._require_public(test_dataset)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def _require_public(self, data: Any) -> None:
        if not self.eval_is_public:
            raise InvalidArgument(
                "Evaluations show what the model does on their data. Say eval_is_public=True if no "
                "private record is in it."
            )
        parts = data.values() if isinstance(data, dict) else (data,)
        if any(part is self.train_dataset for part in parts):
            raise InvalidArgument(
                "The data to evaluate is train_dataset, which is private. Evaluate on public data, "
                "or release the loss of each step with private_metrics=True."
            )

    # Checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save a checkpoint of transformers that names its line of the ledger."""
        if self.run is not None and Ranks.present().first:
            checkpoint.write_position(
                self.run, Path(self._get_output_dir(trial)), self.state.global_step
            )
        super()._save_checkpoint(model, trial)

    def _verified(self, given: str | bool) -> str:
        """Return the checkpoint to resume from, after a look at its place in the ledger."""

        def found() -> bytes:
            folder = (
                checkpoint.last_checkpoint(Path(self.args.output_dir))
                if given is True
                else Path(str(given))
            )
            position = checkpoint.read_position(folder, self.ledger)
            registered_plan(self.plan, position)  # or refuse it
            return json.dumps([position, str(folder)]).encode()

        position, folder = json.loads(Ranks.present().from_first(found))
        self.plan = registered_plan(self.plan, position)
        self._resumed = position, Path(folder)
        return str(folder)


def _no_search() -> InvalidArgument:
    return InvalidArgument(
        "A search over private data releases which trial was best, and each trial is a training of "
        "its own. Search on public data, or privately with `dpfy tune`."
    )


def _labels(model: Any) -> tuple[Any, ...]:
    """Return labels that a model for classification takes."""
    kind, number = getattr(model.config, "problem_type", None), model.config.num_labels
    if kind == "multi_label_classification":
        return ([0.0] * number, [1.0] * number)
    return (0.0, 1.0) if kind == "regression" or number == 1 else (0, 1)
