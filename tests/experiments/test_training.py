"""A run of an experiment survives whatever happens to it, and its ledger counts every step once."""

import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

import dpfy
from dpfy.models import scattering_features
from dpfy.run.checkpoint import FILE as CHECKPOINT
from experiments.cell import Cell
from experiments.parts import Task, load_task, loss_of, make_network, varied
from experiments.training import LEDGER, Deadline, Outcome, Training

ROOT = Path(__file__).parents[2]
CELL = Cell(
    "tiny",
    "digits",
    epsilon=3.0,
    network="digits-mlp",
    rate=0.3,
    steps=8,
    clip=1.0,
    learning_rate=0.5,
    schedule="linear",
    ema=0.5,
    found="by hand",
)
FOREVER = Deadline(minutes=1e6)
KILLED = """
import os, signal, sys
import torch
from tests.experiments.test_training import CELL, FOREVER, Training, task_of
from pathlib import Path

step, taken = torch.optim.SGD.step, []
def killed_step(self, closure=None):  # the step is in the ledger and in no checkpoint
    taken.append(1)
    if len(taken) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, closure)
torch.optim.SGD.step = killed_step
Training(CELL, 0, Path(sys.argv[1]), task_of(CELL)).go_on(FOREVER)
"""


def task_of(cell: Cell, validate: bool = False) -> Task:
    return load_task(cell, None, validate)


def finished(training: Training, deadline: Deadline = FOREVER) -> Outcome:
    outcome = training.go_on(deadline)
    assert outcome is not None
    return outcome


