"""A callback that makes the steps of a Lightning trainer private.

Lightning keeps its loop, its schedulers, its loggers and its checkpoints. It is given numbers of
steps instead of batches; the backward pass is a release, and the training loss that it sees is a
constant.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.plugins.precision import Precision

from dpfy.errors import InvalidArgument
from dpfy.integrations.lightning.refusals import check_module, check_trainer
from dpfy.plans import Plan
from dpfy.run.position import go_on, ledger_at, position_of, registered_plan
from dpfy.run.privatize import privatize
from dpfy.run.released import Batch, Released
from dpfy.run.run import Run

_REPLACED = ("training_step", "backward")
_LOGGING = ("log", "log_dict")
_NO_LOGGING = (
    "per_example_loss must not log: what it sees is private. Log what a step released in "
    "on_train_batch_end, from callback.released; statistics of the plan are a private loss or "
    "accuracy (docs/how-to/queries.md)."
)


class Step:
    """One step of the plan, in the place of a batch; nothing is drawn before :meth:`backward`.

    Args:
        callback: The callback that takes the step.
    """

    def __init__(self, callback: "PrivateTraining") -> None:
        self._callback = callback
        self._batch: Batch | None = None  # the run's, from the first release on

    def backward(self) -> Released:
        """Release the step and add the result to ``p.grad``; for manual optimization.

        Returns:
            What was released.

        Raises:
            InvalidArgument: The plan has no step left.
            BatchAlreadyReleased: The step was released before.
        """
        if self._batch is None:
            self._batch = self._callback._next_batch()
        return self._callback._release(self._batch)


class Steps:
    """The steps of an epoch, for ``trainer.fit``; an epoch sees each record once on average.

    Args:
        callback: The callback that takes the steps.
    """

    def __init__(self, callback: "PrivateTraining") -> None:
        self._callback = callback

    def __len__(self) -> int:
        return self._callback.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Step]:
        for _ in range(len(self)):
            if not self._callback._has_step():  # asked when a step is due, and not ahead
                return
            yield Step(self._callback)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: a step has no position, and Lightning counts how many it took."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the nothing that was saved."""


