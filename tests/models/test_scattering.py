"""Scattering is what its definition says, what another implementation computes, and a function of
one image.
"""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import vmap

import dpfy
from dpfy.models import Scattering2d, linear_head, scattering_features

REFERENCE = json.loads(
    (Path(__file__).parent / "scattering_reference.json").read_text(encoding="utf-8")
)


def picture(channels, height, width):
    """An image without symmetries, the same on every machine."""
    c, i, j = torch.meshgrid(*map(torch.arange, (channels, height, width)), indexing="ij")
    return ((37 * i + 101 * j + 17 * i * j + 59 * c * (i + 1)) % 256).double() / 255


def noise(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


class Definition:
    """Scattering of one image by sums over all pixels, in float64: no Fourier transform of images,
    no matrices.

    Filters are sums over periods of the grid; a convolution keeps every k-th pixel; filters on a
    sub-sampled grid are trigonometric sums over the frequencies that this grid has."""

    def __init__(self, height, width, J, L):
        self.J, self.L = J, L
        self.shape, self.grid = (
            (height, width),
            tuple((side // 2**J + 2) * 2**J for side in (height, width)),
        )

    def gabor(self, sigma, theta, frequency, slant):
        turn = np.array([[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]])
        form = turn @ np.diag([1, slant**2]) @ turn.T / (2 * sigma**2)
        total = np.zeros(self.grid, dtype=complex)
        for rows, columns in product(range(-2, 3), repeat=2):
            x, y = np.mgrid[0 : self.grid[0], 0 : self.grid[1]]
            x, y = x + rows * self.grid[0], y + columns * self.grid[1]
            bell = np.exp(-(form[0, 0] * x * x + 2 * form[0, 1] * x * y + form[1, 1] * y * y))
            total += bell * np.exp(1j * frequency * (x * math.cos(theta) + y * math.sin(theta)))
        return total * slant / (2 * math.pi * sigma**2)

    def morlet(self, j, angle):
        theta, slant = (self.L // 2 - 1 - angle) * math.pi / self.L, 4 / self.L
        wave = self.gabor(0.8 * 2**j, theta, 3 * math.pi / 4 / 2**j, slant)
        envelope = self.gabor(0.8 * 2**j, theta, 0, slant)
        return wave - wave.sum() / envelope.sum() * envelope

    def coarse(self, filters, resolution):
        """The filter on the grid of every 2^resolution-th pixel, from those of its frequencies that
        this grid has.
        """
        for axis, side in enumerate(self.grid):
            small = side >> resolution
            low = np.arange(-small // 2, small // 2)
            analysis = np.exp(-2j * math.pi * np.outer(low, np.arange(side)) / side)
            synthesis = np.exp(2j * math.pi * np.outer(np.arange(small), low) / small) / small
            filters = np.moveaxis(
                np.tensordot(synthesis @ analysis, filters, axes=(1, axis)), 0, axis
            )
        return filters

    def convolved(self, x, filters, keep):
        total = np.zeros(x.shape, dtype=complex)
        for place in np.ndindex(*x.shape):
            total += x[place] * np.roll(filters, place, axis=(0, 1))
        return total[::keep, ::keep]

    def average(self, x, resolution):
        low_pass = self.coarse(self.gabor(0.8 * 2 ** (self.J - 1), 0, 0, 1), resolution)
        return self.convolved(x, low_pass, 2 ** (self.J - resolution)).real[1:-1, 1:-1]

    def __call__(self, image):
        margins = [
            ((grid - side) // 2, (grid - side + 1) // 2)
            for grid, side in zip(self.grid, self.shape, strict=True)
        ]
        x = np.pad(image, margins, mode="reflect")
        orders = [[self.average(x, 0)], [], []]
        for j, angle in product(range(self.J), range(self.L)):
            u = abs(self.convolved(x, self.morlet(j, angle), 2**j))
            orders[1].append(self.average(u, j))
            for k, other in product(range(j + 1, self.J), range(self.L)):
                v = abs(self.convolved(u, self.coarse(self.morlet(k, other), j), 2 ** (k - j)))
                orders[2].append(self.average(v, k))
        return np.stack([*orders[0], *orders[1], *orders[2]])


@pytest.mark.parametrize(("height", "width", "J", "L"), [(9, 6, 2, 4), (7, 5, 1, 6), (9, 9, 3, 2)])
def test_it_is_the_definition_summed_over_pixels(height, width, J, L):
    image = picture(1, height, width)[0]
    expected = torch.from_numpy(Definition(height, width, J, L)(image.numpy()))
    found = Scattering2d((height, width), J, L).double()(image[None, None])[0]
    assert torch.allclose(found, expected, rtol=0, atol=3e-7)  # filters are kept in float32


@pytest.mark.parametrize(
    "case", REFERENCE["cases"], ids=lambda case: f"{case['height']}x{case['width']}"
)
def test_it_is_what_kymatio_computes(case):
    scattering = Scattering2d((case["height"], case["width"]), case["J"], case["L"], case["order"])
    found = scattering(picture(case["channels"], case["height"], case["width"]).float()[None])[0]
    assert list(found.shape) == case["shape"]
    _, h, w = found.shape
    firsts = case["J"] * case["L"]
    orders = torch.tensor([0] + [1] * firsts + [2] * (scattering.paths - 1 - firsts)).repeat(
        case["channels"]
    )
    factors = (math.pi / 3.1415) ** (
        orders + 1
    )  # the reference takes π for 3.1415 in each of its filters
    for place, at in {"first": (0, 0), "inner": (h // 2, (w - 1) // 3), "last": (-1, -1)}.items():
        expected = torch.tensor(case[place])
        assert torch.allclose(found[:, *at] * factors, expected, rtol=0, atol=1e-6), place


@pytest.mark.parametrize(
    ("shape", "options", "out"),
    [
        ((1, 28, 28), {}, (81, 7, 7)),
        ((3, 32, 32), {}, (243, 8, 8)),
        ((1, 28, 28), {"order": 1}, (17, 7, 7)),
        ((2, 33, 50), {"J": 3, "L": 4}, (2 * 61, 4, 6)),
        ((1, 28, 28), {"J": 1}, (9, 14, 14)),
    ],
)
def test_shapes(shape, options, out):
    scattering = Scattering2d(shape[1:], **options)
    assert scattering(torch.rand(2, *shape)).shape == (2, *out)
    assert scattering.paths * shape[0] == out[0]


def test_a_constant_image_has_its_brightness_and_nothing_else():
    # A wavelet whose mean is not zero would see the brightness of an image.
    found = Scattering2d((28, 28))(torch.full((1, 1, 28, 28), 0.7))[0]
    assert torch.allclose(found[0], torch.tensor(0.7), atol=1e-3)
    assert found[1:].abs().max() < 1e-6


def test_an_image_changes_no_other_and_is_the_same_alone():
    scattering, images = Scattering2d((28, 28)), noise(5, 1, 28, 28)
    before = scattering(images)
    for value in (float("nan"), 1e30, 0.0):
        changed = images.clone()
        changed[2] = value
        assert torch.equal(scattering(changed)[[0, 1, 3, 4]], before[[0, 1, 3, 4]])
    assert torch.allclose(
        torch.cat([scattering(image[None]) for image in images]), before, atol=1e-6
    )
    assert torch.equal(scattering(images), before)


def test_colours_are_scattered_apart():
    images = noise(2, 3, 32, 32)
    scattering = Scattering2d((32, 32))
    apart = torch.cat([scattering(images[:, [colour]]) for colour in range(3)], dim=1)
    assert torch.allclose(scattering(images), apart, atol=1e-6)


def test_there_is_nothing_to_train_or_to_save():
    scattering = Scattering2d((28, 28))
    assert not list(scattering.parameters()) and not scattering.state_dict()
    assert str(scattering) == "Scattering2d((28, 28), J=2, L=8, order=2)"


def test_it_runs_under_vmap_and_has_gradients_where_images_are_blank():
    scattering, images = Scattering2d((12, 12)), noise(3, 1, 12, 12)
    found = vmap(lambda image: scattering(image[None])[0])(images)
    assert torch.allclose(found, scattering(images), atol=1e-6)
    blank = torch.zeros(1, 1, 12, 12, requires_grad=True)
    scattering(blank).sum().backward()
    assert blank.grad.isfinite().all()


def test_within_a_model_it_passes_the_probe():
    model = torch.nn.Sequential(Scattering2d((12, 12)), linear_head((81, 3, 3)))
    assert dpfy.explain(model, torch.rand(4, 1, 12, 12)).engine == "bookkeeping"


def test_features_of_a_data_set_do_not_depend_on_batches():
    images = noise(7, 1, 28, 28)
    expected = Scattering2d((28, 28))(images)
    for batch in (1, 3, 32):
        assert torch.allclose(scattering_features(images, batch=batch), expected, atol=1e-6)
    assert scattering_features(images[:0]).shape == (0, 81, 7, 7)
    half = scattering_features(images, dtype=torch.float16)
    assert half.dtype == torch.float16 and torch.allclose(half.float(), expected, atol=1e-3)
    own = scattering_features(images, Scattering2d((28, 28), J=3, L=4, order=1))
    assert own.shape == (7, 13, 3, 3) and not own.requires_grad


@pytest.mark.parametrize("progress", [False, True])
def test_progress_is_shown_when_asked_for(progress, capsys):
    scattering_features(noise(2, 1, 9, 9), progress=progress)
    assert ("scattering" in capsys.readouterr().out) == progress


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((28, 4), {}, r"more than 2\^J = 4"),
        ((28,), {}, "two sides"),
        ((28, 28), {"order": 3}, "order=3"),
        ((28, 28), {"J": 0}, "J=0"),
        ((28, 28), {"L": 0}, "L=0"),
    ],
)
def test_transforms_that_do_not_exist_are_refused(shape, options, message):
    with pytest.raises(dpfy.InvalidArgument, match=message):
        Scattering2d(shape, **options)


@pytest.mark.parametrize(
    "images",
    [torch.rand(2, 28, 28), torch.rand(2, 1, 28, 27), torch.zeros(2, 1, 28, 28, dtype=torch.uint8)],
    ids=["axes", "size", "bytes"],
)
def test_other_images_are_refused(images):
    with pytest.raises(dpfy.InvalidArgument, match="floating-point images of shape"):
        Scattering2d((28, 28))(images)


def test_features_need_four_axes():
    with pytest.raises(dpfy.InvalidArgument, match="records, channels, height, width"):
        scattering_features(torch.rand(2, 28, 28))
