"""Nothing that can be seen of a selection tells how many trials it had: all is the same with one
and with five.
"""

import gc
import io
import json
import logging
import os
import random
import sys
import tempfile
import warnings
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy.tuning
import dpfy.tuning.folder
import dpfy.tuning.search as searching
from dpfy.accounting import EnvelopeGuard
from dpfy.cli.app import main
from dpfy.errors import TrainingInterrupted
from dpfy.ledger import Ledger, journal, sealed
from dpfy.tuning import Choice, Space, TuneConfig
from dpfy.tuning.silence import led_to, silence

# of five trials under it the first is the best, so that it is released with one and with five
KEY = 3
USER = '''
"""A model and data of a user whose code talks all the time."""

import ctypes
import logging
import os
import random
import subprocess
import sys
import warnings
from sys import __stdout__, stdout

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

logging.getLogger("talkative").addHandler(logging.FileHandler("talk.log"))


def talk(what):
    print(what)
    print(what, file=sys.stderr)
    for kept in (stdout, __stdout__):
        kept.write("to a stream that was kept: " + what + "\\n")
    for number in (1, 2):
        os.write(number, what.encode() + b"\\n")
    ctypes.CDLL(None).puts(what.encode())
    subprocess.run(["echo", what], check=True)
    logging.getLogger("talkative").error(what)
    warnings.warn(what)


class Network(nn.Sequential):
    def __init__(self):
        talk("a network is made")
        super().__init__(nn.Conv1d(1, 4, 4), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(4, 2))
        self.itself = [self]  # so that it dies when garbage is collected
        with torch.no_grad():
            drawn = torch.from_numpy(np.random.standard_normal((2, 4))).float()
            self[3].weight += drawn + random.random()

    def __del__(self):
        print("a network is gone")


class Blobs(Dataset):
    example_input = torch.zeros(1, 1, 4), torch.zeros(1, dtype=torch.long)

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.y = torch.randint(2, (60,), generator=generator)
        self.x = torch.randn(60, 1, 4, generator=generator) + self.y.view(-1, 1, 1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        if index == 0:
            print("record 0 is read")
        return self.x[index], self.y[index]


def data():
    talk("data are read")
    return Blobs(1), Blobs(2)
'''
SETTINGS = {
    "data": "talkative:data",
    "model": "talkative:Network",
    "records": 60,
    "batch_size": 60,
    "epochs": 2,
    "sampling": "full",
    "batchnorm": "group",
    "delta": 1e-3,
    "out": "runs",
    "name": "a",
    "num_workers": 1,
}


class Noon(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, zone=None):
        return datetime(2026, 1, 1, 12, tzinfo=zone)


@pytest.fixture
def seen(monkeypatch, tmp_path, capfd):
    """Return a function that searches with a given number of trials and returns all that can be
    seen of it.
    """
    monkeypatch.setattr(searching, "calibrate_envelope", lambda *_, **__: 3.0)
    monkeypatch.setattr(
        searching, "EnvelopeGuard", lambda all, _, relation: EnvelopeGuard(all, None, relation)
    )
    monkeypatch.setattr(journal, "datetime", Noon)
    (temporary := tmp_path / "temporary").mkdir()
    gc.disable()  # networks say when they die: not by chance, in the middle of something
    monkeypatch.setattr(
        "secrets.token_hex", lambda count: "5e" * count
    )  # ledgers have names of their own

    def watched(number, search):
        work = tmp_path / str(number)
        work.mkdir()
        (work / "talkative.py").write_text(USER)
        sys.modules.pop("talkative", None)
        gc.collect()  # what another test left says nothing in this one
        with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            patched.chdir(work)
            patched.syspath_prepend("")
            patched.setattr(sys, "dont_write_bytecode", True)
            patched.setattr(
                tempfile, "tempdir", str(temporary)
            )  # the same: torch makes folders once in a process
            patched.setattr(searching, "draw_trials", lambda law, stream: number)
            for seed in (random.seed, np.random.seed, torch.manual_seed):
                seed(7)
            capfd.readouterr()
            result = search()
            gc.collect()
            drawn = random.random(), np.random.random(), float(torch.rand(()))
            for handler in logging.getLogger("talkative").handlers[:]:
                handler.close()
                logging.getLogger("talkative").removeHandler(handler)
            said = capfd.readouterr()
        told = [str(each.message) for each in warned]
        return (
            result,
            said,
            told,
            drawn,
            files(work),
            files(temporary),
            logging.root.manager.disable,
        )

    yield watched
    gc.enable()


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def from_the_command_line():
    with pytest.raises(SystemExit) as caught:
        main(
            [
                "tune",
                "settings.toml",
                "--search",
                "learning_rate=0.0001,2",
                "--epsilon",
                "3",
                "--trials",
                "3",
            ]
        )
    return caught.value.code


