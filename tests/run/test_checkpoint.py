"""Saving and going on: everything public comes back, nothing private was ever there, nothing is
paid for twice.
"""

import os
import signal
import sys

import pytest
import torch
from runs import Dot
from safetensors import safe_open
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.run.checkpoint import FILE
from dpfy.run.state_file import read_state, write_state

ROWS = torch.eye(3)
PLAN = dpfy.dpsgd(rate=1.0, divisor=1, steps=8, noise_multiplier=1.0)


def parts():
    model = Dot()
    opt = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, opt, torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5)


def take(run, model, opt, scheduler, steps):
    for batch, _ in zip(run, range(steps), strict=False):
        opt.zero_grad()
        run.backward(model, batch)
        opt.step()
        scheduler.step()


def saved(folder, steps=3, after=0, ledger="run.dpl"):
    """A run that saved after ``steps`` and took ``after`` more before it was lost."""
    model, opt, scheduler = parts()
    run = dpfy.privatize(model, opt, TensorDataset(ROWS), PLAN, folder / ledger)
    take(run, model, opt, scheduler, steps)
    run.save(
        folder,
        extra={"scheduler": scheduler, "note": {"best": float("-inf"), "seen": [1, (2.5, None)]}},
    )
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    take(run, model, opt, scheduler, after)
    run.close()
    return state, opt, scheduler


def test_model_optimizer_and_extra_state_come_back(tmp_path):
    state, opt, scheduler = saved(tmp_path)
    model, other_opt, other_scheduler = parts()
    run = dpfy.resume(
        tmp_path, model, other_opt, TensorDataset(ROWS), extra={"scheduler": other_scheduler}
    )
    assert torch.equal(model.weight, state["weight"])
    assert other_scheduler.state_dict() == scheduler.state_dict()
    assert other_opt.param_groups[0]["lr"] == opt.param_groups[0]["lr"]
    moments = [o.state[next(iter(o.state))]["exp_avg_sq"] for o in (opt, other_opt)]
    assert torch.equal(*moments)
    assert run.restored["note"] == {"best": float("-inf"), "seen": [1, (2.5, None)]}
    assert (run.steps_left, run.lost_steps, run.plan) == (5, 0, PLAN)
    take(run, model, other_opt, other_scheduler, 5)
    assert run.ledger.count == 8 and run.steps_left == 0
    run.close()


def test_steps_after_the_checkpoint_stay_paid_and_are_announced(tmp_path, capsys):
    saved(tmp_path, steps=3, after=2)
    model, opt, _ = parts()
    run = dpfy.resume(tmp_path, model, opt, TensorDataset(ROWS))
    assert (run.lost_steps, run.steps_left, run.ledger.count) == (2, 3, 5)
    assert "2 steps after the checkpoint" in capsys.readouterr().out
    run.close()


def test_a_resumed_run_draws_fresh_noise(tmp_path):
    """Two continuations from the same checkpoint must not agree in a single released number."""
    saved(tmp_path, steps=1)
    released = []
    for _ in range(2):
        model, opt, _ = parts()
        run = dpfy.resume(tmp_path, model, opt, TensorDataset(ROWS))
        released.append(run.release(model, next(iter(run))).gradients["weight"])
        run.close()
    assert not (released[0] == released[1]).any()


def test_the_checkpoint_holds_public_state_only(tmp_path):
    saved(tmp_path)
    state = read_state(tmp_path / FILE)
    assert sorted(state) == [
        "controllers",
        "extra",
        "ledger",
        "model",
        "optimizers",
        "plan",
        "schema",
    ]
    with safe_open(tmp_path / FILE, framework="pt") as file:
        text = str(file.metadata())
    assert "key" not in text.replace("keys", "") and "stream" not in text


@pytest.mark.parametrize("place", ["run.dpl", "ledgers/run.dpl", "../run.dpl"])
def test_a_checkpoint_moves_with_its_ledger_and_names_no_folder_of_the_machine(tmp_path, place):
    home = tmp_path / "here" / "checkpoint"
    (home / place).resolve().parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    saved(home, ledger=place)
    assert str(tmp_path).encode() not in (home / FILE).read_bytes()
    (tmp_path / "here").rename(tmp_path / "there")
    with dpfy.resume(tmp_path / "there" / "checkpoint", *parts()[:2], TensorDataset(ROWS)) as run:
        assert run.steps_left == 5
    assert not (tmp_path / "here").exists()  # no second ledger was begun there


def test_a_ledger_far_from_its_checkpoint_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir(), (tmp_path / "b" / "c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    saved(
        tmp_path / "b" / "c",
        ledger=os.path.relpath(tmp_path / "a" / "run.dpl", tmp_path / "b" / "c"),
    )
    monkeypatch.chdir(tmp_path)
    with dpfy.resume("b/c", *parts()[:2], TensorDataset(ROWS)) as run:
        assert run.ledger.path == tmp_path / "a" / "run.dpl"


