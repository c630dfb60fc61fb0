"""Normalisation by constants: no record sees another, moments are bounded, and released ones lead
to the data's own.
"""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import dpfy
from dpfy.models import FrozenBatchNorm, PrivateBatchNorm, fit_statistics

FAR = 4.0  # the length of what one channel of one record may say
SHAPES = {1: (6, 3), 2: (6, 3, 5), 3: (6, 3, 4, 4), 4: (6, 3, 2, 3, 2)}
KINDS = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}


def private(channels=3, **options):
    layer = PrivateBatchNorm(channels, **options)
    layer.statistic = "moments"
    return layer


def rows(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def trained(kind, channels=3):
    """torch's own layer with weights and statistics that are not those of the start."""
    layer = kind(channels)
    with torch.no_grad():
        for seed, tensor in enumerate((layer.weight, layer.bias, layer.running_mean)):
            tensor.copy_(rows(channels, seed=seed))
        layer.running_var.copy_(rows(channels, seed=9).square() + 0.1)
    return layer


@pytest.mark.parametrize("axes", SHAPES)
@pytest.mark.parametrize("own", [FrozenBatchNorm, PrivateBatchNorm])
def test_it_computes_what_torch_computes_in_eval_mode_with_the_same_weights(own, axes):
    torchs, layer, x = trained(KINDS[axes]), own(3), rows(*SHAPES[axes])
    layer.load_state_dict(torchs.state_dict())
    for mode in (True, False):
        assert torch.allclose(layer.train(mode)(x), torchs.eval()(x), atol=1e-6)


def test_weights_go_back_to_torch_within_a_model():
    layer, torchs = private(), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    nn.init.normal_(layer.scale.weight)
    layer.absorb({"moments": torch.full((2, 3), 0.5)})
    model = nn.Sequential(nn.Linear(2, 3), layer)
    torchs.load_state_dict(model.state_dict())
    assert torch.allclose(torchs.eval()(rows(4, 2)), model(rows(4, 2)), atol=1e-6)
    plain = FrozenBatchNorm(3, affine=False)
    assert set(plain.state_dict()) == {"running_mean", "running_var"} and not list(
        plain.parameters()
    )
    plain.load_state_dict(nn.BatchNorm1d(3, affine=False).state_dict())


@pytest.mark.parametrize("axes", SHAPES)
def test_a_record_changes_neither_outputs_nor_moments_of_others(axes):
    layer, x = private(), rows(*SHAPES[axes])
    before, moments = layer(x), layer.observed()["moments"]
    for value in (1e30, float("nan"), -torch.inf):
        changed = x.clone()
        changed[2] = value
        others = [0, 1, 3, 4, 5]
        assert torch.equal(layer(changed)[others], before[others])
        assert torch.equal(layer.observed()["moments"][others], moments[others])


def test_moments_are_means_over_positions_in_standard_deviations():
    layer = private(2, eps=1e-12)
    layer.running_mean.copy_(torch.tensor([1.0, -1.0]))
    layer.running_var.copy_(torch.tensor([4.0, 1.0]))
    x = torch.tensor(
        [[[3.0, -1.0], [-1.0, -1.0]]]
    )  # one record: ±1 standard deviation, and the mean itself
    layer(x)
    assert torch.allclose(
        layer.observed()["moments"], torch.tensor([[[0.0, 0.0], [0.0, -1.0]]]), atol=1e-5
    )


def test_a_channel_that_is_far_off_says_no_more_than_that():
    # Otherwise it would use up the bound of the whole record, and the other channels would learn
    # nothing.
    layer = private()
    layer(torch.tensor([[1e6, 0.0, 1.0]]))
    moments = layer.observed()["moments"][0]
    assert torch.allclose(moments[:, 0].norm(), torch.tensor(FAR)) and moments[1, 0] > 0
    assert torch.allclose(moments[:, 1:], torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), atol=1e-4)


def test_only_passes_that_are_differentiated_are_observed_and_once():
    layer = private()
    with torch.no_grad():
        layer(rows(4, 3))
    assert layer.observed() == {}
    layer(rows(4, 3))
    assert layer.observed()["moments"].shape == (4, 2, 3) and not layer.observed()
    layer(rows(4, 3))
    layer.absorb({})
    assert layer.observed() == {}
    nameless = PrivateBatchNorm(3)
    nameless(rows(4, 3))
    assert nameless._seen is None


def test_copies_and_pickles_take_nothing_of_a_pass_along():
    layer = private()
    layer(rows(4, 3))
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(file, weights_only=False),
    ):
        assert other._seen is None and other.statistic == "moments"
        assert torch.equal(other(rows(4, 3)), layer(rows(4, 3)))


