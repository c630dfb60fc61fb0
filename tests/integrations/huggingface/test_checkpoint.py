"""Checkpoints of transformers that belong to a line of a ledger, and training that goes on."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hf_trainers import Sentences, small_model, small_plan, trainer

import dpfy
from dpfy.errors import CheckpointError, LedgerError, LedgerFinished
from dpfy.integrations.huggingface.checkpoint import last_checkpoint

SUPPORT = Path(__file__).parents[2] / "support"
KILLED = Path(__file__).with_name("killed_trainings.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the ledger and the checkpoints of a training of four steps."""
    folder = tmp_path_factory.mktemp("trained")
    trainer(folder, plan=small_plan(4), args={"save_steps": 1}).train()
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of that folder."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def again(folder, plan=None, **options):
    return trainer(folder, plan=plan or small_plan(4), args={"save_steps": 1}, **options)


def test_a_checkpoint_names_its_line_of_the_ledger(trained):
    ledger = dpfy.Ledger.read(trained / "ledger.dpl")
    for step in (1, 2, 3, 4):
        position = json.loads((trained / f"checkpoint-{step}" / "dpfy.json").read_text())
        assert position["ledger"]["steps"] == step
        assert position["ledger"]["path"] == "../ledger.dpl"
        assert ledger.hash_at(position["ledger"]["lines"]) == position["ledger"]["hash"]
        assert dpfy.Plan.from_json(position["plan"]).steps == 4


def test_steps_after_the_checkpoint_are_lost_and_not_taken_again(folder, capsys):
    made = again(folder)
    made.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    assert made.run.lost_steps == 1
    assert "1 step after the checkpoint was paid for and is lost; 0 of 4 are left" in (
        capsys.readouterr().out
    )
    assert made.state.global_step == 3  # its model is that of step 3: nothing is left to pay with
    assert dpfy.Ledger.read(folder / "ledger.dpl").count == 4


def test_a_resumed_training_takes_what_is_left_with_fresh_noise(tmp_path):
    plan = small_plan(4)

    class Killed(Sentences):
        """Ends the training as a crash does, in the third step."""

        def __getitem__(self, index):
            if dpfy.Ledger.read(tmp_path / "ledger.dpl").count == 3:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        again(tmp_path, plan, data=Killed()).train()
    assert dpfy.Ledger.read(tmp_path / "ledger.dpl").count == 3
    ended = {}
    for key in (1, 2):
        shutil.copytree(tmp_path, folder := tmp_path.with_name(f"{tmp_path.name}-{key}"))
        made = again(folder, plan, model=small_model(9))
        made._run_options["insecure_test_key"] = key
        made.train(resume_from_checkpoint=True)
        assert (made.state.global_step, made.run.lost_steps) == (3, 1)
        assert dpfy.Ledger.read(folder / "ledger.dpl").count == 4
        assert made.spent(1e-3).upper <= 4.0
        assert (folder / "checkpoint-3").exists()  # the run ended before its last step, and saved
        ended[key] = made.model.lm_head.weight.detach().clone()
    assert not torch.equal(ended[1], ended[2])


def test_the_model_the_optimizer_and_the_schedule_go_on(folder):
    (folder / "checkpoint-4" / "dpfy.json").unlink()
    made = again(folder, model=small_model(9))
    made.train(resume_from_checkpoint=True)
    saved = torch.load(folder / "checkpoint-3" / "optimizer.pt", weights_only=True)
    found = made.optimizer.state_dict()
    assert torch.equal(found["state"][0]["exp_avg"], saved["state"][0]["exp_avg"])
    assert made.lr_scheduler.last_epoch == 3


@pytest.mark.parametrize("name", ["dpfy.json", "trainer_state.json"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(folder, name):
    (folder / "checkpoint-4" / name).unlink()
    (folder / "checkpoint-3" / "trainer_state.json").write_text("{")
    assert last_checkpoint(folder).name == "checkpoint-2"


def test_without_a_whole_checkpoint_what_is_spent_stays_and_nothing_trains_in_vain(folder):
    for each in folder.glob("checkpoint-*"):
        shutil.rmtree(each)
    made = again(folder)
    with pytest.raises(CheckpointError, match="stays spent"):
        made.train(resume_from_checkpoint=True)
    with pytest.raises(LedgerFinished, match="All 4 steps"):
        made.train()
    assert dpfy.Ledger.read(folder / "ledger.dpl").count == 4


def test_a_checkpoint_of_another_ledger_is_refused(folder, tmp_path):
    other = trainer(tmp_path / "other", plan=small_plan(4), data=Sentences())
    other.train()
    (folder / "ledger.dpl").unlink()
    shutil.copy(tmp_path / "other" / "ledger.dpl", folder / "ledger.dpl")
    (folder / "ledger.dpl.head").unlink()
    with pytest.raises((CheckpointError, LedgerError)):
        again(folder).train(resume_from_checkpoint=True)


def test_a_checkpoint_without_its_ledger_is_refused(folder):
    (folder / "ledger.dpl").unlink()
    (folder / "ledger.dpl.head").unlink()
    with pytest.raises(CheckpointError, match="Without it nobody knows what was spent"):
        again(folder).train(resume_from_checkpoint=True)


def test_a_checkpoint_of_a_plain_trainer_is_refused(folder):
    (folder / "checkpoint-4" / "dpfy.json").unlink()
    with pytest.raises(CheckpointError, match=r"no readable dpfy\.json"):
        again(folder).train(resume_from_checkpoint=str(folder / "checkpoint-4"))


def test_another_plan_is_refused(folder):
    with pytest.raises(CheckpointError, match="another plan"):
        again(folder, small_plan(4, clip=2.0)).train(resume_from_checkpoint=True)


def test_generators_in_a_checkpoint_are_not_those_of_noise_and_sampling(tmp_path):
    """Whatever key the run has, transformers' generators are in the same state."""
    states = []
    for key in (1, 2):
        folder = tmp_path / str(key)
        args = {"save_steps": 1, "seed": 3}
        trainer(folder, plan=small_plan(2), args=args, insecure_test_key=key).train()
        saved = torch.load(folder / "checkpoint-2" / "rng_state.pth", weights_only=False)
        states.append((saved["python"], saved["numpy"][1].tolist(), saved["cpu"].tolist()))
    assert states[0] == states[1]


def test_what_controllers_remember_is_saved(tmp_path):
    plan = small_plan(3, controllers=[dpfy.QuantileClipping(quantile=0.5)])
    made = trainer(tmp_path, plan=plan, args={"save_steps": 2})
    made.train()
    other = trainer(tmp_path, plan=plan, args={"save_steps": 2})
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    states = [each.run.context.controllers.state_dict() for each in (made, other)]
    assert states[0] == states[1] != {}


def kills(folder, number, seed):
    """Kill trainings at random instants, end one, and return what it found."""
    command = [sys.executable, str(KILLED), str(folder), str(number), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("number", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_however_often_it_is_killed_no_release_is_missing_in_the_ledger(tmp_path, number):
    found = kills(tmp_path, number, seed=7)
    assert found["killed"] == number
    assert found["released"] > number  # some trainings got somewhere
    assert found["ledger"] >= found["released"]
    assert found["epsilon"] >= found["epsilon of releases"]
    assert found["resumed"] > 0
