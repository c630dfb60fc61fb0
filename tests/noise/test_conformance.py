import numpy as np
import pytest
import torch
from scipy import stats

from dpfy.noise import NOISES, LatticeGaussian, SecureStream
from dpfy.testing import check_noise

STRATEGIES = {
    "independent": np.eye(4),
    "correlated": np.linalg.inv(np.eye(4) + 0.5 * np.eye(4, k=-1) + 0.375 * np.eye(4, k=-2)),
}


@pytest.mark.parametrize("name", NOISES)
def test_every_noise_conforms(kernels, name, device):
    def make(stream):
        return OnDevice(NOISES[name](stream), device)

    rows = None if name == "independent" else STRATEGIES[name]
    check_noise(NOISES[name] if device == "cpu" else make, rows)


class OnDevice:
    """A noise that is added on a device."""

    def __init__(self, noise, device):
        self.noise, self.device, self.key_source = noise, device, noise.key_source

    @property
    def spread(self):
        return self.noise.spread

    def add_noise(self, values, stddev, grid):
        found = self.noise.add_noise(values.to(self.device), stddev, grid)
        return values.copy_(found.cpu())

    def release(self, sums, factors, outs, stddev, grid):
        there, found = ([each.to(self.device) for each in some] for some in (sums, outs))
        self.noise.release(there, factors, found, stddev, grid)
        for place, each in zip((*sums, *outs), (*there, *found), strict=True):
            place.copy_(each.cpu())


class Broken(LatticeGaussian):
    """A noise with one bug."""

    factor = 1.0

    def add_noise(self, values, stddev, grid):
        return super().add_noise(values, stddev * self.factor, grid)


class TwoThirds(Broken):
    factor = 2 / 3


class ThreeHalves(Broken):
    factor = 3 / 2


class FourPercentShort(Broken):
    factor = 0.96


class SameKeyEveryCall(Broken):
    def add_noise(self, values, stddev, grid):
        return LatticeGaussian(SecureStream(insecure_test_key=7)).add_noise(values, stddev, grid)


class OneValueForAllCoordinates(Broken):
    def add_noise(self, values, stddev, grid):
        return values.add_(super().add_noise(torch.zeros((), dtype=torch.float64), stddev, grid))


class PairsOfEqualValues(Broken):
    def add_noise(self, values, stddev, grid):
        half = super().add_noise(
            torch.zeros((values.numel() + 1) // 2, dtype=torch.float64), stddev, grid
        )
        return values.add_(half.repeat(2)[: values.numel()].view(values.shape))


class TorchGenerator(Broken):
    def add_noise(self, values, stddev, grid):
        return values.add_(
            (torch.randn(values.shape, dtype=torch.float64) * stddev / grid).round() * grid
        )


class OffTheLattice(Broken):
    def add_noise(self, values, stddev, grid):
        return super().add_noise(values, stddev, grid).mul_(1 + 2.0**-40)


class Uniform(Broken):
    def add_noise(self, values, stddev, grid):
        words = (
            self._stream.words(values.numel()).astype(np.float64).reshape(values.shape) * 2.0**-64
        )
        return values.add_(
            torch.as_tensor((words - 0.5) * np.sqrt(12) * stddev / grid).round() * grid
        )


class NoNoiseForTheLastPiece(Broken):
    def release(self, sums, factors, outs, stddev, grid):
        super().release(sums, factors, outs, stddev, grid)
        outs[-1].fill_(5.0)


class UnreleasedSums(Broken):
    def release(self, sums, factors, outs, stddev, grid):
        super().release([each.clone() for each in sums], factors, outs, stddev, grid)


class Claims(Broken):
    key_source = "operating system"


@pytest.mark.parametrize(
    "broken, message",
    [
        (TwoThirds, "of its declared"),
        (ThreeHalves, "of its declared"),
        (FourPercentShort, "of its declared"),
        (SameKeyEveryCall, "same noise|repeats"),
        (OneValueForAllCoordinates, "declared|Gaussian"),
        (PairsOfEqualValues, "correlated"),
        (TorchGenerator, "depends on|generator"),
        (OffTheLattice, "leave the lattice"),
        (Uniform, "not Gaussian"),
        (NoNoiseForTheLastPiece, "other noise"),
        (UnreleasedSums, "left as it should not be"),
        (Claims, "test key"),
    ],
)
def test_the_suite_notices(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_noise(broken)


def test_no_generator_but_the_stream_is_used(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("noise was drawn from a common generator")

    for name in ("randn", "rand", "normal", "randint", "bernoulli", "randn_like", "rand_like"):
        monkeypatch.setattr(torch, name, refuse)
    for name in ("normal_", "uniform_", "random_", "bernoulli_"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    for name in ("default_rng", "normal", "random", "standard_normal", "uniform"):
        monkeypatch.setattr(np.random, name, refuse)
    drawn = LatticeGaussian(SecureStream(insecure_test_key=1)).integers(5000, 2.0**28)
    assert stats.kstest(drawn.numpy() / 2.0**28, "norm").pvalue > 1e-6