class PrivateTraining(pl.Callback):
    """Train a module privately with Lightning's trainer.

    The module has a method ``per_example_loss``, which is given the fields of a batch and returns
    one loss for each record. With automatic optimization its ``training_step`` is not called: the
    backward pass is a release of the next step. With manual optimization ``training_step`` is given
    a :class:`Step`, and calls its ``backward()``.

    Training ends when the plan does. Checkpoints of Lightning name the line of the ledger at which
    they were made; ``fit(..., ckpt_path=...)`` goes on from there with fresh samples and fresh
    noise, and counts the steps that were paid for afterwards.

    Args:
        plan: What will run.
        ledger: The file of the ledger.
        data: The private data set, map-style; the trainer itself is given :attr:`steps`.
        validation_is_public: Whether validation data may be looked at without cost, because no
            private record is in it. Without, validation is refused.
        options: Further arguments of :func:`dpfy.privatize`.

    *Formal guarantee*: that of :class:`dpfy.Run`, for all that the trainer hands to its callbacks,
    loggers, progress bars and checkpoints.

    *Assumes*: as for a run, ``per_example_loss`` keeps what it sees to itself. The module has no
    trainer while it is called: ``self.log`` is refused, ``self.trainer`` and ``self.logger`` are
    not there, and ``self.current_epoch`` and ``self.global_step`` are 0.

    >>> import dpfy, tempfile, lightning.pytorch as pl
    >>> from torch.nn.functional import cross_entropy
    >>> class Classifier(pl.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = torch.nn.Linear(4, 2)
    ...     def per_example_loss(self, x, y):
    ...         return cross_entropy(self.layer(x), y, reduction="none")
    ...     def training_step(self, batch, index):
    ...         return self.per_example_loss(*batch).mean()
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.randint(2, (100,)))
    >>> plan = dpfy.dpsgd(records=100, batch_size=25, steps=3, noise_multiplier=1.0)
    >>> folder = tempfile.mkdtemp()
    >>> private = PrivateTraining(plan, f"{folder}/run.dpl", data)
    >>> trainer = pl.Trainer(callbacks=private, max_epochs=-1, logger=False, barebones=True)
    >>> trainer.fit(Classifier(), private.steps)
    >>> private.run.steps_left
    0
    """

    def __init__(
        self,
        plan: Plan,
        ledger: str | Path,
        data: Any,
        *,
        validation_is_public: bool = False,
        **options: Any,
    ) -> None:
        self.plan = plan
        self.ledger = Path(ledger)
        self.data = data
        self.validation_is_public = validation_is_public
        self.options = options
        self.run: Run | None = None  # the latest one; closed after the fit
        self.released: Released | None = None  # by the latest step
        self._module: Any = None  # whose methods are replaced, during a fit
        self._loss: Callable[..., Any] | None = None
        self._current: Step | None = None
        self._resumed: dict[str, Any] | None = None

    @property
    def steps(self) -> Steps:
        """What to give to ``trainer.fit`` as the training data."""
        return Steps(self)

    def spent(self, delta: float) -> float:
        """Return the ε of all that was reserved so far; of groups of records, the weakest one's.

        ``callback.run.spent(delta).groups`` has that of each group.

        Args:
            delta: The failure probability, between 0 and 1.

        Returns:
            What may be claimed if nobody looked before stopping; see :meth:`dpfy.Run.spent`.

        Raises:
            InvalidArgument: Nothing was trained yet.
        """
        if self.run is None:
            raise InvalidArgument("Nothing was spent by this callback: call trainer.fit first.")
        return self.run.spent(delta).upper

    # Hooks of Lightning

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse what does not fit, before other callbacks take steps of their own."""
        if stage == "fit":
            check_module(pl_module)
            check_trainer(trainer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Bind the plan to the module and its optimizers."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            ledger_at(resumed, self.ledger.parent, self.ledger)
            self.plan = registered_plan(self.plan, resumed)
        options = {"announce": resumed is None, **self.options}
        self.run = privatize(
            pl_module, list(trainer.optimizers), self.data, self.plan, self.ledger, **options
        )
        if resumed is not None:
            go_on(self.run, resumed, resumed["controllers"])
        self._module, self._loss = pl_module, _loss_of(trainer, pl_module)
        if pl_module.automatic_optimization:
            pl_module.training_step = self._training_step
            pl_module.backward = self._backward

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse training data of the trainer's own, and end where the plan has ended."""
        given = trainer.train_dataloader
        if not isinstance(given, Steps) or given._callback is not self:
            raise InvalidArgument(
                f"The trainer was given a {type(given).__name__} to train on, whose batches it "
                "would read without paying. Call trainer.fit(module, callback.steps), and give "
                "the records to PrivateTraining."
            )
        self._end_with_plan(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse an epoch after the end of the plan, and end where its filter has no more room."""
        if trainer.should_stop and not self._has_step():
            raise InvalidArgument(
                f"{self._none_left()} Leave min_steps and min_epochs of the trainer out: training "
                "ends with the plan."
            )
        self._end_with_plan(trainer)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse validation data that nobody called public."""
        self.on_validation_start(trainer, pl_module)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse validation data that nobody called public."""
        if self._module is not None and not self.validation_is_public:
            raise InvalidArgument(
                "Validation looks at data, and early stopping or the best checkpoint tell what it "
                "saw. Say PrivateTraining(..., validation_is_public=True) if no private record is "
                "in it; else leave validation out, or Trainer(limit_val_batches=0)."
            )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Refuse what a callback may have changed since the fit began."""
        check_trainer(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End where the plan ends or its filter has no more room."""
        self._end_with_plan(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the module its own methods back, and close the run."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Do the same after an error."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """Return the line of the ledger at which a checkpoint is made, and states of controllers.

        Returns:
            Plain values and released tensors; no state of a generator.
        """
        if self.run is None:
            return {}
        position = position_of(self.run, self.ledger.parent)
        return {**position, "controllers": self.run.context.controllers.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` returned; the next fit goes on from there.

        Args:
            state_dict: The state in the checkpoint.
        """
        self._resumed = state_dict or None

    # One step

    def _training_step(self, batch: Any, batch_idx: int = 0) -> torch.Tensor:
        """Remember the step; the release waits for the gradients to be zeroed."""
        self._current = batch
        return torch.zeros(())

    def _backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        assert self._current is not None
        self._current.backward()

    def _next_batch(self) -> Batch:
        """Return the next batch of the run, which counts its steps itself."""
        batch = None if self.run is None else next(iter(self.run), None)
        if batch is None:
            raise InvalidArgument(self._none_left())
        return batch

    def _has_step(self) -> bool:
        """Whether the plan has another step, and its filter room for it."""
        return self.run is not None and self.run.steps_left > 0 and not self.run.exhausted

    def _none_left(self) -> str:
        return f"The plan of {self.plan.steps} steps has none left, or no budget for one."

    def _release(self, batch: Batch) -> Released:
        if self.run is None or self._module is None or self._loss is None:
            raise InvalidArgument("A step is released inside of trainer.fit only.")
        with _detached(self._module, may_log=self.released is not None):
            self.released = self.run.backward(self._loss, batch)
        return self.released

    def _end_with_plan(self, trainer: Any) -> None:
        if not self._has_step():
            trainer.should_stop = True

    def _close(self) -> None:
        if self._module is not None:
            for name in _REPLACED:
                vars(self._module).pop(name, None)
            self._module = self._loss = self._current = None
        if self.run is not None:
            self.run.close()


def _loss_of(trainer: Any, module: Any) -> Callable[..., Any]:
    """Return the module's loss, on the device and in the precision of a training step.

    The result is no closure: what the module's loss reads is compared before every step, and that
    is found through a ``partial``.
    """
    loss, device, plugin = module.per_example_loss, module.device, trainer.precision_plugin
    if device.type == "cpu" and type(plugin) is Precision:
        return loss  # type: ignore[no-any-return]
    return partial(_as_in_a_step, loss, device, plugin.forward_context)


def _as_in_a_step(
    loss: Callable[..., Any],
    device: torch.device,
    context: Callable[[], AbstractContextManager[Any]],
    *fields: Any,
) -> Any:
    with context():
        return loss(*move_data_to_device(fields, device))


@contextmanager
def _detached(module: Any, may_log: bool) -> Iterator[None]:
    """Take the trainer away from a module, so that its loss cannot log or read its progress.

    What the loss can reach and changes from step to step would also have to be probed at each of
    them. Without a trainer ``self.log`` does nothing. ``may_log=False`` makes it an error, which
    the probe's synthetic records bring to light; later on, an error would take out the records
    that cause it, silently.
    """
    trainer, own = module._trainer, vars(module)
    replaced = {name: own.pop(name) for name in _REPLACED if name in own}
    module.trainer = None
    if not may_log:
        own.update(dict.fromkeys(_LOGGING, _refuse_to_log))
    try:
        yield
    finally:
        for name in _LOGGING:
            own.pop(name, None)
        module.trainer = trainer
        own.update(replaced)


def _refuse_to_log(*args: Any, **kwargs: Any) -> None:
    raise InvalidArgument(_NO_LOGGING)
