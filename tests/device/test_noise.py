"""Noise on a device: the numbers of the CPU, in four bytes a coordinate."""

import pretend
import pytest
import torch

from dpfy.noise import LatticeGaussian, SecureStream
from dpfy.noise.lattice import add_on_lattice, add_steps

GRID = 2.0**-28


def noisy(values, stddev=1.0):
    noise = LatticeGaussian(SecureStream(insecure_test_key=1))
    return noise.add_noise(values, stddev, GRID)


@pytest.mark.parametrize("stddev", [0.0, 2.0**-100, 1.0, 1.99, 15.9])
def test_a_device_gets_the_noise_of_the_cpu_bit_by_bit(stddev):
    """At 15.9 standard deviations a step, most numbers have more than 32 bits."""
    sums = 100 * torch.randn(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    there = noisy(sums.to(pretend.NAME), stddev)
    assert torch.equal(there.cpu(), noisy(sums.clone(), stddev))


def test_pieces_share_one_copy_of_four_bytes_a_coordinate():
    sums = [torch.randn(300, 7), torch.randn(40), torch.randn(1, dtype=torch.float64)]
    here, there = ([], [])
    for device, outs in (("cpu", here), (pretend.NAME, there)):
        given = [each.to(device, copy=True) for each in sums]
        outs += [torch.empty_like(each) for each in given]
        noise = LatticeGaussian(SecureStream(insecure_test_key=2))
        with pretend.counted() as traffic:
            noise.release(given, [0.5, 0.25, 1.0], outs, 1.0, GRID)
    assert traffic.bytes == 4 * sum(each.numel() for each in sums)
    assert len(traffic.to_device) == 1
    assert not traffic.waits
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one, other.cpu())


def test_whole_steps_are_added_to_whole_steps_whatever_their_size():
    """Beyond 2⁵¹ steps the doubles below ``far`` are half a step apart, which a sum off the lattice
    would show in every output.
    """
    steps = torch.tensor([3.0, -5.0, 2.0, -7.0], dtype=torch.float64)
    values = torch.tensor([0.3, -1.7, 2.0**51 + 0.5, -(2.0**51) - 0.5], dtype=torch.float64)
    found = add_steps(values.clone(), steps, 1.0)
    assert torch.equal(found, found.round())
    assert torch.equal(found[:2], add_on_lattice(values[:2].clone(), steps[:2].clone(), 1.0, 1.0))
