"""One seed of one cell, from its initial weights or from where it was left, as a user of dpfy would
write it.

A checkpoint follows every step. A process that is killed has therefore lost the step it was in, and
no other. That step may be in the ledger already, where it stays: it is never taken again. The run
that goes on draws fresh samples and noise for the steps that are left, its model has seen one step
less than was paid for, and the result says so."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import dpfy
from dpfy.accounting.conversions import tpr_at_fpr
from dpfy.errors import CheckpointError
from dpfy.reporting.attacks import FALSE_ALARM
from dpfy.run.checkpoint import FILE as CHECKPOINT
from experiments.cell import Cell
from experiments.individual import members
from experiments.methods import individualised, make_optimizer, make_plan
from experiments.parts import Task, loss_of, make_network, percent_right, varied
from experiments.schedules import SCHEDULES

LEDGER, SETTINGS = "ledger.dpl", "settings.json"
_READINGS = {
    True: 20,
    False: 5,
}  # how often the ε on the way is computed: for a curve, or to be told
Watch = Callable[[int, float], None]


@dataclass(frozen=True)
class Outcome:
    """What a finished run reached and what it cost by its ledger.

    ``epsilon`` is the upper end of the interval that the ledger gives at the cell's δ, and
    ``epsilon_lower`` the lower one. ``ledger_head`` is the hash of the ledger's last line: it tells
    whether a ledger is the one that this result was read from.

    Where a split was held out there is a ``curve``: steps, the ε that was spent by then, and the
    accuracy.

    ``steps`` are those that were charged; of these, ``lost_steps`` were paid for and are not in the
    model.

    Where groups of records have an ε of their own, ``epsilon`` is that of the weakest, and
    ``groups`` has for each its name, its ε, and the largest true positive rate of an attack on one
    of its records at 1 % false positives."""

    seed: int
    accuracy: float
    epsilon: float
    epsilon_lower: float
    epsilon_rdp: float
    noise_multiplier: float
    steps: int
    lost_steps: int
    seconds: float
    ledger_head: str
    curve: tuple[tuple[int, float, float], ...] = ()
    groups: tuple[tuple[str, float, float], ...] = ()


class Deadline:
    """Says when there is no time for another step.

    >>> clock = iter([0.0, 50.0, 57.0])
    >>> deadline = Deadline(minutes=1, clock=lambda: next(clock))
    >>> deadline.near(step_seconds=5.0), deadline.near(step_seconds=5.0)
    (False, True)
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + 60 * minutes

    def near(self, step_seconds: float = 0.0) -> bool:
        """Whether a step that takes so long would end too late."""
        return self._clock() + step_seconds > self._end


