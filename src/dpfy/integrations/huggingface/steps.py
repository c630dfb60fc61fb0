"""Hand the steps of a run to the loop of transformers, and stop it when there are none left.

Tests: tests/integrations/huggingface/test_trainer.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Sampler

from dpfy._extras import require
from dpfy.run.run import Run

require("transformers", "huggingface")
from transformers import TrainerCallback  # noqa: E402


class StepsOfEpoch(Sampler[list[int]]):
    """Number the steps of an epoch, as long as the run has some left.

    Args:
        steps: The number of steps in an epoch.
        run: Returns the run; there is none before training begins.
    """

    def __init__(self, steps: int, run: Callable[[], Run]) -> None:
        self.steps, self._run = steps, run

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.steps):
            if ended(self._run()):
                return
            yield [step]

    def __len__(self) -> int:
        return self.steps


def handles(steps: int, run: Callable[[], Run]) -> DataLoader[Any]:
    """Return a loader of what stands for batches in transformers' loop: handles without a record.

    Whatever transformers computes from a batch (tokens, labels, operations) finds none there.
    """
    return DataLoader(
        range(steps),  # type: ignore[arg-type] # it has a length and items
        batch_sampler=StepsOfEpoch(steps, run),
        collate_fn=lambda drawn: {"step": drawn[0]},
    )


def ended(run: Run) -> bool:
    """Whether a run has no step left, or no budget for another."""
    return run.steps_left == 0 or run.exhausted


class RunCallback(TrainerCallback):
    """Begin the run when training begins, and stop training when the run ends.

    Args:
        begin: Makes the run once the model and the optimizer are in place.
    """

    def __init__(self, begin: Callable[[], Run]) -> None:
        self._begin = begin
        self._run: Run | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Begin the run."""
        self._run = self._begin()
        control.should_training_stop = ended(self._run)

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Stop after the last step that is paid for, which may come early."""
        self._stop_if_ended(args, state, control)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **objects: Any
    ) -> None:
        """Tell controllers that follow a metric of public data; they may end the run."""
        name = args.metric_for_best_model
        if self._run is None or name is None or not args.greater_is_better:
            return
        value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
        if value is not None:
            self._run.measured(value)
            self._stop_if_ended(args, state, control)

    def _stop_if_ended(self, args: Any, state: Any, control: Any) -> None:
        """Stop training that ends before its last step, and keep the model."""
        assert self._run is not None
        if state.global_step < state.max_steps and ended(self._run):
            control.should_training_stop = control.should_log = True
            control.should_save = str(getattr(args.save_strategy, "value", "no")) != "no"
