"""Wide residual networks have the sizes of the paper, the resolutions of its table, and treat every
example alone.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

import dpfy
from dpfy.models import PreactivationBlock, StandardizedConv2d, wide_resnet


@pytest.mark.parametrize(
    ("depth", "width", "size"), [(16, 4, 2_748_890), (28, 10, 36_479_194), (40, 4, 8_949_210)]
)
def test_sizes_are_those_of_the_paper(depth: int, width: int, size: int) -> None:
    # Zagoruyko and Komodakis 2016, Table 4: 2.7, 36.5 and 8.9 million; a scale and a shift per
    # channel as in BatchNorm.
    with torch.device("meta"):
        assert sum(p.numel() for p in wide_resnet(depth, width).parameters()) == size


def test_standardised_weights_add_a_gain_for_each_output_channel() -> None:
    with torch.device("meta"):
        model = wide_resnet(16, 4, standardize=True)
    assert sum(p.numel() for p in model.parameters()) == 2_748_890 + 16 + 5 * (64 + 128 + 256)
    assert all(
        isinstance(m, StandardizedConv2d) for m in model.modules() if isinstance(m, torch.nn.Conv2d)
    )


def test_standardised_weights_have_mean_zero_and_length_one_per_output() -> None:
    torch.manual_seed(0)
    layer, x = StandardizedConv2d(3, 5, 3, stride=2, padding=1), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        layer.weight.mul_(7).add_(0.3)
        layer.gain.copy_(torch.linspace(0.5, 2, 5))
    before = layer(x)
    flat = layer.weight.detach().flatten(1)
    rows = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, correction=0, keepdim=True) * 27**0.5)
    expected = F.conv2d(x, (rows * layer.gain[:, None]).view(5, 3, 3, 3), stride=2, padding=1)
    assert torch.allclose(before, expected, atol=1e-5)
    with torch.no_grad():
        layer.weight.mul_(torch.linspace(1, 3, 5).view(-1, 1, 1, 1)).add_(
            4
        )  # neither scale nor mean counts
    assert torch.allclose(layer(x), before, atol=1e-4)
    torch.nn.init.zeros_(layer.weight)
    layer(x).sum().backward()
    assert layer.weight.grad is not None and layer.weight.grad.isfinite().all()


def test_resolution_and_channels_of_the_stages() -> None:
    shapes = []
    model = wide_resnet(depth=16, width=4, classes=7)
    for block in model:
        if isinstance(block, PreactivationBlock):
            block.register_forward_hook(
                lambda module, inputs, output: shapes.append(tuple(output.shape[1:]))
            )
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert shapes == [(64, 32, 32)] * 2 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2


def test_a_block_without_change_of_shape_adds_to_its_input() -> None:
    # A shortcut that is activated or left out passes every test of shapes.
    block = PreactivationBlock(16, 16, stride=1, groups=4)
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 16, 4, 4)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("standardize", [False, True])
def test_gradients_under_vmap_are_those_of_one_example_at_a_time(standardize: bool) -> None:
    torch.manual_seed(0)
    model = wide_resnet(depth=10, width=1, standardize=standardize)
    x, y = torch.rand(3, 3, 8, 8), torch.tensor([1, 2, 3])
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0)
        )

    together = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    for row in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(together[name][row], parameter.grad, rtol=1e-3, atol=1e-5), (
                name,
                row,
            )


def test_the_fast_engine_serves_standardised_weights() -> None:
    model = wide_resnet(depth=10, width=1, standardize=True)
    assert dpfy.explain(model, torch.rand(4, 3, 8, 8)).engine == "bookkeeping"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 18}, "6n \\+ 4"),
        ({"depth": 4}, "at least 10"),
        ({"width": 0}, "width=0"),
        ({"groups": 5}, "groups=5"),
    ],
)
def test_shapes_that_do_not_exist_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(dpfy.InvalidArgument, match=message):
        wide_resnet(**arguments)
