"""Checkpoints of Lightning are tied to the ledger: what was paid for stays paid for."""

import shutil

import pytest
import torch
from tests.integrations.lightning.classifiers import Classifier, plan, records, weights

import dpfy
from dpfy.errors import CheckpointError
from dpfy.integrations.lightning import PrivateTraining


def begun(folder, trainer, saved_after=5, steps=7, **options):
    """Save a checkpoint in a fit, take two more steps, and return the checkpoint."""
    file = folder / "middle.ckpt"

    class Saves(Classifier):
        def on_train_batch_end(self, outputs, batch, index):
            if self.global_step == saved_after:
                self.trainer.save_checkpoint(file)

    callback = PrivateTraining(plan(**options), folder / "run.dpl", records())
    trainer(callback, max_steps=steps).fit(Saves(), callback.steps)
    return file


@pytest.mark.parametrize("saved_after", [5, 4])  # in the middle of an epoch, and at its end
def test_resumed_fit_takes_what_the_ledger_has_left(tmp_path, trainer, capsys, saved_after) -> None:
    file = begun(tmp_path, trainer, saved_after)
    lost = 7 - saved_after
    capsys.readouterr()
    module = Classifier()
    callback = PrivateTraining(plan(), tmp_path / "run.dpl", records())
    fit = trainer(callback)
    fit.fit(module, callback.steps, ckpt_path=file)
    assert callback.run.lost_steps == lost
    assert f"{lost} steps after the checkpoint were paid for" in capsys.readouterr().out
    assert fit.global_step == saved_after + 2  # the plan had nine, of which seven were paid for
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 9
    assert callback.spent(1e-5) == pytest.approx(dpfy.account(plan()).claim(1e-5))


def test_resumed_fit_starts_from_the_saved_weights_with_fresh_noise(tmp_path, trainer) -> None:
    file = begun(tmp_path, trainer)
    saved = torch.load(file, weights_only=True)["state_dict"]
    ends = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(tmp_path / "run.dpl", folder)
        shutil.copy(tmp_path / "run.dpl.head", folder)
        seen = {}

        class Looks(Classifier):
            def on_train_start(self, seen=seen):
                seen.update(weights(self))

        module, callback = Looks(), PrivateTraining(plan(), folder / "run.dpl", records())
        trainer(callback).fit(module, callback.steps, ckpt_path=file)
        assert all(torch.equal(seen[key], saved[key]) for key in saved)
        ends.append(weights(module))
    assert any(not torch.equal(ends[0][key], ends[1][key]) for key in saved)


def test_finished_fit_is_resumed_without_a_step(tmp_path, trainer) -> None:
    file = begun(tmp_path, trainer, saved_after=9, steps=9)
    module = Classifier()
    callback = PrivateTraining(plan(), tmp_path / "run.dpl", records())
    trainer(callback).fit(module, callback.steps, ckpt_path=file)
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 9


def test_states_of_controllers_are_restored(tmp_path, trainer) -> None:
    adaptive = {"controllers": [dpfy.QuantileClipping(0.5)]}
    file = begun(tmp_path, trainer, **adaptive)
    saved = torch.load(file, weights_only=True)["callbacks"]["PrivateTraining"]["controllers"]
    assert saved
    found = {}

    class Looks(Classifier):
        def on_train_start(self):
            found.update(callback.run.context.controllers.state_dict())

    callback = PrivateTraining(plan(**adaptive), tmp_path / "run.dpl", records())
    trainer(callback).fit(Looks(), callback.steps, ckpt_path=file)
    assert str(found) == str(saved)


def test_checkpoint_after_the_fit_is_at_its_end(tmp_path, trainer) -> None:
    callback = PrivateTraining(plan(), tmp_path / "run.dpl", records())
    fit = trainer(callback)
    fit.fit(Classifier(), callback.steps)
    fit.save_checkpoint(tmp_path / "end.ckpt")
    state = torch.load(tmp_path / "end.ckpt", weights_only=True)["callbacks"]["PrivateTraining"]
    ledger, saved = dpfy.Ledger.read(tmp_path / "run.dpl"), state["ledger"]
    assert saved["steps"] == saved["taken"] == 9
    assert ledger.hash_at(saved["lines"]) == saved["hash"]


def test_other_plans_and_ledgers_are_refused(tmp_path, trainer) -> None:
    file = begun(tmp_path, trainer)

    def resumed(ledger, **options) -> None:
        callback = PrivateTraining(plan(**options), tmp_path / ledger, records())
        trainer(callback).fit(Classifier(), callback.steps, ckpt_path=file)

    with pytest.raises(CheckpointError, match="another plan"):
        resumed("run.dpl", clip=2.0)
    with pytest.raises(CheckpointError, match="is missing"):
        resumed("nowhere.dpl")
    other = PrivateTraining(plan(), tmp_path / "other.dpl", records())
    trainer(other, max_steps=3).fit(Classifier(), other.steps)
    with pytest.raises(CheckpointError, match="newer than the ledger"):
        resumed("other.dpl")
    again = PrivateTraining(plan(), tmp_path / "other.dpl", records())
    trainer(again, max_steps=5).fit(Classifier(), again.steps)
    with pytest.raises(CheckpointError, match="belongs to another ledger"):
        resumed("other.dpl")


def test_state_of_another_kind_is_refused(tmp_path, trainer) -> None:
    file = begun(tmp_path, trainer)
    state = torch.load(file, weights_only=True)
    state["callbacks"]["PrivateTraining"]["schema"] = 99
    torch.save(state, file)
    callback = PrivateTraining(plan(), tmp_path / "run.dpl", records())
    with pytest.raises(CheckpointError, match="schema 1 or 2, got 99"):
        trainer(callback).fit(Classifier(), callback.steps, ckpt_path=file)
