"""Whole training runs on neighbouring data: what can be seen differs by noise alone. And runs that
are killed.
"""

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.cli.app import main
from dpfy.run.checkpoint import FILE
from dpfy.trainer.trainer import CONFIG

MODULE = '''
import os
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

class Records(Dataset):
    """Good records; with the canary also one of huge loss, one not finite and one unreadable."""

    example_input = torch.zeros(1, 3), torch.zeros(1, dtype=torch.long)

    def __init__(self, canary):
        y = torch.arange(300) % 2
        self.rows = [(x, label) for x, label in zip(torch.randn(300, 3) + 2.0 * y.unsqueeze(1), y)]
        if canary:
            huge, broken = torch.full((3,), 1e30), torch.full((3,), float("nan"))
            self.rows += [(huge, y[0]), (broken, y[1]), None, (torch.ones(7), 99)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        x, y = self.rows[index]  # raises for the record that is None
        return x, y

def ordinary_records():
    return Records(False), Records(False)

def records_with_canary():
    return Records(True), Records(False)

def model():
    return nn.Linear(3, 2)
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "neighbouring_records.py").write_text(MODULE)
    return "neighbouring_records"


def observed(module, name, capfd, caplog):
    """Everything that a run on the named data lets anyone see, with what noise may change blanked
    out.
    """
    caplog.clear()
    with pytest.raises(SystemExit) as caught:
        main(
            [
                "train",
                "--data",
                f"{module}:{name}",
                "--model",
                f"{module}:model",
                "--records",
                "300",
                "--name",
                name,
                "--batch-size",
                "60",
                "--epochs",
                "2",
                "--out",
                "out",
            ]
        )
    output = capfd.readouterr()
    folder = f"out/{name}"
    screen = re.sub(
        r"\d+\.\d%|\d+:\d+:\d+|━+|[╸╺]", "#", output.out + output.err
    )  # accuracy, time left, bar
    uses = [
        line.split(',"hash"')[0] for line in Path(folder, "ledger.dpl").read_text().splitlines()
    ][1:]
    report = json.loads(Path(folder, "report.json").read_text())
    del report["ledger"]["created"]
    report["facts"]["history"] = [step for step, _ in report["facts"]["history"]]
    statement = re.sub(
        "[0-9a-f]{64}", "#", json.dumps(report)
    )  # the ledger's hash covers its random identity
    return (
        caught.value.code,
        " ".join(screen.split()).replace(name, "DATA"),
        statement.replace(name, "DATA"),
        uses,
        [record.getMessage() for record in caplog.records],
        sorted(os.listdir(folder)),
    )


def test_a_canary_leaves_no_trace_but_noise(module, capfd, caplog):
    assert observed(module, "ordinary_records", capfd, caplog) == (
        observed(module, "records_with_canary", capfd, caplog)
    )


def make_trainer(folder):
    y = torch.arange(200) % 2
    data = TensorDataset(
        torch.randn(200, 3, generator=torch.Generator().manual_seed(1)) + 2.0 * y.unsqueeze(1), y
    )
    config = dpfy.TrainConfig(
        out=str(folder),
        name="a",
        records=200,
        batch_size=20,
        epochs=8,
        data="own",
        csv=False,
        learning_rate=0.1,
        delta=1e-3,
    )
    return dpfy.Trainer(config, model=nn.Linear(3, 2), train=data)


def train_until_killed(folder, seconds):
    """Start or resume in a forked child, which is killed after so many seconds; return whether it
    finished.
    """
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        trainer = make_trainer(folder)
        started = (trainer.folder / CONFIG).exists()
        trainer.resume() if started else trainer.fit()
        os._exit(0)
    checkpoint, patience = folder / "a" / FILE, time.monotonic() + 60
    while (
        not checkpoint.exists() and time.monotonic() < patience
    ):  # the instants are those of a run under way
        time.sleep(0.01)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFEXITED(os.waitpid(child, 0)[1])


def kill_and_resume(folder, kills, seed):
    """Kill again and again, then finish: the ledger holds every step that any attempt reserved, and
    no more.
    """
    make_trainer(folder)  # imports and caches are warm before the first fork
    instants, before = random.Random(seed), 0
    path = folder / "a" / "ledger.dpl"
    for _ in range(kills):
        finished = train_until_killed(folder, instants.uniform(0.05, 0.8))
        count = dpfy.Ledger.read(path).count
        assert count >= before
        before = count
        if finished:
            break
    trainer = make_trainer(folder)
    result = trainer.resume()
    assert dpfy.Ledger.read(path).count == trainer.plan.steps
    assert result.claim <= 3.0


def test_a_training_run_survives_being_killed(tmp_path):
    kill_and_resume(tmp_path, kills=4, seed=5)


@pytest.mark.slow
def test_a_training_run_survives_being_killed_many_times(tmp_path):
    for seed in range(15):
        (tmp_path / str(seed)).mkdir()
        kill_and_resume(tmp_path / str(seed), kills=10, seed=seed)
