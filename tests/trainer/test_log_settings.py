"""The setting ``log``: what it means, and what is refused before anything is made."""

import pytest

import dpfy
from dpfy.run.callbacks import Logger
from dpfy.trainer import loggers, trainer as trainers
from dpfy.trainer.log_settings import named_loggers

GIVEN = ("mlflow:sqlite:///a/b.db", "wandb:offline", "tensorboard:curves")


def test_trackers_are_given_in_a_list_or_separated_by_commas():
    config = dpfy.TrainConfig(log=list(GIVEN))
    assert config.log == GIVEN == dpfy.TrainConfig(log=", ".join(GIVEN)).log
    assert dpfy.TrainConfig.from_mapping(config.to_mapping()) == config
    assert dpfy.TrainConfig().with_flags({"log": GIVEN[0]}).log == GIVEN[:1]
    assert dpfy.TrainConfig(log=[]) == dpfy.TrainConfig()
    assert "log" not in config.hyperparameters()  # an address says nothing about the run
    hash(config)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("mlflow", "Expected log as mlflow:ADDRESS"),
        ("mlflow:", "got 'mlflow:'"),
        (["neptune:x"], "got 'neptune:x'"),
        ([3], "got 3"),
        (["wandb:online"], "Expected 'wandb:offline'"),
        ("mlflow:http://ann:secret@host", "MLFLOW_TRACKING_PASSWORD"),
        (["wandb:offline", "wandb: offline"], "each tracker in log once"),
    ],
)
def test_what_names_no_tracker_is_refused(given, says):
    with pytest.raises(dpfy.InvalidArgument, match=says) as caught:
        named_loggers(given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", [3, {"mlflow": "x"}])
def test_a_setting_of_another_type_is_refused(given):
    with pytest.raises(dpfy.InvalidArgument, match="log="):
        dpfy.TrainConfig(log=given)


@pytest.mark.parametrize("protect", ["records", "labels"])
def test_a_refused_tracker_is_found_before_anything_exists(tmp_path, monkeypatch, protect):
    def refuses(where, name):
        raise dpfy.InvalidArgument(f"MLflow does not answer at {where!r}.")

    monkeypatch.setattr(loggers, "MlflowLog", refuses)
    config = dpfy.TrainConfig(
        log="mlflow:http://nobody", out=str(tmp_path), name="a", epochs=1, protect=protect
    )
    with pytest.raises(dpfy.InvalidArgument, match="does not answer"):
        dpfy.Trainer(config).fit()
    assert list(tmp_path.iterdir()) == []


class Kept(Logger):
    """Keeps what it hears."""

    def __init__(self, *_):
        super().__init__()
        self.told = []

    def begin(self, step):
        self.told.append(("begin", step))

    def send(self, step, values):
        self.told.append((step, values))

    def attach(self, files):
        self.told.append([file.name for file in files])

    def end(self):
        self.told.append("end")


def test_loggers_hear_of_the_run_its_report_and_what_is_resumed(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(loggers, "WandbLog", lambda *given: kept.append(Kept()) or kept[-1])
    config = dpfy.TrainConfig(
        log="wandb:offline", out=str(tmp_path), name="a", epochs=2, batch_size=480
    )

    class Stopping(dpfy.Callback):
        def on_step(self, step):
            if step.step == 3:
                raise KeyboardInterrupt

    with pytest.raises(dpfy.TrainingInterrupted):
        dpfy.Trainer(config, callbacks=[Stopping()]).fit()
    trainers.resume_training(tmp_path / "a")
    first, second = (each.told for each in kept)
    assert first[0] == ("begin", 0) and first[-1] == "end"
    assert second[0] == ("begin", 3) and second[-1] == "end"
    assert second[-2] == ["report.md", "report.json", "report.html"]
    assert {"accuracy"} <= set(second[-3][1])