class Training:
    """The run of one seed and its folder: settings, ledger and checkpoint."""

    def __init__(
        self, cell: Cell, seed: int, folder: Path, task: Task, measure: bool = False
    ) -> None:
        self.cell, self.seed, self.folder, self.task, self.measure = (
            cell,
            seed,
            folder,
            task,
            measure,
        )
        self.model = make_network(cell, task.input_shape, seed)
        self.optimizer = make_optimizer(cell, self.model.parameters())
        self.average = (
            AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(cell.ema))
            if cell.ema
            else None
        )
        self._seconds, self._lost = 0.0, 0
        self._curve: list[list[float]] = []

    def go_on(
        self, deadline: Deadline, watch: Watch = lambda step, epsilon: None
    ) -> Outcome | None:
        """Take the steps that are left; None if time was up before the last, with everything
        saved.
        """
        _claim_folder(self.folder, self.cell, self.seed)
        with self._open() as run:
            self._save(run)
            for seconds in self._steps(run, watch):
                if run.steps_left and deadline.near(seconds):
                    return None
        return self._outcome()

    def _open(self) -> dpfy.Run:
        ledger, records = self.folder / LEDGER, varied(self.cell, self.task.train)
        if (self.folder / CHECKPOINT).exists():
            run = dpfy.resume(
                self.folder,
                self.model,
                self.optimizer,
                records,
                ledger,
                extra=self._stateful(),
                **self._groups(),
            )
            self._seconds, self._curve = run.restored["seconds"], run.restored["curve"]
            self._lost = run.restored["lost_steps"] + run.lost_steps
            return run
        return dpfy.privatize(
            self.model, self.optimizer, records, self._plan(ledger), ledger, **self._groups()
        )

    def _groups(self) -> dict[str, Any]:
        """Who is in which group, if groups have an ε of their own."""
        if not individualised(self.cell.method):
            return {}
        return {"group_of": members(len(self.task.train))}

    def _plan(self, ledger: Path) -> dpfy.Plan:
        """The plan of the cell, or the one that was registered before a run was killed and could
        save its state.
        """
        if ledger.exists():
            begun = dpfy.Ledger.read(ledger)
            if begun.count:
                raise CheckpointError(
                    f"{self.folder} has no checkpoint, and its ledger holds steps ({begun.count}). "
                    "Restore the checkpoint, or discard the folder and begin again with --again."
                )
            if begun.header is not None and begun.header.plan is not None:
                return dpfy.Plan.from_json(begun.header.plan)
        plan = make_plan(self.cell, self.task.records)
        if plan.noise_multiplier is not None:
            return plan
        return plan.calibrate(epsilon=self.cell.epsilon, delta=self.cell.delta)

    def _steps(self, run: dpfy.Run, watch: Watch) -> Iterator[float]:
        """Take steps, save after each, and yield how long it took."""
        loss_fn, between = (
            loss_of(self.cell, self.model),
            max(1, self.cell.steps // _READINGS[self.measure]),
        )
        for batch in run:
            began = time.perf_counter()
            factor = SCHEDULES[self.cell.schedule]((batch.step - 1) / self.cell.steps)
            self.optimizer.param_groups[0]["lr"] = self.cell.learning_rate * factor
            self.optimizer.zero_grad()
            run.backward(loss_fn, batch)
            self.optimizer.step()
            if self.average is not None:
                self.average.update_parameters(self.model)
            took = time.perf_counter() - began
            self._seconds += took
            if batch.step % between == 0 or run.steps_left == 0:
                epsilon = dpfy.account(run.ledger).claim(self.cell.delta)
                watch(batch.step, epsilon)
                if self.measure:
                    self._curve.append(
                        [batch.step, epsilon, percent_right(self._evaluated, self.task.held_out)]
                    )
            self._save(run)
            yield took

    @property
    def _evaluated(self) -> torch.nn.Module:
        return self.model if self.average is None else self.average.module

    def _stateful(self) -> dict[str, Any]:
        return {} if self.average is None else {"average": self.average}

    def _save(self, run: dpfy.Run) -> None:
        run.save(
            self.folder,
            extra={
                **self._stateful(),
                "seconds": self._seconds,
                "lost_steps": self._lost,
                "curve": self._curve,
            },
        )

    def _outcome(self) -> Outcome:
        """Measure the model once, and read from the ledger what it cost."""
        ledger = dpfy.Ledger.read(self.folder / LEDGER)
        spent, by_rdp = dpfy.account(ledger), dpfy.account(ledger, "rdp")
        assert spent.private and ledger.header is not None and ledger.header.plan is not None
        plan = dpfy.Plan.from_json(ledger.header.plan)
        noise = spent.noise_multiplier or plan.noise_at(1)  # of the first step
        lower, upper = spent.epsilon(self.cell.delta)
        return Outcome(
            self.seed,
            percent_right(self._evaluated, self.task.held_out),
            epsilon=upper,
            epsilon_lower=lower,
            epsilon_rdp=by_rdp.claim(self.cell.delta),
            noise_multiplier=noise,
            steps=spent.steps * plan.steps_per_event,
            lost_steps=self._lost,
            seconds=self._seconds,
            ledger_head=ledger.head_hash,
            curve=tuple((int(step), epsilon, accuracy) for step, epsilon, accuracy in self._curve),
            groups=tuple(
                (name, each.claim(self.cell.delta), tpr_at_fpr(each, FALSE_ALARM))
                for name, each in getattr(spent, "groups", {}).items()
            ),
        )


def _claim_folder(folder: Path, cell: Cell, seed: int) -> None:
    """Write down whose state a new folder holds; refuse that of other settings."""
    wanted, file = {"seed": seed, **cell.settings()}, folder / SETTINGS
    if file.exists():
        if json.loads(file.read_text(encoding="utf-8")) != wanted:
            raise CheckpointError(
                f"{folder} holds a run with other settings, whose steps cannot be used here. Begin "
                "again with --again, which discards it."
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    staged = file.with_suffix(".new")
    staged.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    staged.replace(file)
