"""Loading the model of a finished run."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.trainer.config import TrainConfig

X = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(1))
DATA = TensorDataset(X, (X[:, 0, 0, 0] > 0).long())


@pytest.fixture(autouse=True)
def without_report(monkeypatch):
    """Leave out the report, which takes longer than training."""
    nothing = SimpleNamespace(write=lambda folder: None)
    monkeypatch.setattr("dpfy.trainer.trainer.report", lambda *_: nothing)


def network(norm=nn.Identity):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        norm() if norm is nn.Identity else norm(8),
        nn.Flatten(),
        nn.Linear(32, 2),
    )


def fit(tmp_path, model=None, **settings):
    config = TrainConfig(
        **{"records": 40, "epochs": 2, "batch_size": 40, "out": str(tmp_path), "name": "run"}
        | settings
    )
    given = {"model": model, "train": DATA, "test": DATA} if model is not None else {}
    return dpfy.Trainer(config, **given).fit()


def same(loaded, trained):
    found, wanted = loaded.state_dict(), trained.state_dict()
    return found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in wanted)


def test_the_model_of_the_settings_is_made_and_the_average_loaded(tmp_path):
    result = fit(tmp_path, records=1437, batch_size=1437, ema=0.9)
    loaded = dpfy.load_model(result.folder)
    assert same(loaded, result.model) and not loaded.training
    assert "model=" not in repr(result)


def test_weights_are_loaded_into_a_model_that_is_given(tmp_path):
    result = fit(tmp_path, network())
    assert same(dpfy.load_model(result.folder, network()), result.model)
    with pytest.raises(dpfy.CheckpointError, match=r"another architecture .* model="):
        dpfy.load_model(result.folder)


def test_batchnorm_layers_are_replaced_as_they_were(tmp_path):
    result = fit(tmp_path, network(nn.BatchNorm2d), batchnorm="group")
    assert same(dpfy.load_model(result.folder, network(nn.BatchNorm2d)), result.model)


def test_an_own_factory_is_called_and_the_data_is_not_loaded(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import TensorDataset\n"
        "loads = []\n"
        "def data():\n    loads.append(1)\n"
        "    return TensorDataset(torch.randn(40, 4), torch.randint(2, (40,)))\n"
        "def net(): return nn.Linear(4, 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import own_parts

    config = TrainConfig(
        data="own_parts:data",
        model="own_parts:net",
        records=40,
        epochs=1,
        batch_size=40,
        out=str(tmp_path),
        name="run",
    )
    result = dpfy.Trainer(config).fit()

    assert same(dpfy.load_model(result.folder), result.model) and own_parts.loads == [1]


def test_a_folder_without_a_finished_run_is_refused(tmp_path):
    with pytest.raises(dpfy.CheckpointError, match=r"config\.json is missing"):
        dpfy.load_model(tmp_path)
    result = fit(tmp_path, network())
    (result.folder / "model.safetensors").unlink()
    with pytest.raises(dpfy.CheckpointError, match="not finished"):
        dpfy.load_model(result.folder, network())
