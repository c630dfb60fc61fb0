"""Wide residual networks have the sizes of the paper, the resolutions of its table, and treat every example alone."""

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

import dpfy
from dpfy.models import PreactivationBlock, wide_resnet


@pytest.mark.parametrize(("depth", "width", "size"), [(16, 4, 2_748_890), (28, 10, 36_479_194), (40, 4, 8_949_210)])
def test_sizes_are_those_of_the_paper(depth: int, width: int, size: int) -> None:
    # Zagoruyko and Komodakis 2016, Table 4: 2.7, 36.5 and 8.9 million; a scale and a shift per channel as in BatchNorm.
    with torch.device("meta"):
        assert sum(p.numel() for p in wide_resnet(depth, width).parameters()) == size


def test_resolution_and_channels_of_the_stages() -> None:
    shapes = []
    model = wide_resnet(depth=16, width=4, classes=7)
    for block in model:
        if isinstance(block, PreactivationBlock):
            block.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert shapes == [(64, 32, 32)] * 2 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2


def test_a_block_without_change_of_shape_adds_to_its_input() -> None:
    # A shortcut that is activated or left out passes every test of shapes.
    block = PreactivationBlock(16, 16, stride=1, groups=4)
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 16, 4, 4)
    assert torch.equal(block(x), x)


def test_gradients_under_vmap_are_those_of_one_example_at_a_time() -> None:
    torch.manual_seed(0)
    model = wide_resnet(depth=10, width=1)
    x, y = torch.rand(3, 3, 8, 8), torch.tensor([1, 2, 3])
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    together = vmap(grad(loss), in_dims=(None, 0, 0))(weights, x, y)
    for row in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[row : row + 1]), y[row : row + 1]).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(together[name][row], parameter.grad, rtol=1e-3, atol=1e-5), (name, row)


@pytest.mark.parametrize(("arguments", "message"), [({"depth": 18}, "6n \\+ 4"), ({"depth": 4}, "at least 10"),
                                                    ({"width": 0}, "width=0"), ({"groups": 5}, "groups=5")])
def test_shapes_that_do_not_exist_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(dpfy.InvalidArgument, match=message):
        wide_resnet(**arguments)
