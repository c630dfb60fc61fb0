"""Users and batch normalisation from the settings of a run."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.errors import InvalidArgument, IsolationError
from dpfy.ledger.events import Sampled
from dpfy.models import FrozenBatchNorm, PrivateBatchNorm
from dpfy.trainer.builders import load_data
from dpfy.trainer.trainer import resume_training

MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

owners = [row // 3 for row in range(300)]


def data():
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(2, (300,), generator=generator)
    rows = TensorDataset(torch.randn(300, 4, generator=generator) + 2.0 * y.unsqueeze(1), y)
    return rows, rows


def model():
    return nn.Linear(4, 2)
"""


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def trainer(folder, test=True, **settings):
    generator = torch.Generator().manual_seed(1)
    rows = TensorDataset(
        torch.randn(300, 4, generator=generator), torch.randint(2, (300,), generator=generator)
    )
    config = dpfy.TrainConfig(
        **{
            "out": str(folder),
            "name": "a",
            "records": 300,
            "batch_size": 100,
            "epochs": 2,
            "data": "own",
            "delta": 1e-3,
            **settings,
        }
    )
    return dpfy.Trainer(config, model=normalised(), train=rows, test=rows if test else None)


def test_batchnorm_is_refused_unless_the_settings_say_what_it_becomes(tmp_path):
    with pytest.raises(IsolationError):
        trainer(tmp_path).fit()


def test_private_batchnorm_releases_its_statistics_and_learns_them(tmp_path):
    """Were its statistics not in the plan, the layer would stay where it began."""
    made = trainer(tmp_path, batchnorm="private", private_metrics=True)
    result = made.fit()
    (layer,) = (module for module in made.model.modules() if isinstance(module, PrivateBatchNorm))
    assert bool((layer.running_mean != 0).all()) and result.spent.upper <= 3.0
    event = dpfy.Ledger.read(result.folder / "ledger.dpl").uses[0].event
    assert isinstance(event, Sampled)
    assert [query.name for query in event.queries] == [
        "gradient",
        "accuracy",
        "loss",
        "batchnorm 1",
        "contributing",
    ]


def test_public_batchnorm_has_the_statistics_of_public_records_and_the_report_says_so(tmp_path):
    made = trainer(tmp_path, batchnorm="public")
    (layer,) = (module for module in made.model.modules() if isinstance(module, FrozenBatchNorm))
    seen = made.model[0](made.data.test.tensors[0])
    assert torch.allclose(layer.running_mean, seen.mean(0), atol=1e-5)
    assert "statistics of BatchNorm" in (made.fit().folder / "report.md").read_text(
        encoding="utf-8"
    )
    with pytest.raises(InvalidArgument, match="public records"):
        trainer(tmp_path, test=False, batchnorm="public")


def test_group_normalisation_needs_nothing_else(tmp_path):
    made = trainer(tmp_path, batchnorm="group", epochs=1)
    assert isinstance(made.model[1], nn.GroupNorm) and made.fit().spent.upper <= 3.0


def test_users_are_protected_if_the_settings_name_the_owners_of_rows(tmp_path, monkeypatch):
    """The plan, the ledger and the report name users, and a run that was lost goes on with them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rows_of_users.py").write_text(MODULE)
    config = dpfy.TrainConfig(
        data="rows_of_users:data",
        model="rows_of_users:model",
        users="rows_of_users:owners",
        rows_per_user=2,
        records=100,
        batch_size=50,
        epochs=2,
        out=str(tmp_path),
        name="a",
        delta=1e-3,
    )

    class Stop(dpfy.Callback):
        def on_step(self, step):
            raise KeyboardInterrupt

    with pytest.raises(dpfy.TrainingInterrupted):
        dpfy.Trainer(config, callbacks=[Stop()]).fit()
    result = resume_training(tmp_path / "a")
    ledger = dpfy.Ledger.read(result.folder / "ledger.dpl")
    assert ledger.header.unit == "user" and ledger.header.plan["records"] == 100
    assert (
        json.loads((result.folder / "report.json").read_text())["facts"]["record"]
        == "all rows of one user"
    )


def test_users_are_counted_by_declaration(tmp_path):
    with pytest.raises(InvalidArgument, match="number of users"):
        dpfy.Trainer(dpfy.TrainConfig(out=str(tmp_path)), unit_of=range(1437))
    config = dpfy.TrainConfig(out=str(tmp_path), rows_per_user=3)
    with pytest.raises(InvalidArgument, match="protects records"):
        dpfy.Trainer(config).fit()


@pytest.mark.parametrize("unit_of", [None, range(6)])
def test_data_set_says_what_one_unit_is(unit_of, tmp_path):
    class Letters(torch.utils.data.TensorDataset):
        unit = "one letter: the first 2 tokens"

    train = Letters(torch.randn(6, 2), torch.zeros(6, dtype=torch.long))
    config = dpfy.TrainConfig(records=6, out=str(tmp_path))
    for data, unit in ((train, Letters.unit), (torch.utils.data.Subset(train, range(6)), None)):
        found = load_data(config, data, None, unit_of).unit
        assert found == (unit or ("one record" if unit_of is None else "all rows of one user"))
