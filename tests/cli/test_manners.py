"""Whatever goes wrong is one sentence that quotes no record; the traceback is for those who ask."""

import pytest

import dpfy
from dpfy.cli import app as cli
from dpfy.errors import DataError

OWN = """
import torch
from torch.utils.data import TensorDataset

class Vanishing:
    example_input = torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)

    def __len__(self):
        raise RuntimeError("secret 42")

    def __getitem__(self, index):
        raise RuntimeError("secret 42")

def good():
    return TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)), None

def model():
    return torch.nn.Linear(2, 2)

def raising():
    raise KeyError("secret 42")

def needy(argument):
    return argument
"""
TRAIN = ["train", "--records", "4", "--batch-size", "2", "--epochs", "1", "--name", "a"]
COMMANDS = [
    [],
    ["ledger"],
    ["train"],
    ["init"],
    ["report"],
    ["account"],
    ["convert"],
    ["epsilon"],
    ["calibrate"],
    ["inspect-data"],
    ["check"],
    ["ledger", "verify"],
    ["ledger", "show"],
]


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "manners_own.py").write_text(OWN)
    (tmp_path / "manners_broken.py").write_text('raise RuntimeError("secret 42")')
    (tmp_path / "manners_needs.py").write_text("import a_module_that_nobody_has")
    (tmp_path / "manners_syntax.py").write_text("secret 42(")


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return call


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        ("manners_own:raising", "'manners_own:raising' raised KeyError"),
        ("manners_own:needy", "'manners_own:needy' raised TypeError"),
        ("manners_own:absent", "'manners_own' has no 'absent'"),
        ("manners_broken:load", "'manners_broken' raised RuntimeError"),
        ("manners_syntax:load", "'manners_syntax' raised SyntaxError"),
        ("manners_needs:load", "no module 'a_module_that_nobody_has'"),
        ("manners_own:Vanishing", "unexpected RuntimeError"),
    ],
)
@pytest.mark.parametrize("command", ["train", "inspect-data"])
def test_what_a_users_module_raises_is_named_and_not_quoted(run, command, loader, says):
    arguments = (
        [*TRAIN, "--data", loader, "--model", "manners_own:model"]
        if command == "train"
        else [command, loader]
    )
    code, out, err = run(*arguments)
    assert code != 0 and says in err and err.startswith("Error: ") and err.count("\n") == 1
    assert "secret" not in out + err and "Traceback" not in err


def test_what_a_users_model_raises_is_named_and_not_quoted(run):
    code, _, err = run(*TRAIN, "--data", "manners_own:good", "--model", "manners_own:raising")
    assert code == 1 and "'manners_own:raising' raised KeyError" in err and "secret" not in err


@pytest.mark.parametrize("place", [0, 1, 2])
def test_debug_shows_the_cause_wherever_it_stands(place):
    arguments = ["inspect-data", "manners_own:raising"]
    arguments.insert(place, "--debug")
    with pytest.raises(DataError) as caught:
        cli.main(arguments)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "dpfy")
def test_every_command_helps_itself(run, command):
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    if command not in ([], ["ledger"]):  # these two list commands
        assert "Examples:" in out and f"dpfy {' '.join(command)}" in out


def test_a_place_that_cannot_be_written_is_named(run, tmp_path):
    code, out, err = run("init", str(tmp_path / "nowhere" / "dpfy.toml"))
    assert code == 1 and out == "" and err.count("\n") == 1
    assert str(tmp_path / "nowhere") in err and "Check the path" in err and "Errno" not in err


def test_ctrl_c_is_a_sentence(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfy.records.inspection.inspect_records", interrupted)
    assert run("inspect-data", "manners_own:good") == (130, "", "Error: Interrupted.\n")


@pytest.mark.parametrize(
    "command",
    [["account"], ["convert"], ["report"], ["ledger", "verify"], ["ledger", "show"]],
    ids=" ".join,
)
def test_the_folder_of_a_run_stands_for_its_ledger(run, tmp_path, command):
    step = dpfy.dpsgd(records=10, batch_size=5, steps=1, noise_multiplier=2.0).event
    with dpfy.Ledger.open(tmp_path / "ledger.dpl") as ledger:
        ledger.reserve(step)
    options = [] if command[0] == "ledger" else ["--delta", "1e-3"]
    code, out, err = run(*command, str(tmp_path), *options)
    assert (code, err) == (0, "") and out


def test_inspect_data_takes_the_private_half_of_a_pair(run):
    code, out, err = run("inspect-data", "manners_own:good")
    assert code == 0 and out == "0 findings in 4 records.\n" and err.startswith("Private facts")
