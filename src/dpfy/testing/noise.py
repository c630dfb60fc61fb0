"""Conformance of noise: Gaussian of the right scale, on the lattice, correlated as it says.

Noise must never come from a generator that other code shares.

Tests: tests/noise/test_conformance.py.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from dpfy.noise import NoiseStrategy, SecureStream, lattice_step

_COUNT = 200_000
# of one statistical check; fewer than fifty of them, so a correct noise fails with less than 1e-6
_LEVEL = 2e-8
_STDDEVS = (0.3, 1.0, 1.9999, 1e-6, 4e5)

Floats = npt.NDArray[np.float64]
MakeNoise = Callable[[SecureStream], NoiseStrategy]


def check_noise(make_noise: MakeNoise, rows: Floats | None = None) -> None:
    """Raise ``AssertionError`` unless ``make_noise`` makes the Gaussian lattice noise that it says.

    Noise is independent, or correlated over calls for the same number of values as ``rows`` says.

    The streams have fixed test keys, so the outcome is the same on every run; over the choice of
    keys a correct noise fails with probability below 1e-6, and a scale that is wrong by 3 % is
    always noticed.

    Args:
        make_noise: A function from a secret stream to a noise.
        rows: What independent noise each of the first calls adds up: C⁻¹ for a strategy C, a lower
            triangular matrix. None for independent noise.

    >>> from dpfy.noise import LatticeGaussian
    >>> check_noise(LatticeGaussian)
    """
    _check_key_source(make_noise)
    _check_shapes(make_noise)
    _check_lattice(make_noise)
    _check_law(make_noise)
    if rows is None:
        _check_independence(make_noise)
    else:
        _check_rows(make_noise, np.asarray(rows, dtype=np.float64))
    _check_release(make_noise)
    _check_generators(make_noise)


def _draw(noise: NoiseStrategy, count: int, stddev: float = 1.0) -> torch.Tensor:
    """Return pure noise in standard deviations."""
    values = torch.zeros(count, dtype=torch.float64)
    return noise.add_noise(values, stddev=stddev, grid=lattice_step(stddev)) / stddev


def _check_key_source(make_noise: MakeNoise) -> None:
    assert make_noise(SecureStream(insecure_test_key=1)).key_source == "insecure test key", (
        "noise from a test key must say so in key_source"
    )
    first, second = (make_noise(SecureStream()) for _ in range(2))
    assert first.key_source == "operating system", (
        "noise from the default stream must name the operating system"
    )
    assert not torch.equal(_draw(first, 8), _draw(second, 8)), (
        "two default streams gave the same noise"
    )


def _check_shapes(make_noise: MakeNoise) -> None:
    noise = make_noise(SecureStream(insecure_test_key=2))
    transposed = torch.zeros(3, 5, dtype=torch.float64).t()
    for values in (
        torch.zeros(()).double(),
        torch.zeros(0, 3).double(),
        torch.zeros(7).double(),
        transposed,
    ):
        result = noise.add_noise(values, stddev=1.0, grid=lattice_step(1.0))
        assert result is values, "add_noise must work in place and return its argument"
        assert bool((result != 0).all()), (
            f"a coordinate of shape {tuple(values.shape)} got no noise"
        )
    zeros = noise.add_noise(torch.zeros(4, dtype=torch.float64), stddev=0.0, grid=0.5)
    assert bool((zeros == 0).all()), "stddev=0 must add nothing"


def _check_lattice(make_noise: MakeNoise) -> None:
    for stddev in _STDDEVS:
        grid = lattice_step(stddev)
        start = torch.arange(-500, 500, dtype=torch.float64) * (12345 * grid)
        pure, shifted = (
            make_noise(SecureStream(insecure_test_key=3)).add_noise(
                values, stddev=stddev, grid=grid
            )
            for values in (torch.zeros_like(start), start.clone())
        )
        assert bool((shifted.remainder(grid) == 0).all()), (
            f"released values leave the lattice at stddev={stddev}"
        )
        assert torch.equal(shifted - start, pure), (
            "the noise depends on the values that it is added to"
        )


def _check_law(make_noise: MakeNoise) -> None:
    noise = make_noise(SecureStream(insecure_test_key=4))
    for stddev in _STDDEVS:
        drawn = _draw(noise, _COUNT, stddev).numpy()
        square = float(drawn @ drawn)
        tail = 2 * min(stats.chi2.cdf(square, _COUNT), stats.chi2.sf(square, _COUNT))
        realised = math.sqrt(square / _COUNT)
        assert tail > _LEVEL, (
            f"the noise has {realised:.4f} of its declared standard deviation {stddev}"
        )
        distance = stats.kstest(drawn, "norm")
        assert distance.pvalue > _LEVEL, (
            f"the noise at stddev={stddev} is not Gaussian (KS p={distance.pvalue:.2g})"
        )


def _check_independence(make_noise: MakeNoise) -> None:
    noise = make_noise(SecureStream(insecure_test_key=5))
    first, second = _draw(noise, _COUNT), _draw(noise, _COUNT)
    common = set(first[:1000].tolist()) & set(second[:1000].tolist())
    assert not common, "a later call repeats the noise of an earlier one"
    _check_uncorrelated(first, second, "two calls")
    # halves: a pair of Box and Muller's may lie that far apart
    for lag in (
        1,
        2,
        3,
        _COUNT // 4,
        _COUNT // 2,
    ):
        _check_uncorrelated(first[:-lag], first[lag:], f"coordinates {lag} apart")


def _check_rows(make_noise: MakeNoise, rows: Floats) -> None:
    """Check that the first calls have covariance rows·rowsᵀ: undone, they are independent.

    Of several calls at a time, each pair is compared, and each by itself with its scale.
    """
    noise = make_noise(SecureStream(insecure_test_key=9))
    spreads, drawn = [], []
    for _ in rows:
        drawn.append(_draw(noise, _COUNT).numpy())
        spreads.append(noise.spread)
    assert np.allclose(spreads, np.linalg.norm(rows, axis=1), rtol=1e-9), (
        f"the noise says that its rows have {spreads} of the scale of fresh noise"
    )
    undone = np.linalg.solve(rows, np.stack(drawn))
    level = _LEVEL / len(rows) ** 2
    for row, fresh in enumerate(undone):
        square = float(fresh @ fresh)
        tail = 2 * min(stats.chi2.cdf(square, _COUNT), stats.chi2.sf(square, _COUNT))
        assert tail > level, (
            f"row {row} has {math.sqrt(square / _COUNT):.4f} of its standard deviation"
        )
        for lag in range(1, row + 1):
            score = float(fresh @ undone[row - lag]) / math.sqrt(_COUNT)
            assert 2 * stats.norm.sf(abs(score)) > level, (
                f"row {row} and the one {lag} before have another covariance (score {score:.1f})"
            )


def _check_release(make_noise: MakeNoise) -> None:
    """Check that sums in pieces get the noise of their concatenation."""
    shapes, factors = [(7,), (), (0, 3), (300, 7), (40,)], [1.0, 0.3, 2.0, -1e-3, 1e30]
    for stddev in (0.0, 1.7):
        grid = lattice_step(stddev or 1.0)
        vector = torch.linspace(-5, 5, sum(math.prod(shape) for shape in shapes)).double()
        for kind, out_kind in itertools.product(
            (torch.float64, torch.float32), (torch.float32, torch.float64)
        ):
            sums = [
                part.view(shape).to(kind)
                for shape, part in zip(
                    shapes, vector.split([math.prod(shape) for shape in shapes]), strict=True
                )
            ]
            before, outs = (
                [each.clone() for each in sums],
                [torch.empty(shape, dtype=out_kind) for shape in shapes],
            )
            expected = make_noise(SecureStream(insecure_test_key=8)).add_noise(
                torch.cat([each.double().flatten() for each in sums]), stddev, grid
            )
            make_noise(SecureStream(insecure_test_key=8)).release(sums, factors, outs, stddev, grid)
            for each, kept, out, factor in zip(sums, before, outs, factors, strict=True):
                part, expected = expected[: each.numel()].view(each.shape), expected[each.numel() :]
                assert torch.equal(out, (part * factor).to(out_kind)), (
                    "a piece has other noise than the whole vector"
                )
                assert torch.equal(each, part if kind == torch.float64 else kept), (
                    "a sum is left as it should not be"
                )


def _check_uncorrelated(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    """Compare values and their squares, which also catches a shared radius."""
    for x, y in ((a, b), (a.square() - 1, b.square() - 1)):
        score = float((x @ y) / math.sqrt(len(x)) / x.std() / y.std())
        assert 2 * stats.norm.sf(abs(score)) > _LEVEL, (
            f"the noise of {what} is correlated (score {score:.1f})"
        )


def _check_generators(make_noise: MakeNoise) -> None:
    noise = make_noise(SecureStream(insecure_test_key=6))
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state(legacy=False)
    _draw(noise, 1000)
    assert torch.equal(torch_state, torch.get_rng_state()), "the noise draws from torch's generator"
    assert str(numpy_state) == str(np.random.get_state(legacy=False)), (
        "the noise draws from numpy's generator"
    )
