"""The entry of the command line: old names are notes, and every mistake says what to give."""

import warnings

import pytest

from dpfy.cli.app import main
from dpfy.trainer.config import TrainConfig


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return call


def test_an_old_flag_is_a_note_and_works(run):
    code, _, err = run("train", "--schedule", "zigzag")
    note, error = err.splitlines()
    assert code == 2 and note.startswith("Note: --schedule is now called --lr-schedule;")
    assert error.startswith("Error: Expected lr_schedule='zigzag'")


def test_an_old_name_in_a_file_is_a_note_and_works(run, tmp_path):
    (tmp_path / "old.toml").write_text("tail = 2.0\n")
    code, _, err = run("train", "old.toml")
    note, error = err.splitlines()
    assert code == 2 and note.startswith("Note: the setting tail is now called average_tail;")
    assert error.startswith("Error: Expected average_tail=2.0")


def test_other_warnings_are_shown_as_before(run, monkeypatch):
    def warned(path):
        warnings.warn("something else", UserWarning, stacklevel=1)

    monkeypatch.setattr(TrainConfig, "from_file", warned)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        run("train", "a.toml")
    assert [str(each.message) for each in shown] == ["something else"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["epsilon"], "Missing option '--rate'. Sampling rate"),
        (["plan", "resources", "a:b"], "Missing option '--example'. Type and shape"),
        (["account"], "Missing argument 'path'. Ledger"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_missing_is_explained(run, command, words):
    code, _, err = run(*command)
    assert code == 2 and err.startswith(f"Error: {words}") and err.count("\n") == 1
