"""Loggers against the packages themselves: what they keep is what callbacks heard, and no more."""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.cli.app import main
from dpfy.run.callbacks import TensorBoardLog
from dpfy.run.loggers import MlflowLog, WandbLog

PLAN = dpfy.dpsgd(
    records=40, batch_size=20, steps=8, statistics=[dpfy.Statistic("sum", bound=1.0)]
).calibrate(epsilon=8.0, delta=1e-3)
ODD = "error / <b> of ../all"
REPORT = ["report.html", "report.json", "report.md"]


class Heard(dpfy.Callback):
    """Keeps the ε and the metrics of steps, and the evaluations."""

    def __init__(self):
        self.steps, self.evaluations = {}, {}

    def on_step(self, step):
        self.steps[step.step] = {"epsilon": step.epsilon, **step.metrics}

    def on_evaluation(self, evaluation):
        self.evaluations[evaluation.step] = (evaluation.metric, evaluation.value)


def train(folder: Path, logger: dpfy.Callback, metric: str = "accuracy") -> Heard:
    """Take the steps of a small plan in a loop of one's own, told to a logger."""
    torch.manual_seed(0)
    model, heard = nn.Linear(3, 1, bias=False), Heard()
    opt = torch.optim.SGD(model.parameters(), lr=0.25)

    def loss(x):
        found = model(x).squeeze(1)
        return dpfy.Losses(found, {"sum": found.detach().clamp(-1, 1)})

    run = dpfy.privatize(model, opt, TensorDataset(torch.randn(40, 3)), PLAN, folder / "run.dpl")
    with run:
        run.listen(heard, logger)
        for batch in run:
            opt.zero_grad()
            run.backward(loss, batch)
            opt.step()
            if run.steps_taken % 4 == 0:
                run.measured(run.steps_taken / 10, metric)
        run.report(folder / "report")
    assert dpfy.Ledger.read(folder / "run.dpl").count == PLAN.steps
    return heard


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """A client of a database in the folder of the test, which is the current one."""
    monkeypatch.chdir(tmp_path)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/runs.db")


def only_run(client):
    (experiment,) = (e for e in client.search_experiments() if e.name == "dpfy")
    (found,) = client.search_runs([experiment.experiment_id])
    return found


def artifacts(client, run) -> list[str]:
    files = client.list_artifacts(run.info.run_id, "privacy report")
    return sorted(Path(file.path).name for file in files)


def test_mlflow_keeps_what_callbacks_heard_and_the_report(tmp_path, mlflow):
    heard = train(tmp_path, MlflowLog(f"sqlite:///{tmp_path}/runs.db", "first"))
    run = only_run(mlflow)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert set(run.data.metrics) == {"epsilon", "sum", "accuracy"} and not run.data.params
    epsilons = mlflow.get_metric_history(run.info.run_id, "epsilon")
    assert {each.step: each.value for each in epsilons} == {
        step: told["epsilon"] for step, told in heard.steps.items()
    }
    accuracies = mlflow.get_metric_history(run.info.run_id, "accuracy")
    assert [(each.step, each.value) for each in accuracies] == [(4, 0.4), (8, 0.8)]
    assert artifacts(mlflow, run) == REPORT


def test_a_name_that_mlflow_refuses_does_not_end_the_run(tmp_path, mlflow, capsys):
    train(tmp_path, MlflowLog(f"sqlite:///{tmp_path}/runs.db"), metric=ODD)
    (name,) = set(only_run(mlflow).data.metrics) - {"epsilon", "sum"}
    assert name.startswith("error _ _b_ of .._all ")
    assert "failed" not in capsys.readouterr().err


def test_an_mlflow_that_goes_away_ends_no_run(tmp_path, mlflow, capsys):
    logger = MlflowLog(f"sqlite:///{tmp_path}/runs.db")
    begin = logger.begin

    def begins_and_loses(step):
        begin(step)
        logger._run = "0" * 32  # a run that somebody deleted

    logger.begin = begins_and_loses
    train(tmp_path, logger)
    said = capsys.readouterr().err
    assert said.count("MlflowLog failed and sends nothing more; the run goes on") == 1


