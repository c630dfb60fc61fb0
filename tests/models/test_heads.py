"""Heads have the sizes of the paper, and their normalisation takes nothing from other examples."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpfy
from dpfy.models import Normalize, StandardizeChannels, TemperedSigmoid, cnn_head, linear_head

GREY, COLOUR = (81, 7, 7), (243, 8, 8)


def size(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("head", "shape", "parameters"),
    [
        (linear_head, GREY, 39_700),
        (linear_head, COLOUR, 155_530),
        (cnn_head, GREY, 33_066),
        (cnn_head, COLOUR, 187_210),
    ],
)
def test_sizes_are_those_of_the_paper(head, shape, parameters):
    # Tramèr and Boneh 2021: 40K and 155K parameters for linear models, 33K and 187K for CNNs.
    model = head(shape)
    assert size(model) == parameters
    assert model(torch.rand(3, *shape)).shape == (3, 10)
    assert head(shape, classes=7)(torch.rand(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize(
    "normalization",
    [
        None,
        Normalize(norm=1.0),
        StandardizeChannels(torch.rand(81), torch.rand(81)),
        nn.Sequential(nn.GroupNorm(9, 81, affine=False), Normalize(norm=1.0)),
    ],
    ids=["group", "unit", "released", "both"],
)
@pytest.mark.parametrize("head", [linear_head, cnn_head])
def test_heads_pass_the_probe_with_every_normalisation(head, normalization):
    model = head(GREY, normalization=normalization)
    loss = lambda x, y: F.cross_entropy(model(x), y, reduction="none")  # noqa: E731
    assert (
        dpfy.explain(model, (torch.rand(4, *GREY), torch.arange(4)), loss).engine == "bookkeeping"
    )


def test_without_another_normalisation_groups_of_channels_have_mean_zero_and_variance_one():
    for head, shape, together in ((linear_head, GREY, 3), (cnn_head, COLOUR, 9)):
        normalized = (
            head(shape)[0](torch.rand(2, *shape) * 50 + 7).unflatten(1, (27, together)).flatten(2)
        )
        assert torch.allclose(normalized.mean(2), torch.zeros(2, 27), atol=1e-4)
        assert torch.allclose(normalized.var(2, correction=0), torch.ones(2, 27), atol=1e-3)


def test_a_linear_head_starts_at_zero_and_can_leave_it():
    model = linear_head(GREY)
    loss = F.cross_entropy(model(torch.rand(3, *GREY)), torch.arange(3))
    assert loss.item() == pytest.approx(torch.tensor(10.0).log().item())
    loss.backward()
    assert all(p.grad.any() for p in model.parameters())


def test_the_activation_of_a_cnn_head_is_the_given_one():
    for shape, count in ((GREY, 3), (COLOUR, 2)):
        kinds = [type(module) for module in cnn_head(shape, activation=TemperedSigmoid)]
        assert kinds.count(TemperedSigmoid) == count and nn.Tanh not in kinds


def test_standardising_is_by_the_given_numbers_and_without_spread_to_zero():
    mean, std = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([2.0, 0.5, 0.0])
    layer, x = StandardizeChannels(mean, std), torch.randn(4, 3, 5, 5)
    found = layer(x)
    assert torch.allclose(found[:, 0], (x[:, 0] - 1) / 2) and torch.allclose(
        found[:, 1], (x[:, 1] + 2) / 0.5
    )
    assert not found[:, 2].any()
    assert torch.equal(layer.train()(x), layer.eval()(x))
    x.requires_grad_()
    layer(x).sum().backward()
    assert x.grad.isfinite().all()  # also through the channel without spread


def test_statistics_are_saved_constant_and_a_copy():
    mean, std = torch.zeros(3), torch.ones(3)
    layer = StandardizeChannels(mean, std)
    mean.fill_(9)
    assert not layer.mean.any() and not list(layer.parameters())
    layer(torch.randn(4, 3))
    assert not layer.mean.any() and layer.std.eq(1).all()
    other = StandardizeChannels(torch.rand(3), torch.rand(3))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.mean, layer.mean) and torch.equal(other.std, layer.std)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (torch.zeros(3), torch.ones(2), r"\(3,\) and \(2,\)"),
        (torch.zeros(3, 1), torch.ones(3, 1), "one number per"),
        (torch.zeros(2), torch.tensor([1.0, -1.0]), "at least 0"),
        (torch.tensor([0.0, torch.nan]), torch.ones(2), "finite"),
        (torch.zeros(2), torch.tensor([1.0, torch.inf]), "finite"),
    ],
)
def test_statistics_that_are_none_are_refused(mean, std, message):
    with pytest.raises(dpfy.InvalidArgument, match=message):
        StandardizeChannels(mean, std)


def test_inputs_of_other_channels_are_refused():
    with pytest.raises(dpfy.InvalidArgument, match=r"\(records, 3, …\), got \(2, 4\)"):
        StandardizeChannels(torch.zeros(3), torch.ones(3))(torch.rand(2, 4))


def test_shapes_without_a_network_are_refused():
    with pytest.raises(dpfy.InvalidArgument, match="Use linear_head"):
        cnn_head((81, 9, 9))
    with pytest.raises(dpfy.InvalidArgument, match="multiple of 27 channels, got 17"):
        linear_head((17, 7, 7))
    assert size(linear_head((17, 7, 7), normalization=nn.Identity())) == 17 * 49 * 10 + 10
