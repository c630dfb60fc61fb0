"""``dpfy train`` and ``dpfy init`` as a user types them."""

import io
import json
import signal
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from dpfy.cli._progress import ProgressBar
from dpfy.cli.app import main
from dpfy.data import load
from dpfy.ledger import Ledger
from dpfy.models import default_model
from dpfy.trainer.callbacks import Step

OWN = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

def load():
    y = torch.arange(200) % 2
    data = TensorDataset(torch.randn(200, 3) + 2.0 * y.unsqueeze(1), y)
    return data, data

def model():
    return nn.Linear(3, 2)

def broken():
    raise ValueError("secret value 42")
"""
SHORT = ["--epochs", "1", "--batch-size", "500", "--delta", "1e-3"]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    output = capsys.readouterr()
    return caught.value.code or 0, output.out, output.err


def test_training_ends_with_the_guarantee_the_report_and_the_next_command(tmp_path, capsys):
    code, out, err = run(capsys, "train", *SHORT, "--out", str(tmp_path), "--name", "a")
    assert (code, err) == (0, "")
    assert "differential privacy" in out and "report.html" in out and "dpfy account" in out
    code, out, _ = run(
        capsys, "account", str(tmp_path / "a" / "ledger.dpl"), "--delta", "1e-3", "--json"
    )
    assert code == 0 and json.loads(out)["epsilon"] <= 3.0


@pytest.mark.parametrize(
    ("groups", "shown"),
    [({}, "ε 3.00 "), ({"strict": 1.0, "open": 3.0}, "ε 3.00 (weakest of 2 groups) ")],
)
def test_the_bar_says_whose_epsilon_it_shows(groups, shown):
    screen = io.StringIO()
    bar = ProgressBar(Console(file=screen, width=200, force_terminal=True, color_system=None))
    bar.on_start(2, 0)
    bar.on_step(Step(1, 2, 0.1, 3.0, {}, groups))
    bar.on_end()
    assert shown in screen.getvalue()


def test_groups_of_records_are_told_one_by_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leveldata.py").write_text(OWN + "\nlevels = ['strict', 'open'] * 100\n")
    own = ["--data", "leveldata:load", "--model", "leveldata:model", "--records", "200"]
    groups = ["--groups-of", "leveldata:levels", "--budgets", "strict=1:.5,open=3:.5"]
    short = ["--epochs", "1", "--batch-size", "50", "--delta", "1e-3", "--individual", "scale"]
    code, out, err = run(capsys, "train", *own, *groups, *short, "--name", "a")
    assert (code, err) == (0, "")
    out = " ".join(out.split())
    assert "differential privacy for records of group 'strict'" in out
    assert "differential privacy, the weakest of 2 groups, for all" in out
    code, out, _ = run(capsys, "account", "runs/a", "--delta", "1e-3", "--json")
    claims = {name: each["epsilon"] for name, each in json.loads(out)["groups"].items()}
    assert 0.99 < claims["strict"] <= 1.0 and 2.97 < claims["open"] <= 3.0
    code, _, err = run(capsys, "train", *own, *groups[:3], "strict=1:.5,open=3:.4", *short)
    assert code != 0 and "add up to 1, got 0.9" in err


def test_a_file_and_flags_over_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "init")[0] == 0
    (tmp_path / "dpfy.toml").write_text(
        'epsilon = 8.0\nepochs = 1\nbatch_size = 500\ndelta = "auto"\nname = "a"\n'
    )
    assert run(capsys, "train", "dpfy.toml", "--epsilon", "5", "--no-csv")[0] == 0
    saved = json.loads((tmp_path / "runs" / "a" / "config.json").read_text())
    assert (saved["epsilon"], saved["epochs"], saved["csv"]) == (5.0, 1, False)
    assert run(capsys, "init")[0] == 2  # never overwritten


def test_the_file_may_be_given_by_config(tmp_path, capsys, monkeypatch):
    """Flags override it, one by one in the table too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(
        'epsilon = 8.0\nepochs = 1\nname = "a"\nsampling = "importance"\nseed = 3\n'
        "[importance]\nratio = 0.7\nslack = 2.0\n"
    )
    code, _, err = run(
        capsys, "train", "--config", "a.toml", "--epsilon", "5", "--ratio", "0.6", "--no-csv"
    )
    assert (code, err) == (0, "")
    saved = json.loads((tmp_path / "runs" / "a" / "config.json").read_text())
    assert (saved["epsilon"], saved["seed"], saved["csv"]) == (5.0, 3, False)
    assert saved["importance"] == {"ratio": 0.6, "slack": 2.0, "norm_sum": "scheduled"}


