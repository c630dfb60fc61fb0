"""The network starts as it says, and treats every record alone."""

import pytest
import torch

from experiments.networks import Modulus, first_filters, wave_cnn

SHAPES = [(1, 28, 28), (3, 32, 32)]


@pytest.mark.parametrize("colors", [1, 3])
def test_first_filters_are_waves_without_a_mean_and_then_averages(colors: int) -> None:
    filters = first_filters(colors)
    assert filters.shape == (34 * colors, colors, 9, 9)
    waves, averages = filters[: 32 * colors], filters[32 * colors :]
    assert waves.mean((1, 2, 3)).abs().max() < 1e-7
    assert torch.allclose(waves[:32].flatten(1).norm(dim=1), torch.ones(32))
    assert (averages[::2].sum((1, 2, 3)) > 0).all() and not averages[1::2].any()
    even, odd = waves[::2], waves[1::2]
    assert torch.allclose(even, even.flip(2, 3), atol=1e-6) and torch.allclose(
        odd, -odd.flip(2, 3), atol=1e-6
    )


def test_waves_respond_to_strokes_of_their_angle() -> None:
    stroke = torch.zeros(1, 1, 28, 28)
    stroke[..., 13:15] = 1.0  # upright: waves that go sideways, which are those of angle 0, see it
    found = wave_cnn((1, 28, 28))[:2](stroke)[0, :16, 7, 7]
    assert found[:8].argmax() == 0 and found[8:].argmax() == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_it_starts_without_an_opinion_and_all_of_it_is_trained(shape: tuple[int, ...]) -> None:
    network, images = (
        wave_cnn(shape),
        torch.rand(4, *shape, generator=torch.Generator().manual_seed(0)),
    )
    assert not network(images).any()
    for parameter in network[-1].parameters():
        torch.nn.init.ones_(parameter)
    network(images).square().sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in network.parameters()
    )
    assert torch.allclose(network(images)[:1], network(images[:1]), atol=1e-4)


def test_the_modulus_is_smooth_where_nothing_is() -> None:
    x = torch.zeros(1, 2, 1, 1, requires_grad=True)
    Modulus()(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
