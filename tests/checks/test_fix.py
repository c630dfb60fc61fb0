"""Swapping BatchNorm: for private statistics, or for those of public rows."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpfy
from dpfy.checks.fix import batchnorm_statistics
from dpfy.models import FrozenBatchNorm, PrivateBatchNorm

ROWS = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)) * 3 + 2


def network(**options):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.Sequential(nn.BatchNorm1d(6, **options), nn.ReLU()), nn.Linear(6, 2)
    )
    norm = model[1][0]
    if norm.affine:
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    with torch.no_grad():
        model(ROWS)  # running statistics of some kind
    return model


def test_private_layers_have_the_weights_and_start_at_nothing_about_the_data():
    model = network(eps=1e-3, momentum=0.3)
    weight = model[1][0].weight.detach().clone()
    assert dpfy.fix(model, "private") is model
    norm = model[1][0]
    assert isinstance(norm, PrivateBatchNorm) and (norm.eps, norm.momentum) == (1e-3, 0.3)
    assert torch.equal(norm.scale.weight, weight) and norm.statistic == "batchnorm 1.0"
    assert torch.equal(norm.running_mean, torch.zeros(6)) and torch.equal(
        norm.running_var, torch.ones(6)
    )


@pytest.mark.parametrize(
    ("batchnorm", "kind"), [("private", PrivateBatchNorm), ("public", FrozenBatchNorm)]
)
def test_pretrained_statistics_are_kept_if_they_are_said_to_be_public(batchnorm, kind):
    model = network().eval()
    expected = model(ROWS)
    dpfy.fix(model, batchnorm, pretrained=True)
    assert type(model[1][0]) is kind and not model[1][0].training
    assert torch.allclose(model(ROWS), expected, atol=1e-5)


@pytest.mark.parametrize("batchnorm", ["private", "public"])
@pytest.mark.parametrize(
    "public",
    [
        ROWS,
        (ROWS,),
        DataLoader(TensorDataset(ROWS, torch.zeros(40)), batch_size=7),
        [ROWS[:11], ROWS[11:]],
    ],
    ids=["tensor", "arguments", "loader", "batches"],
)
def test_public_rows_give_what_batch_norm_gives_them_in_training(batchnorm, public):
    model = network()
    expected = model(ROWS)
    dpfy.fix(model, batchnorm, public=public)
    assert torch.allclose(model(ROWS), expected, atol=1e-5)
    assert torch.allclose(model.eval()(ROWS), expected, atol=1e-5)


def test_no_scale_no_momentum_other_precision_and_the_model_itself():
    norm = dpfy.fix(nn.BatchNorm1d(4, momentum=None, affine=False).double(), "private")
    assert not list(norm.parameters()) and norm.momentum == 0.1 and norm.statistic == "batchnorm"
    assert norm(ROWS.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (network(), {"batchnorm": "public"}, "public="),
        (network(), {"batchnorm": "none"}, "batchnorm"),
        (
            network(track_running_stats=False),
            {"batchnorm": "private", "pretrained": True},
            "no running statistics",
        ),
        (network(), {"batchnorm": "public", "public": 3}, "loader, got int"),
        (network(), {"batchnorm": "public", "public": []}, "yield tensors"),
        (network(), {"batchnorm": "public", "public": [{"x": ROWS}]}, "yield tensors"),
    ],
)
def test_what_is_missing_or_wrong_is_said(model, options, match):
    with pytest.raises(dpfy.InvalidArgument, match=match):
        dpfy.fix(model, **options)


def test_statistics_share_the_budget_so_that_every_channel_has_the_same_noise():
    model = nn.Sequential(
        nn.Linear(4, 9), PrivateBatchNorm(9), nn.Linear(9, 16), PrivateBatchNorm(16)
    )
    found = batchnorm_statistics(model, bound=1.5, share=0.1, every=3)
    assert (
        [each.name for each in found]
        == [model[1].statistic, model[3].statistic]
        == ["batchnorm 1", "batchnorm 3"]
    )
    assert [each.bound for each in found] == [4.5, 6.0] and {each.every for each in found} == {3}
    assert math.fsum(each.share for each in found) == pytest.approx(0.1)
    assert found[0].bound / math.sqrt(found[0].share) == pytest.approx(
        found[1].bound / math.sqrt(found[1].share)
    )


def test_a_model_without_such_layers_has_no_statistics():
    with pytest.raises(dpfy.InvalidArgument, match=r"dpfy\.fix"):
        batchnorm_statistics(network())