def rates_of(training: Training, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate of each step that is taken from now on."""
    rates: list[float] = []
    step = training.optimizer.step

    def noted(closure: None = None) -> None:
        rates.append(training.optimizer.param_groups[0]["lr"])
        step(closure)

    monkeypatch.setattr(training.optimizer, "step", noted)
    return rates


def test_a_killed_run_goes_on_and_the_lost_step_stays_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Taking the lost step again would make nine of eight; forgetting it, a ledger that counts too
    # few.
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert dpfy.Ledger.read(tmp_path / LEDGER).count == 4
    training = Training(CELL, 0, tmp_path, task_of(CELL))
    rates = rates_of(training, monkeypatch)
    outcome = finished(training)
    assert (outcome.steps, outcome.lost_steps, len(rates)) == (8, 1, 4)
    assert dpfy.Ledger.read(tmp_path / LEDGER).count == 8
    assert 2.99 < outcome.epsilon <= 3.0 < outcome.epsilon_rdp
    assert rates == pytest.approx(
        [0.5 * left / 8 for left in (4, 3, 2, 1)]
    )  # the schedule ends with the plan
    assert (
        training.average is not None and training.average.n_averaged == 7
    )  # what the checkpoint had went on


def test_time_is_up_between_steps_and_nothing_is_lost(tmp_path: Path) -> None:
    parts = count()
    outcome = None
    while outcome is None:  # each part has time for one step only
        outcome = Training(CELL, 0, tmp_path, task_of(CELL)).go_on(Deadline(minutes=0))
        assert next(parts) < 10
        assert dpfy.Ledger.read(tmp_path / LEDGER).count <= 8
    assert next(parts) == 8 and (outcome.steps, outcome.lost_steps) == (8, 0)
    assert outcome.seconds > 0


def test_seconds_and_curve_are_those_of_all_parts(tmp_path: Path) -> None:
    seconds = []
    for _ in range(8):
        training = Training(CELL, 0, tmp_path, task_of(CELL, validate=True), measure=True)
        outcome = training.go_on(Deadline(minutes=0))
        seconds.append(training._seconds)
    assert outcome is not None and [step for step, _, _ in outcome.curve] == list(range(1, 9))
    assert outcome.curve[-1][1:] == (outcome.epsilon, outcome.accuracy)
    assert outcome.curve[0][1] < outcome.epsilon
    assert seconds == sorted(seconds) and outcome.seconds == seconds[-1]


def test_a_run_without_its_checkpoint_is_refused(tmp_path: Path) -> None:
    # Begun again, its network would look as if it had been trained by steps that it has not seen.
    Training(CELL, 0, tmp_path, task_of(CELL)).go_on(Deadline(minutes=0))
    (tmp_path / CHECKPOINT).unlink()
    with pytest.raises(dpfy.CheckpointError, match=r"no checkpoint.*\(1\).* --again"):
        Training(CELL, 0, tmp_path, task_of(CELL)).go_on(FOREVER)


def test_a_run_killed_before_its_first_checkpoint_goes_on_with_the_registered_plan(
    tmp_path: Path,
) -> None:
    plan = replace(
        dpfy.dpsgd(records=1437, rate=0.3, steps=8).calibrate(epsilon=3.0, delta=1e-5),
        noise_multiplier=9.0,
    )
    training = Training(CELL, 0, tmp_path, task_of(CELL))
    dpfy.privatize(
        training.model, training.optimizer, training.task.train, plan, tmp_path / LEDGER
    ).close()
    outcome = finished(training)
    assert (outcome.noise_multiplier, outcome.steps, outcome.lost_steps) == (9.0, 8, 0)


def test_a_run_that_ended_is_measured_again_without_another_step(tmp_path: Path) -> None:
    # Killed after the last step and before the result was written.
    first, second = (finished(Training(CELL, 0, tmp_path, task_of(CELL))) for _ in range(2))
    assert first == second


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    Training(CELL, 0, tmp_path, task_of(CELL)).go_on(Deadline(minutes=0))
    for cell, seed in ((replace(CELL, clip=0.5), 0), (CELL, 1)):
        with pytest.raises(dpfy.CheckpointError, match="--again"):
            Training(cell, seed, tmp_path, task_of(cell)).go_on(FOREVER)
    # What is said about a cell is no setting.
    assert Training(replace(CELL, found="otherwise"), 0, tmp_path, task_of(CELL)).go_on(FOREVER)


def test_a_seed_fixes_the_initial_weights_and_neither_noise_nor_samples(tmp_path: Path) -> None:
    runs = [Training(CELL, 0, tmp_path / name, task_of(CELL)) for name in "ab"]
    first, second = ([p.clone() for p in run.model.parameters()] for run in runs)
    assert all(map(torch.equal, first, second))
    assert not all(map(torch.equal, first, make_network(CELL, (1, 8, 8), 1).parameters()))
    for run in runs:
        finished(run)
    assert not any(map(torch.equal, *(run.model.parameters() for run in runs)))
    assert dpfy.account(dpfy.Ledger.read(tmp_path / "a" / LEDGER)).private


def test_the_ledger_holds_the_plan_of_the_cell(tmp_path: Path) -> None:
    outcome = finished(Training(CELL, 0, tmp_path, task_of(CELL)))
    found = dpfy.account(dpfy.Ledger.read(tmp_path / LEDGER))
    assert (found.rate, found.steps, found.noise_multiplier) == (0.3, 8, outcome.noise_multiplier)
    expected = dpfy.dpsgd(records=1437, rate=0.3, steps=8).calibrate(epsilon=3.0, delta=1e-5)
    assert found.noise_multiplier == expected.noise_multiplier


def test_the_average_is_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(
        "experiments.training.percent_right", lambda model, data: measured.append(model) or 0.0
    )
    averaged, plain = (
        Training(replace(CELL, ema=ema), 0, tmp_path / str(ema), task_of(CELL))
        for ema in (0.5, 0.0)
    )
    finished(averaged)
    finished(plain)
    assert averaged.average is not None and measured == [averaged.average.module, plain.model]


def test_selection_sees_training_records_only() -> None:
    source, task = task_of(CELL), task_of(CELL, validate=True)
    assert (task.records, len(task.train), len(task.held_out)) == (1198, 1198, 239)
    whole = torch.cat([task.train.tensors[0], task.held_out.tensors[0]])
    key = torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hashes = [(x.flatten(1).double() @ key).sort().values for x in (whole, source.train.tensors[0])]
    assert torch.allclose(*hashes)  # both parts together are the training records, each once
    again = task_of(CELL, validate=True)
    assert torch.equal(task.held_out.tensors[0], again.held_out.tensors[0])  # a fixed split


def test_fewer_records_are_declared_as_such_and_measured_on_as_few() -> None:
    task = task_of(replace(CELL, records=100))
    assert (task.records, len(task.train), len(task.held_out)) == (100, 100, 100)


def test_copies_of_a_record_share_one_loss_and_one_clip(tmp_path: Path) -> None:
    cell = replace(CELL, augmentation="crop-and-flip", copies=3, ema=0.0)
    training = Training(cell, 0, tmp_path, task_of(cell))
    x, y = varied(cell, training.task.train)[4]
    assert x.shape == (3, 1, 8, 8)
    each = loss_of(CELL, training.model)(x, y.expand(3))
    assert torch.allclose(
        loss_of(cell, training.model)(x.unsqueeze(0), y.unsqueeze(0)), each.mean()
    )
    outcome = finished(
        training
    )  # copies are no records: the plan, and what it costs, stay the same
    assert (
        outcome.noise_multiplier
        == finished(Training(CELL, 0, tmp_path / "plain", task_of(CELL))).noise_multiplier
    )


def test_features_are_computed_for_both_parts() -> None:
    cell = replace(CELL, features="scattering", network="linear-head", records=30)
    task = task_of(cell, validate=True)
    assert task.input_shape == (81, 2, 2) and task.held_out.tensors[0].shape == (5, 81, 2, 2)
    raw = task_of(replace(cell, features="raw"), validate=True)
    assert torch.allclose(task.held_out.tensors[0], scattering_features(raw.held_out.tensors[0]))
    assert make_network(cell, task.input_shape, 0)(task.held_out.tensors[0]).shape == (5, 10)