@pytest.fixture
def nobody():
    """The address of a port at which nobody listens, and nobody else can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_an_address_at_which_nobody_answers_is_refused_before_a_run(tmp_path, nobody, capsys):
    for address in (nobody, "sqlite:////dev/null/x.db", "nonsense://x"):
        with pytest.raises(dpfy.InvalidArgument, match="MLflow does not answer at"):
            MlflowLog(address)
    given = ["train", "--epochs", "1", "--out", str(tmp_path / "runs"), "--name", "a"]
    with pytest.raises(SystemExit) as stop:
        main([*given, "--log", f"mlflow:{nobody}"])
    assert stop.value.code not in (None, 0)
    assert "MLflow does not answer" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


_BLOCK = 32 * 1024  # of the log format of LevelDB, in which the package keeps records


def raw_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of an offline file: each in one fragment, or in several."""
    place, record = 7, b""  # behind the header of the file
    while place < len(data):
        left = _BLOCK - place % _BLOCK
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last fragment
            yield record
            record = b""


def wandb_records(folder: Path) -> tuple[list[dict], str]:
    """Return the rows of an offline run, and all that it holds as text."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = [Record.FromString(each) for each in raw_records(file.read_bytes())]
    kinds = {each.WhichOneof("record_type") for each in found}
    assert not kinds & {"stats", "output", "output_raw"}, kinds  # these follow private samples
    rows = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in (each.history for each in found if each.HasField("history"))
    ]
    return rows, "\n".join(map(str, found))


def test_weights_and_biases_keeps_what_callbacks_heard_offline(tmp_path):
    heard = train(tmp_path, WandbLog(tmp_path / "kept", "first"), metric=ODD)
    rows, text = wandb_records(tmp_path / "kept")
    found = {row["_step"]: row for row in rows}
    assert {step: row["epsilon"] for step, row in found.items()} == {
        step: told["epsilon"] for step, told in heard.steps.items()
    }
    assert (found[4][ODD], found[8][ODD]) == (0.4, 0.8)
    assert {name for row in rows for name in row} <= {
        "epsilon", "sum", ODD, "_step", "_timestamp", "_runtime",
    }  # fmt: skip
    assert "first" in text and all(name in text for name in REPORT)


def test_tensorboard_keeps_what_callbacks_heard(tmp_path):
    heard = train(tmp_path, TensorBoardLog(tmp_path / "curves"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = EventAccumulator(str(tmp_path / "curves"))
    kept.Reload()
    scalars = {each.step: each.value for each in kept.Scalars("epsilon")}
    assert scalars == {step: pytest.approx(told["epsilon"]) for step, told in heard.steps.items()}
    assert [each.step for each in kept.Scalars("accuracy")] == [4, 8]
    assert kept.Tags()["tensors"] == ["privacy report/text_summary"]


def test_the_trainer_tells_all_of_them_by_its_settings(tmp_path, mlflow):
    config = dpfy.TrainConfig(
        epochs=2, batch_size=480, out=str(tmp_path / "runs"), name="a",
        log=[f"mlflow:sqlite:///{tmp_path}/runs.db", "wandb:offline", f"tensorboard:{tmp_path}/tb"],
    )  # fmt: skip
    result = dpfy.Trainer(config).fit()
    run = only_run(mlflow)
    assert run.info.run_name == "a"
    assert run.data.metrics["accuracy"] == result.evaluations[-1].accuracy
    assert run.data.metrics["epsilon"] == result.evaluations[-1].epsilon
    assert artifacts(mlflow, run) == REPORT  # and neither model, ledger nor checkpoint
    rows, _ = wandb_records(tmp_path / "runs" / "a")
    assert rows[-1]["epsilon"] == result.evaluations[-1].epsilon
    assert list((tmp_path / "tb" / "a").iterdir())
    written = (tmp_path / "runs" / "a" / "report.json").read_text(encoding="utf-8")
    assert "sqlite" not in written and "wandb" not in written