def test_one_release_with_all_the_weight_gives_mean_and_variance_of_the_data():
    # Fails without the square of E[s], with ε left out, or with mean and variance taken in the
    # wrong order.
    layer, x = (
        private(momentum=1.0, eps=0.3),
        rows(50, 3, 64) * torch.tensor([0.5, 1.0, 0.9]).view(3, 1) + 0.6,
    )
    layer.running_mean.copy_(torch.tensor([0.4, -0.2, 0.7]))
    layer(x)
    pairs = layer.observed()["moments"]
    assert float(pairs.norm(dim=1).max()) < FAR  # none was shortened
    layer.absorb({"moments": pairs.mean(0)})
    assert torch.allclose(layer.running_mean, x.mean((0, 2)), atol=1e-5)
    assert torch.allclose(layer.running_var, x.var((0, 2), correction=0), rtol=1e-5)


def test_exact_update():
    layer = private(1, momentum=0.5, eps=1.0)
    layer.running_mean.fill_(2.0)
    layer.running_var.fill_(3.0)  # √(var + ε) = 2
    layer.absorb(
        {"moments": torch.tensor([[0.5], [0.25]])}
    )  # mean 2 + 2·0.5 = 3, variance 4·(1.25 − 0.25) = 4
    assert torch.allclose(layer.running_mean, torch.tensor([2.5]))
    assert torch.allclose(layer.running_var, torch.tensor([3.5]))


@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, 0.0), (100.0, 0.0), (0.01, 0.0), (1.0, 100.0), (50.0, -500.0)]
)
def test_released_moments_lead_to_the_statistics_of_the_data(scale, shift):
    layer, x = private(momentum=0.1), rows(2000, 3, 8) * scale + shift
    for _ in range(300):
        layer(x)
        layer.absorb({"moments": layer.observed()["moments"].mean(0)})
    mean, std = x.mean((0, 2)), x.std((0, 2))
    assert torch.allclose(layer.running_mean, mean, atol=0.1 * scale)
    assert torch.allclose(layer.running_var.sqrt(), std, rtol=0.1)


@pytest.mark.parametrize("noise", [1e6, -1e6])
def test_absurd_noise_leaves_a_state_from_which_it_comes_back(noise):
    layer, x = private(), rows(2000, 3)
    for _ in range(20):
        layer.absorb({"moments": torch.full((2, 3), noise)})
        assert bool((layer.running_var >= 0).all()) and bool(layer.running_mean.isfinite().all())
    for _ in range(400):
        layer(x)
        layer.absorb({"moments": layer.observed()["moments"].mean(0)})
    assert torch.allclose(layer.running_var.sqrt(), x.std(0), rtol=0.15)


def test_statistics_of_others_are_not_absorbed():
    layer, before = private(), PrivateBatchNorm(3).state_dict()
    layer.absorb({"another": torch.ones(2, 3)})
    PrivateBatchNorm(3).absorb({"moments": torch.ones(2, 3)})
    assert all(torch.equal(layer.state_dict()[name], before[name]) for name in before)


@pytest.mark.parametrize("shape", [(3,), (4, 2), (4, 4, 3)])
def test_inputs_of_another_shape_are_refused(shape):
    with pytest.raises(dpfy.InvalidArgument, match=r"\(records, 3, …\)"):
        private()(torch.zeros(shape))


@pytest.mark.parametrize(
    "options", [{"momentum": 0.0}, {"momentum": 1.5}, {"momentum": None}, {"eps": 0.0}]
)
def test_settings_outside_of_their_domain_are_refused(options):
    with pytest.raises(dpfy.InvalidArgument):
        PrivateBatchNorm(3, **options)
    with pytest.raises(dpfy.InvalidArgument):
        FrozenBatchNorm(0)


def test_public_statistics_are_fitted_layer_by_layer_as_torch_would_in_training():
    # The second layer sees what the first one makes of its own new statistics, not of the old ones.
    def net(norm):
        torch.manual_seed(3)
        return nn.Sequential(nn.Conv2d(2, 4, 3), norm(4), nn.ReLU(), nn.Conv2d(4, 3, 2), norm(3))

    torchs, model, x = net(nn.BatchNorm2d), net(FrozenBatchNorm), rows(16, 2, 6, 6) * 3 + 1
    fit_statistics(model, x)
    assert torch.allclose(model(x), torchs.train()(x), atol=1e-5)


def test_a_failing_pass_leaves_no_hook_behind():
    model = nn.Sequential(FrozenBatchNorm(3), nn.Linear(4, 2))
    with pytest.raises(RuntimeError):
        fit_statistics(model, rows(5, 3))
    before = model[0].running_mean.clone()
    model[0](rows(5, 3, seed=1))
    assert torch.equal(model[0].running_mean, before)