def from_python():
    base = dpfy.TrainConfig(**SETTINGS)
    found = dpfy.tuning.tune(
        TuneConfig(base, Space({"learning_rate": Choice((1e-4, 2.0))}), epsilon=3.0, trials=3),
        insecure_test_key=KEY,
    )
    return found.to_json()


def by_command(monkeypatch):
    search = dpfy.tuning.tune
    monkeypatch.setattr(
        dpfy.tuning, "tune", lambda *given, **named: search(*given, **named, insecure_test_key=KEY)
    )

    def begin():
        Path("settings.toml").write_text(
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in SETTINGS.items())
        )
        return from_the_command_line()

    return begin


@pytest.mark.parametrize("way", ["command", "python"])
def test_one_trial_and_five_cannot_be_told_apart(seen, monkeypatch, tmp_path, way):
    """Fails if anything is said, written or moved for each trial: by fix(), by the user's code, its
    workers and what dies with a trial, by a bar that moves, by generators that go on, in a file or
    in its length.
    """
    search = by_command(monkeypatch) if way == "command" else from_python
    if way == "python":  # once is enough for the report, which takes seconds
        monkeypatch.setattr(dpfy.tuning.folder.Folder, "_report", lambda *_: 3.0)
    one, five = seen(1, search), seen(5, search)
    assert five == one
    _, (out, err), warned, _, left, _, _ = one
    assert (
        out.count("dpfy.fix:") == 1 and "a network is made" in out and err and warned
    )  # before the search
    assert json.loads(left["runs/a/tuning.json"])["failure"] is None
    assert {"runs/a/model.safetensors", "runs/a/ledger.dpl", "talk.log"} <= set(left)
    assert ("runs/a/report.html" in left) == (way == "command")


@pytest.fixture
def quick(monkeypatch):
    """Searches with a given noise and number of trials, and without a report."""
    monkeypatch.setattr(searching, "calibrate_envelope", lambda *_, **__: 3.0)
    monkeypatch.setattr(
        searching, "EnvelopeGuard", lambda all, _, relation: EnvelopeGuard(all, None, relation)
    )
    monkeypatch.setattr(dpfy.tuning.folder.Folder, "_report", lambda *_: 3.0)
    return lambda number: monkeypatch.setattr(searching, "draw_trials", lambda law, stream: number)


def numbers(seed):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(30, 4, generator=generator), torch.randint(2, (30,), generator=generator)
    )


DATA = {"train": numbers(1), "test": numbers(2)}


def config(folder, **base):
    settings = {
        "out": str(folder),
        "name": "a",
        "data": "numbers",
        "records": 30,
        "batch_size": 30,
        "epochs": 1,
        "delta": 1e-3,
        "sampling": "full",
    }
    return TuneConfig(
        dpfy.TrainConfig(**{**settings, **base}),
        Space({"learning_rate": Choice((0.1, 1.0))}),
        epsilon=3.0,
        trials=3,
    )


def line():
    return nn.Linear(4, 2)


