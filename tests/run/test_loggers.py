"""What every logger does, whatever it sends to; the real packages are in tests/integrations."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.run.callbacks import Evaluation, Logger, Step
from dpfy.run.loggers import _mlflow_name

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
PLAN = dpfy.dpsgd(records=40, batch_size=20, steps=80).calibrate(epsilon=8.0, delta=1e-3)


class Kept(Logger):
    """Keeps what it is to send, and fails where it is told to."""

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.sent, self._fails = [], fails

    def begin(self, step):
        self._done("begin", step)

    def send(self, step, values):
        self._done("send", (step, dict(values)))

    def attach(self, files):
        self._done("attach", [file.name for file in files])

    def end(self):
        self._done("end", None)

    def _done(self, what, given):
        if what == self._fails:
            raise ConnectionError("the server is gone")
        self.sent.append((what, given))


def step(number: int, epsilon: float, **values) -> Step:
    return Step(number, 10, 0.1, epsilon, **values)


def test_a_logger_sends_the_epsilon_when_it_moves_and_never_twice():
    logger = Kept()
    logger.on_start(10, 4)
    logger.on_step(step(5, 0.0, metrics={"loss": 2.0}))
    logger.on_step(step(6, 0.0, metrics={"loss": 1.0}))
    logger.on_step(step(7, 0.5, metrics={"loss": 0.5}, groups={"strict": 0.2}))
    logger.on_evaluation(Evaluation(7, 1.0, 0.5, 0.75, groups={"strict": 0.2}))
    logger.on_evaluation(Evaluation(8, 1.0, 0.6, 0.5, metric="error"))
    logger.on_end()
    assert logger.sent == [
        ("begin", 4),
        ("send", (7, {"loss": 0.5, "epsilon": 0.5, "epsilon of strict": 0.2})),
        ("send", (7, {"accuracy": 0.75})),
        ("send", (8, {"error": 0.5, "epsilon": 0.6})),
        ("end", None),
    ]


@pytest.fixture
def run(tmp_path):
    model = nn.Linear(3, 1, bias=False)
    opt = torch.optim.SGD(model.parameters(), lr=0.25)
    data = TensorDataset(ROWS)
    with dpfy.privatize(model, opt, data, PLAN, tmp_path / "run.dpl") as run:
        run.loss = lambda x: model(x).squeeze(1)
        yield run


def walk(run, steps: int) -> None:
    for _, batch in zip(range(steps), run, strict=False):
        run.release(run.loss, batch)


@pytest.mark.parametrize("place", ["begin", "send", "attach", "end"])
def test_a_logger_that_fails_ends_no_run_and_is_left_out(run, tmp_path, place, capsys):
    failing, other = Kept(place), Kept()
    run.listen(failing, other)
    walk(run, 6)
    run.measured(0.5)
    run.report(tmp_path / "report")
    run.close()
    assert dpfy.Ledger.read(tmp_path / "run.dpl").count == 6
    said = capsys.readouterr().err
    assert said.count("Kept failed and sends nothing more; the run goes on") == 1
    assert "ConnectionError: the server is gone" in said
    kinds = [what for what, _ in other.sent]
    assert (
        kinds[0] == "begin" and kinds[-2:] == ["attach", "end"] and kinds.count("send") == 4
    )  # at 2, 4 and 6, and the measurement
    assert len(failing.sent) == kinds.index(place)  # and nothing after the failure


def test_an_interrupt_is_no_failure_of_a_logger(run):
    class Interrupted(Kept):
        def send(self, step, values):
            raise KeyboardInterrupt

    run.listen(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        walk(run, 2)


class Marking(dpfy.Callback):
    """Notes in which order it hears, and what was in the folder of the report."""

    def __init__(self):
        self.heard = []

    def on_report(self, files):
        self.heard.append(("report", [file.name for file in files if file.exists()]))

    def on_end(self):
        self.heard.append("end")


REPORT = ["report.md", "report.json", "report.html"]


@pytest.mark.parametrize("protect", ["records", "labels"])
def test_a_trainer_tells_of_the_report_before_the_end(tmp_path, protect):
    heard = Marking()
    config = dpfy.TrainConfig(
        epochs=1, batch_size=480, out=str(tmp_path), name="a", protect=protect,
        label_method="rr",
    ) if protect == "labels" else dpfy.TrainConfig(
        epochs=1, batch_size=480, out=str(tmp_path), name="a"
    )  # fmt: skip
    dpfy.Trainer(config, callbacks=[heard]).fit()
    assert heard.heard == [("report", REPORT), "end"]


def test_a_trainer_that_is_stopped_ends_its_callbacks_without_a_report(tmp_path):
    class Stopping(Marking):
        def on_step(self, step):
            raise KeyboardInterrupt

    heard = Stopping()
    config = dpfy.TrainConfig(epochs=1, batch_size=480, out=str(tmp_path), name="a")
    with pytest.raises(dpfy.TrainingInterrupted):
        dpfy.Trainer(config, callbacks=[heard]).fit()
    assert heard.heard == ["end"]


ODD = [
    "",
    ".",
    "..",
    "..a",
    "/",
    "a/b",
    "a//b",
    "a<b>",
    "<script>",
    "ε",
    " ",
    "x" * 400,
    "a" + "\n",
]


def test_names_that_mlflow_would_refuse_are_changed_and_stay_apart():
    found = [_mlflow_name(name) for name in ODD]
    assert len(set(found)) == len(ODD)
    assert _mlflow_name("epsilon of strict 2.5") == "epsilon of strict 2.5"
    for name in found:
        assert name and "/" not in name and not name.startswith(".") and len(name) <= 250
        assert json.dumps(name) and Path(name).name == name
