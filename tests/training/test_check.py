"""Looking a model over: what is found in a tuple, and which loss the probe is given."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpfy
from dpfy.training.check import check

FIELDS = [("float32", (4,)), ("int64", ())]


def net():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize("loss_for", [
    lambda model: nn.CrossEntropyLoss(reduction="none"), lambda model: F.cross_entropy,
    lambda model: lambda x, y: F.cross_entropy(model(x), y, reduction="none"),
], ids=["module", "function of torch", "function of the fields"])
def test_any_kind_of_loss_is_probed_with_the_model_it_belongs_to(loss_for):
    model = net()
    found = check((model, torch.optim.SGD(model.parameters(), lr=0.1), loss_for(model)), FIELDS)
    assert found.trainable and found.probed.explanation.engine == "bookkeeping"
    assert [row.layer for row in found.probed.explanation.layers] == ["0", "2"]


def test_without_fields_nothing_is_probed_and_with_findings_the_probe_waits():
    assert check(net()).probed is None and check(net()).trainable
    found = check(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), FIELDS[:1])
    assert found.probed is None and not found.trainable


@pytest.mark.parametrize(("made", "fields", "reason"), [
    (nn.Sequential(nn.Linear(4, 3), Mixing()), FIELDS[:1], r"IsolationError: The module '1' \(Mixing\)"),
    ((net(), lambda x, y: x.sum()), FIELDS, "LossError: .* reduction='none'"),
    (net(), FIELDS, "LossError: loss_fn fails on synthetic input"),
    ((net(), torch.optim.SGD(net().parameters(), lr=0.1)), FIELDS[:1], "InvalidArgument: The optimizer holds"),
], ids=["mixes", "scalar loss", "labels without a loss", "another model's optimizer"])
def test_what_the_probe_refuses_is_told(made, fields, reason):
    found = check(made, fields)
    assert not found.trainable and re.search(reason, found.probed.reason)


def test_several_optimizers_and_json():
    model = net()
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.LBFGS(model[2].parameters())]
    found = check((model, optimizers)).to_json()
    assert found["trainable"] is False and found["probe"] is None
    assert [row["component"] for row in found["components"]] == ["first-order optimizer", "second-order optimizer"]
    probed = check(model, FIELDS[:1]).to_json()["probe"]
    assert probed["passed"] and probed["explanation"]["engine"] == "bookkeeping"


@pytest.mark.parametrize("made", [3, (), (torch.ones(2), net())])
def test_what_is_no_model_is_refused(made):
    with pytest.raises(dpfy.InvalidArgument, match=r"torch\.nn\.Module"):
        check(made)