def test_no_file_tells_when_the_search_ended(tmp_path, quick):
    """Fails if a file has a date of its own: between that of the declaration and the last lie all
    trials.
    """
    quick(2)
    anchor = tmp_path / "anchor"
    found = dpfy.tuning.tune(config(tmp_path, anchor=str(anchor)), model=line, **DATA)
    assert Ledger.read(found.folder / "ledger.dpl", anchor).count == 1
    dates = {path.stat().st_mtime_ns for path in (anchor, found.folder, *found.folder.iterdir())}
    assert len(dates) == 1


def test_what_is_kept_while_trials_run_is_as_long_for_every_number(tmp_path, monkeypatch):
    """Fails if whoever may list the folder, but not read the file, sees how many digits the number
    has.
    """
    for number in (None, 0, 7, 12345678901):
        sealed.remember(tmp_path / "a.dpl", "s", number)
        (place,) = tmp_path.iterdir()
        assert place.stat().st_size == 64 and sealed.recall(tmp_path / "a.dpl", "s") == (
            number or 0
        )
    place.write_text('{"trials": 3}')  # as it was written before
    assert sealed.recall(tmp_path / "a.dpl", "s") == 3


def test_every_trial_begins_with_the_same_generators(tmp_path, quick):
    """Fails if a model that was drawn from NumPy's or Python's generator tells which trial it comes
    from.
    """
    quick(3)
    drawn = []

    def model():
        drawn.append((np.random.random(), random.random()))
        return line()

    dpfy.tuning.tune(config(tmp_path), model=model, **DATA)
    _, *trials = drawn  # the first is made before the search
    assert len(trials) == 3 and len(set(trials)) == 1


def test_code_that_ends_the_process_ends_its_trial_only(tmp_path, quick):
    quick(2)
    made = []

    def leaves():
        made.append(1)
        if len(made) > 1:
            sys.exit(3)
        return line()

    found = dpfy.tuning.tune(config(tmp_path), model=leaves, **DATA)
    assert len(made) == 1 + 2 and found.failure == "SystemExit"


def test_an_interruption_does_not_tell_how_far_the_search_had_come(
    tmp_path, quick, monkeypatch, capfd
):
    """Fails if the trials before it were heard, or if anything but their charge is left of them."""
    quick(3)
    tried, left = searching.try_settings, []
    for place in (1, 3):
        begun = []

        def stopped(*given, place=place, begun=begun):
            begun.append(1)
            if len(begun) == place:
                print("the last words")
                raise KeyboardInterrupt
            return tried(*given)

        monkeypatch.setattr(searching, "try_settings", stopped)
        (folder := tmp_path / str(place)).mkdir()
        before = np.random.get_state()[2]
        with pytest.raises(TrainingInterrupted) as caught:
            dpfy.tuning.tune(config(folder), model=line, **DATA)
        print("heard again")
        ledger = Ledger.read(folder / "a" / "ledger.dpl")
        moved = np.random.get_state()[2] - before
        left.append(
            (
                str(caught.value),
                capfd.readouterr(),
                ledger.uses,
                ledger.lines,
                moved,
                sorted(path.name for path in (folder / "a").iterdir()),
            )
        )
    assert left[0] == left[1] and left[0][1] == ("heard again\n", "")
    assert left[0][-1] == ["ledger.dpl", "ledger.dpl.head", "search.json"]


def test_a_process_without_output_can_search_as_well():
    with led_to(1, 987):  # a number that no file has
        pass
    with pytest.raises(ZeroDivisionError), silence():
        1 / 0  # noqa: B018
    os.write(1, b"")
    assert logging.root.manager.disable == 0


def test_a_stream_that_was_kept_is_silent_and_then_as_before(monkeypatch):
    """Fails if code that took hold of a notebook's output, which is no file, is heard; or if it
    stays silent.
    """
    heard, kept = [], io.StringIO()
    monkeypatch.setattr(sys, "stdout", kept)
    monkeypatch.setattr(sys, "stderr", kept)
    with silence():
        kept.write("inside")
    kept.write("outside")
    assert kept.getvalue() == "outside" and "write" not in vars(kept)
    kept.write = heard.append  # as those do that record what is said
    with silence():
        kept.write("inside")
    kept.write("outside")
    assert heard == ["outside"]
