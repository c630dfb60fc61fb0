"""Ctrl-C and SIGTERM stop a training between two steps and save it; a second one stops at once."""

import signal
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.trainer.signals import StopSignals

BOTH = [signal.SIGINT, signal.SIGTERM]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def handled():
    """Handlers that note their signals, set for the length of a test."""
    noted = []
    before = {number: signal.getsignal(number) for number in BOTH}
    for number in BOTH:
        signal.signal(number, lambda number, _: noted.append(number))
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_remembered_and_the_next_one_has_its_usual_effect(capfd):
    clock = Clock()
    with pytest.raises(KeyboardInterrupt), StopSignals(True, clock) as stop:
        assert stop.received == 0
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # a launcher that passes on what all have received
        signal.raise_signal(signal.SIGINT)
        assert stop.received == signal.SIGTERM
        clock.now += 1.5
        signal.raise_signal(signal.SIGINT)
    assert stop.received == signal.SIGTERM
    assert capfd.readouterr().err.count("Stopping after this step") == 1


@pytest.mark.parametrize("number", BOTH)
def test_handlers_of_the_program_are_called_and_come_back(handled, number):
    own = [signal.getsignal(each) for each in BOTH]
    with StopSignals(False) as stop:
        signal.raise_signal(number)
    assert stop.received == number and handled == [number]
    assert [signal.getsignal(each) for each in BOTH] == own


def test_ignored_signals_stay_ignored(handled):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as nohup and some schedulers leave it
    with StopSignals(False) as stop:
        signal.raise_signal(signal.SIGTERM)
    assert not stop.received and signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_signal_that_nobody_acted_on_is_not_lost():
    with pytest.raises(KeyboardInterrupt), StopSignals(False) as stop:
        signal.raise_signal(signal.SIGINT)
    assert stop.received and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_leave_signals_alone():
    before, seen = [signal.getsignal(each) for each in BOTH], []

    def inside():
        with StopSignals(False):
            seen.extend(signal.getsignal(each) for each in BOTH)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == before


def trainer(folder, name="a", epochs=3):
    torch.manual_seed(0)
    y = torch.arange(400) % 2
    config = dpfy.TrainConfig(
        out=str(folder),
        name=name,
        data="blobs",
        records=400,
        batch_size=100,
        epochs=epochs,
        clip=1.0,
        learning_rate=0.5,
        delta=1e-3,
    )
    data = TensorDataset(torch.randn(400, 4) + 2.0 * y.unsqueeze(1), y)
    return dpfy.Trainer(config, model=nn.Linear(4, 2), train=data, test=data)


def signalled(subject, step, *numbers):
    """Let signals arrive while the optimizer is about to apply a step."""
    steps = iter(range(1, 100))

    def arrive(*_):
        if next(steps) == step:
            for number in numbers:
                signal.raise_signal(number)

    subject.optimizer.register_step_pre_hook(arrive)
    return subject


@pytest.mark.parametrize(("number", "says"), [(2, "Interrupted"), (15, "Ended by SIGTERM")])
def test_a_signal_in_the_middle_of_a_step_lets_it_end_and_saves_it(tmp_path, number, says, capsys):
    with pytest.raises(dpfy.TrainingInterrupted, match=f"{says}.*--resume") as caught:
        signalled(trainer(tmp_path), 4, number).fit()
    assert caught.value.signal == number
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 4
    result = trainer(tmp_path).fit(resume_if_exists=True)
    assert "lost" not in capsys.readouterr().out  # the checkpoint has every step that was paid for
    assert [each.step for each in result.evaluations] == [4, 8, 12]
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 12


def test_a_second_signal_ends_at_once_and_leaves_the_checkpoint_before_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("dpfy.trainer.signals._ECHO", -1.0)
    with pytest.raises(KeyboardInterrupt):
        signalled(trainer(tmp_path), 6, signal.SIGINT, signal.SIGINT).fit()
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 6
    trainer(tmp_path).resume()  # from the checkpoint of the first epoch
    assert "2 steps after the checkpoint were paid for and are lost" in capsys.readouterr().out
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 12


def test_a_second_signal_during_the_save_leaves_the_checkpoint_before_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("dpfy.trainer.signals._ECHO", -1.0)
    replace = Path.replace

    def hit(path, target):
        if dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 6:
            signal.raise_signal(signal.SIGINT)
        return replace(path, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", hit)
        signalled(trainer(tmp_path), 6, signal.SIGTERM).fit()
    trainer(tmp_path).resume()
    assert "2 steps after the checkpoint were paid for and are lost" in capsys.readouterr().out


def test_a_run_is_begun_once_and_then_resumed_by_the_same_call(tmp_path):
    first = trainer(tmp_path).fit(resume_if_exists=True)
    again = trainer(tmp_path).fit(resume_if_exists=True)  # it had ended: the report is written
    assert first.claim == again.claim
    assert dpfy.Ledger.read(tmp_path / "a" / "ledger.dpl").count == 12


def test_a_run_with_other_settings_is_not_resumed(tmp_path):
    trainer(tmp_path).fit()
    with pytest.raises(dpfy.InvalidArgument, match="begun with another epochs"):
        trainer(tmp_path, epochs=4).fit(resume_if_exists=True)


def test_a_run_without_a_name_cannot_be_found_again(tmp_path):
    with pytest.raises(dpfy.InvalidArgument, match="Expected a name"):
        trainer(tmp_path, name=None).fit(resume_if_exists=True)
    assert not list(tmp_path.iterdir())
