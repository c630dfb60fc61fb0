"""The service as `dpfy serve` runs it: several processes, one ledger."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from services import ask

from dpfy import Ledger, Teachers
from dpfy.ensembles import LinearPredictor
from dpfy.ensembles.prediction_folder import LEDGER, load_format, open_predictor, plan_of
from dpfy.errors import CheckpointError, InvalidArgument
from dpfy.serving import Service, create_token, serve
from dpfy.serving.server import worker_app

SETTINGS = {"classes": 2, "noise": 8.0, "epsilon": 3.0, "delta": 1e-6, "shape": (1,)}


@pytest.fixture
def folder(tmp_path):
    import torch

    teacher = LinearPredictor(torch.tensor([[0.0, 1.0]]), torch.zeros(2))
    Teachers([teacher] * 40).save(tmp_path / "ensemble")
    return tmp_path / "ensemble"


def test_folder_is_opened_by_the_plan_of_its_ledger(folder):
    with pytest.raises(InvalidArgument, match="Declare it"):
        open_predictor(folder)
    first = open_predictor(folder, settings=SETTINGS)
    answer = first.predict([3.0])
    second = open_predictor(folder)
    assert second.plan == first.plan == plan_of(folder / LEDGER)
    assert second.predict([3.0]) == answer and second.ledger.count == 1


def test_folder_without_teachers_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no teachers"):
        open_predictor(tmp_path, settings=SETTINGS)
    assert not (tmp_path / LEDGER).exists()


def test_ledger_of_something_else_is_refused(tmp_path):
    with Ledger.open(tmp_path / "other.dpl"):
        pass
    with pytest.raises(InvalidArgument, match="something else"):
        plan_of(tmp_path / "other.dpl")


def test_format_is_found_by_its_name(monkeypatch, tmp_path):
    (tmp_path / "own_formats.py").write_text("kept = object()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert load_format("own_formats:kept") is sys.modules["own_formats"].kept
    assert load_format(None) is None
    for name in ("own_formats:lost", "own_formats", "no_such_module:kept", ":", ""):
        with pytest.raises(InvalidArgument, match="module:name"):
            load_format(name)


def test_worker_serves_what_the_first_process_was_told(folder, monkeypatch):
    pytest.importorskip("uvicorn")
    started = []
    monkeypatch.setattr("uvicorn.run", lambda app, **options: started.append((app, options)))
    monkeypatch.setenv("DPFY_SERVICE", "")
    service = Service(str(folder), workers=3)
    with pytest.raises(InvalidArgument, match="SHA-256"):
        serve(service)
    create_token(service.token_file)
    with pytest.raises(InvalidArgument, match="no ledger"):
        serve(service)
    open_predictor(folder, settings=SETTINGS)
    serve(service)
    app, options = started[0]
    assert app == "dpfy.serving.server:worker_app" and options["factory"]
    assert (options["host"], options["workers"]) == ("127.0.0.1", 3)
    assert not options["access_log"]
    assert {route.path for route in worker_app().routes} == {"/predict", "/budget", "/health"}
    assert (folder / "token.sha256").read_text().strip() not in os.environ["DPFY_SERVICE"]


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"port": -1}, {"port": 70000}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Service("folder", **wrong)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.apart
def test_command_serves_two_processes_and_survives_a_kill(folder):
    # The whole way: command, two spawned workers, a real client, SIGKILL, and again.
    port, token, answers = free_port(), None, []
    declared = [
        "--classes",
        "2",
        "--noise",
        "8",
        "--epsilon",
        "3",
        "--delta",
        "1e-6",
        "--shape",
        "1",
    ]
    for options in (declared, []):
        command = [sys.executable, "-m", "dpfy", "serve", folder, "--port", str(port), *options]
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said = ""
            while "listening" not in said:
                line = running.stdout.readline()
                assert line, running.stderr.read()  # it ended before it listened
                said += line
            token = token or re.search("shown once: (.+)", said)[1]
            answers.append([once_there(port, [[float(each)]], token) for each in range(-4, 5)])
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert answers[0] == answers[1] and Ledger.read(folder / LEDGER).count == 9
    assert "buys 4 more" in said
    assert token not in (folder / "token.sha256").read_text()


def once_there(port, inputs, token):
    """Ask as soon as somebody listens."""
    for _ in range(600):
        try:
            return ask(port, inputs, token)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError("nobody listens")