def test_a_checkpoint_of_the_first_schema_is_read_as_it_was_meant(tmp_path, monkeypatch):
    saved(tmp_path)
    state = read_state(tmp_path / FILE)
    (tmp_path / "sub").mkdir()
    write_state(
        tmp_path / "sub" / FILE,
        {**state, "schema": 1, "ledger": {**state["ledger"], "path": "run.dpl"}},
    )
    monkeypatch.chdir(tmp_path)  # which is what a relative path was relative to
    with dpfy.resume("sub", *parts()[:2], TensorDataset(ROWS)) as run:
        assert run.steps_left == 5
    write_state(tmp_path / FILE, {**state, "schema": 3})
    with pytest.raises(dpfy.CheckpointError, match="schema 1 or 2, got 3"):
        dpfy.resume(tmp_path, *parts()[:2], TensorDataset(ROWS))


def test_checkpoints_that_do_not_belong_to_the_ledger_are_refused(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    saved(tmp_path / "a", steps=3)
    saved(tmp_path / "b", steps=5)
    model, opt, _ = parts()
    with pytest.raises(dpfy.CheckpointError, match="another ledger"):
        dpfy.resume(
            tmp_path / "a", model, opt, TensorDataset(ROWS), ledger=tmp_path / "b" / "run.dpl"
        )
    with pytest.raises(dpfy.CheckpointError, match="newer than the ledger"):
        dpfy.resume(
            tmp_path / "b", model, opt, TensorDataset(ROWS), ledger=tmp_path / "a" / "run.dpl"
        )
    with pytest.raises(dpfy.CheckpointError, match="missing"):
        dpfy.resume(tmp_path / "a", model, opt, TensorDataset(ROWS), ledger=tmp_path / "c.dpl")
    assert not model.weight.any()


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-7], lambda data: b"", lambda data: b"\xff" * 8 + data[8:]]
)
def test_damaged_and_missing_checkpoints_are_one_clear_error(tmp_path, damage):
    saved(tmp_path)
    model, opt, _ = parts()
    with pytest.raises(dpfy.CheckpointError, match="no checkpoint"):
        dpfy.resume(tmp_path / "elsewhere", model, opt, TensorDataset(ROWS))
    (tmp_path / FILE).write_bytes(damage((tmp_path / FILE).read_bytes()))
    with pytest.raises(dpfy.CheckpointError):
        dpfy.resume(tmp_path, model, opt, TensorDataset(ROWS))


def test_state_that_does_not_fit_is_explained(tmp_path):
    saved(tmp_path)
    model, opt, scheduler = parts()
    with pytest.raises(dpfy.CheckpointError, match="no state for ema"):
        dpfy.resume(tmp_path, model, opt, TensorDataset(ROWS), extra={"ema": scheduler})
    other = nn.Linear(2, 2)
    with pytest.raises(dpfy.CheckpointError, match="does not fit"):
        dpfy.resume(tmp_path, other, torch.optim.Adam(other.parameters()), TensorDataset(ROWS))
    with pytest.raises(dpfy.CheckpointError, match="optimizers"):
        dpfy.resume(tmp_path, model, [opt, opt], TensorDataset(ROWS))


def test_a_failed_save_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    write_state(tmp_path / FILE, {"value": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(dpfy.CheckpointError, match="No space"):
        write_state(tmp_path / FILE, {"value": 2})
    monkeypatch.undo()
    assert read_state(tmp_path / FILE) == {"value": 1}


def test_what_would_need_pickling_is_refused(tmp_path):
    with pytest.raises(dpfy.CheckpointError, match=r"object at 'a\.b'"):
        write_state(tmp_path / FILE, {"a": {"b": object()}})
    assert not (tmp_path / FILE).exists()


def test_an_in_memory_ledger_cannot_be_resumed(tmp_path):
    model, opt, _ = parts()
    run = dpfy.privatize(model, opt, TensorDataset(ROWS), PLAN, dpfy.Ledger.in_memory())
    with pytest.raises(dpfy.CheckpointError, match="in-memory"):
        run.save(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
@pytest.mark.parametrize("fatal_step", [1, 2, 4, 6])
def test_a_killed_run_is_resumed_and_never_pays_for_less_than_it_released(tmp_path, fatal_step):
    """The child saves after every second step and is killed inside a release; the parent goes on to
    the end.
    """
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        model, opt, scheduler = parts()
        run = dpfy.privatize(model, opt, TensorDataset(ROWS), PLAN, tmp_path / "run.dpl")
        run.save(tmp_path)

        def loss(x):
            if run.ledger.count == fatal_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return model(x)

        for batch in run:
            opt.zero_grad()
            run.backward(loss, batch)
            opt.step()
            if batch.step % 2 == 0:
                run.save(tmp_path)
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    model, opt, scheduler = parts()
    run = dpfy.resume(tmp_path, model, opt, TensorDataset(ROWS))
    assert run.ledger.count == fatal_step
    assert run.lost_steps == fatal_step - (fatal_step - 1) // 2 * 2
    take(run, model, opt, scheduler, 100)
    assert run.ledger.count == 8
    assert run.spent(1e-5).upper <= dpfy.account(PLAN).epsilon(1e-5).upper
    run.close()