@pytest.mark.parametrize("command", ["train", "tune", "audit"])
def test_one_file_is_given_once(tmp_path, capsys, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, command, "a.toml", "--config", "b.toml")
    assert code == 2 and "Leave one of them out" in err
    code, _, err = run(capsys, command, "--config", "b.toml")
    assert code == 2 and "There is no file b.toml" in err


def test_a_run_of_version_0_1_is_resumed(tmp_path, capsys, monkeypatch):
    """Its config.json has the old names, which nobody typed: there is no note."""
    monkeypatch.chdir(tmp_path)
    run(capsys, "train", *SHORT, "--name", "a", "--lr-schedule", "cosine", "--average-tail", "0.5")
    file = tmp_path / "runs" / "a" / "config.json"
    saved = json.loads(file.read_text())
    saved |= saved.pop("importance")
    saved |= {"schedule": saved.pop("lr_schedule"), "tail": saved.pop("average_tail")}
    file.write_text(json.dumps(saved))
    code, out, err = run(capsys, "train", "--resume", "runs/a")
    assert (code, err) == (0, "") and "differential privacy" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_goes_on(tmp_path, capsys, monkeypatch, number, code):
    monkeypatch.chdir(tmp_path)
    command = ["train", *SHORT, "--name", "a", "--resume-if-exists"]
    with monkeypatch.context() as patched:
        patched.setattr(ProgressBar, "on_step", lambda *_: signal.raise_signal(number))
        stopped, _, err = run(capsys, *command)
    assert stopped == code and err.count("\n") == 1
    assert "the state is saved" in err and "dpfy train --resume runs/a" in err
    assert Ledger.read(tmp_path / "runs" / "a" / "ledger.dpl").count == 1
    done, out, err = run(capsys, *command)
    assert (done, err) == (0, "") and "differential privacy" in out and "lost" not in out
    assert Ledger.read(tmp_path / "runs" / "a" / "ledger.dpl").count == 3


def test_own_data_and_own_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_for_test.py").write_text(OWN)
    code, out, _ = run(
        capsys,
        "train",
        "--data",
        "mine_for_test:load",
        "--model",
        "mine_for_test:model",
        "--records",
        "200",
        "--batch-size",
        "100",
        "--epochs",
        "1",
        "--name",
        "a",
    )
    assert code == 0 and "accuracy" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data", "nonsense"], "nonsense"),
        (["--data", "mnist", "--data-dir", "/nowhere"], "nowhere"),
        (["--epsilon", "-1"], "epsilon"),
        (["--delta", "soon"], "delta"),
        (["missing.toml"], "missing.toml"),
        (["--resume", "/nowhere"], "/nowhere"),
        (["--resume", "/nowhere", "--epsilon", "1"], "leave"),
        (["--resume", "/nowhere", "--config", "a.toml"], "leave"),
        (["--resume", "/nowhere", "--resume-if-exists"], "leave"),
        (["--resume-if-exists"], "--name"),
        (["--data", "json:missing"], "missing"),
        (["--model", "no_such_module:x"], "no_such_module"),
        (["--engine", "warp"], "warp"),
        (["--batch-size", "99999"], "99999"),
        (["--lr-schedule", "zigzag"], "zigzag"),
        (["--clipping", "quantil"], "quantil"),
        (["--noise-schedule", "exponential:often"], "exponential:RATE"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_no_ledger(
    tmp_path, capsys, monkeypatch, arguments, says
):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "train", *arguments)
    assert code != 0 and says in err and "Traceback" not in err
    assert err.startswith("Error: ") and err.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.name != "runs"]


def test_the_help_loads_no_torch():
    code = (
        "import sys; from dpfy.cli.app import main\ntry: main(['train', '--help'])\nexcept "
        "SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "--epsilon" in shown and shown.endswith("False\n")


def test_the_released_model_can_be_loaded(tmp_path, capsys):
    run(capsys, "train", *SHORT, "--out", str(tmp_path), "--name", "a")
    model, released = default_model(load("digits")), load_file(tmp_path / "a" / "model.safetensors")
    assert not any(torch.equal(value, released[name]) for name, value in model.state_dict().items())
    model.load_state_dict(released)
