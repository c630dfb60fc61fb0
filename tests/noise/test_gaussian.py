import math
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from streams import in_child

from dpfy.errors import InvalidArgument
from dpfy.noise import (
    LatticeGaussian,
    SecureStream,
    gaussian,
    lattice_step,
    prefetch,
    round_to_lattice,
)
from dpfy.noise.lattice import add_on_lattice

SCALE = 2.0**28 * 1.7


def sample(count, key=1, scale=SCALE):
    return LatticeGaussian(SecureStream(insecure_test_key=key)).integers(count, scale)


# --- the rounding
# ------


def rounded(cells, scale, start=0):
    """Return the integers to which the lattice addition rounds cells."""
    unit = gaussian._columns(scale, 1.0)[1]
    values = torch.full((len(cells),), float(start), dtype=torch.float64)
    middles = torch.tensor(cells, dtype=torch.float64) + 0.5
    return [int(value) - start for value in add_on_lattice(values, middles, unit, 1.0).tolist()]


@pytest.mark.parametrize("scale", [2.0**28, SCALE, 2.0**32, 1000.3, 3.7, 0.2, 1e-3, 2.0**-100])
@pytest.mark.parametrize("start", [0, 2**45 + 1, -3])
def test_all_reals_of_a_cell_round_to_the_integer_that_is_added(scale, start):
    unit, generator = Fraction(gaussian._columns(scale, 1.0)[1]), np.random.default_rng(0)
    cells = [int(cell) for cell in generator.integers(-(2**40), 2**40, 200)]
    if unit > Fraction(1, 2**40):  # the cells on both sides of half-integers
        cells += [
            int((k + Fraction(1, 2)) / unit) + side
            for k in (0, 1, 2, -1, -7)
            for side in (-2, -1, 0, 1)
        ]
    for cell, integer in zip(cells, rounded(cells, scale, start), strict=True):
        assert (
            integer - Fraction(1, 2) <= unit * cell < unit * (cell + 1) <= integer + Fraction(1, 2)
        )


@pytest.mark.parametrize("scale", [2.0**28, SCALE, 2.0**32, 3.7, 2.0**-100])
def test_columns_are_fine_and_exact(scale):
    spread, unit = gaussian._columns(scale, 1.0)
    assert 32 <= spread < 64 and Fraction(spread) * Fraction(unit) * 2**32 == Fraction(scale)
    assert math.frexp(unit)[0] == 0.5 and unit <= 2.0**-5


# --- the law
# ------


def test_small_scales_have_the_law_of_a_rounded_gaussian(kernels):
    drawn, scale = sample(300_000, key=8, scale=1.3).numpy(), 1.3
    edges = np.arange(-5, 6) - 0.5
    expected = len(drawn) * np.diff(
        stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]), scale=scale)
    )
    observed = np.bincount(np.clip(drawn, -6, 5) + 6, minlength=12)
    assert stats.chisquare(observed, expected).pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2, 1.02):
        observed = np.bincount(
            np.clip(sample(300_000, key=8, scale=wrong * scale).numpy(), -6, 5) + 6, minlength=12
        )
        assert stats.chisquare(observed, expected).pvalue < 1e-6


def test_segments_neither_overlap_nor_repeat(monkeypatch):
    monkeypatch.setattr(prefetch, "SEGMENT", 300)
    for count in (0, 1, 2, 299, 300, 301, 1000):
        drawn = sample(count)
        assert len(drawn) == count
        assert len(set(drawn.tolist())) > count - 3  # about count²/2^31 coincidences


def lowest_bit(released, grid):
    """Count how often each of the low ten bits of the released lattice points is the lowest set
    one.
    """
    steps = (released / grid).to(torch.int64).numpy()
    return np.bincount(
        np.minimum(np.log2(np.maximum(steps & -steps, 1)).astype(int), 9), minlength=10
    )


def test_the_lowest_set_bit_does_not_tell_whether_a_canary_was_in_the_sum():
    grid, count = lattice_step(1.0), 100_000
    counts = []
    for key, canary in ((1, 0.0), (2, 0.625), (3, 0.1)):
        sums = round_to_lattice(torch.full((count,), canary, dtype=torch.float64), grid)
        released = LatticeGaussian(SecureStream(insecure_test_key=key)).add_noise(
            sums, stddev=1.0, grid=grid
        )
        assert bool((released.remainder(grid) == 0).all())
        counts.append(lowest_bit(released, grid))
    assert stats.chi2_contingency(counts).pvalue > 1e-6

    # Floats added to floats, on the grid of the noise's own last bits, do tell: the test has power.
    noise = sample(count, key=4).double() / SCALE / 16
    naive = [lowest_bit(noise + canary, 2.0**-56) for canary in (0.0, 0.625)]
    assert stats.chi2_contingency(np.array(naive) + 1).pvalue < 1e-9


# --- add_noise
# ------


def test_values_off_the_lattice_are_rounded_to_it():
    off = torch.tensor([0.1, 1 / 3, 2.0**-50], dtype=torch.float64)
    released = LatticeGaussian(SecureStream()).add_noise(off.clone(), stddev=1.0, grid=2.0**-28)
    assert bool((released.remainder(2.0**-28) == 0).all())
    kept = LatticeGaussian(SecureStream()).add_noise(off.clone(), stddev=0.0, grid=0.25)
    assert kept.tolist() == [0.0, 0.25, 0.0]


def test_a_view_gets_noise_and_its_neighbours_do_not():
    whole = torch.zeros(6, 4, dtype=torch.float64)
    LatticeGaussian(SecureStream()).add_noise(whole[:, 1], stddev=1.0, grid=2.0**-28)
    assert bool((whole[:, 1] != 0).all()) and int((whole != 0).sum()) == 6


def test_noise_needs_no_gradient_and_leaves_none():
    parameter = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    LatticeGaussian(SecureStream()).add_noise(parameter, stddev=1.0, grid=2.0**-28)
    assert parameter.grad_fn is None and bool((parameter != 0).all())


@pytest.mark.parametrize("stddev", [2.0**-900, 1e-30, 1e30, 2.0**899])
def test_extreme_scales(stddev):
    grid = lattice_step(stddev)
    noise = LatticeGaussian(SecureStream(insecure_test_key=1))
    released = noise.add_noise(torch.zeros(2000, dtype=torch.float64), stddev=stddev, grid=grid)
    assert 2.0**-29 < grid / stddev <= 2.0**-28
    assert float((released / stddev).std()) == pytest.approx(1, rel=0.1)  # six standard errors
    assert bool((released.remainder(grid) == 0).all())


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"stddev": -1.0}, "stddev=-1.0"),
        ({"stddev": math.nan}, "stddev=nan"),
        ({"stddev": math.inf}, "stddev=inf"),
        ({"grid": 0.3}, "power of two"),
        ({"grid": 0.0}, "grid=0.0"),
        ({"grid": -0.5}, "grid=-0.5"),
        ({"grid": 2.0**-33}, "lattice_step"),
        ({"grid": math.nan}, "grid=nan"),
        ({"stddev": 0.0, "grid": 0.3}, "power of two"),
        ({"values": torch.zeros(2)}, "torch.float32"),
        ({"values": torch.zeros(2, dtype=torch.int64)}, "torch.int64"),
    ],
)
def test_bad_arguments(arguments, message):
    good = {"values": torch.zeros(2, dtype=torch.float64), "stddev": 1.0, "grid": 2.0**-28}
    with pytest.raises(InvalidArgument, match=message):
        LatticeGaussian(SecureStream()).add_noise(**(good | arguments))


def test_other_devices_get_a_copy_of_the_chunk():
    values = torch.zeros(5, dtype=torch.float64, device="meta")
    assert LatticeGaussian(SecureStream()).add_noise(values, stddev=1.0, grid=2.0**-28) is values


def test_a_forked_child_does_not_replay_the_noise():
    noise = LatticeGaussian(SecureStream(insecure_test_key=1))
    child = in_child(lambda: noise.integers(100, SCALE).numpy().tobytes())
    assert not set(np.frombuffer(child, dtype=np.int64)) & set(noise.integers(100, SCALE).tolist())


def test_a_sampling_stream_is_refused():
    with pytest.raises(InvalidArgument, match="purpose='noise'"):
        LatticeGaussian(SecureStream(purpose="sampling"))


def test_threads_never_release_the_same_noise():
    noise, drawn = LatticeGaussian(SecureStream()), []

    def work():
        drawn.extend(noise.integers(20_000, 2.0**32).tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 80_000 and len(drawn) - len(set(drawn)) < 10  # coincidences: 0.2 expected


def test_the_number_of_threads_does_not_change_the_noise(monkeypatch):
    monkeypatch.setattr(prefetch, "SEGMENT", 2000)
    drawn = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        drawn.append(sample(9001))
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])
    assert (
        len(set(drawn[0].tolist())) > 8995
    )  # segments do not share words; 0.1 coincidences are expected


# --- pieces
# ------

PIECES = [
    (7,),
    (),
    (0, 3),
    (150, 7),
    (193,),
    (1,),
    (40, 20),
    (0,),
]  # 1250, 1251 and 2051 are ends of pieces


@pytest.mark.parametrize("segment", [97, 193, 1250, 1251, 3000])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ahead", [False, True])
def test_pieces_of_any_segments_have_the_noise_of_one_vector(
    kernels, monkeypatch, segment, threads, ahead
):
    """Fails if a piece that begins or ends within a segment is given the noise of other
    coordinates, or none.
    """
    monkeypatch.setattr(prefetch, "SEGMENT", segment)
    monkeypatch.setattr(prefetch, "_SERIAL", 0 if ahead else 1 << 62)
    monkeypatch.setattr(prefetch, "_cores", lambda: threads + 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    sizes, grid = [math.prod(shape) for shape in PIECES], lattice_step(1.7)
    vector = torch.linspace(-5, 5, sum(sizes)).double()
    kinds = [torch.float32, torch.float64] * 4
    sums = [
        part.view(shape).to(kind)
        for part, shape, kind in zip(vector.split(sizes), PIECES, kinds, strict=True)
    ]
    outs = [
        torch.full(shape, torch.nan, dtype=kind)
        for shape, kind in zip(PIECES, reversed(kinds), strict=True)
    ]
    source, twin = (LatticeGaussian(SecureStream(insecure_test_key=5)) for _ in range(2))
    source.prefetch(sum(sizes), 1.7, grid)
    assert (source._prefetcher._prefetched is not None) == ahead
    expected = twin.add_noise(vector.clone(), 1.7, grid).split(sizes)
    source.release(sums, [0.3] * 8, outs, 1.7, grid)
    for out, part in zip(outs, expected, strict=True):
        assert torch.equal(out, (part * 0.3).to(out.dtype).view_as(out))
    source.close()


def test_sums_with_gaps_or_of_one_number_have_noise_for_every_coordinate(kernels):
    """Fails if what shares memory, or has other numbers in between, is written to as if it had its
    own.
    """
    grid, held = lattice_step(1.0), torch.arange(900.0, dtype=torch.float64)
    sums = [
        held[::3],
        torch.ones(1, dtype=torch.float64).expand(300),
        held.float()[::3],
        held.view(30, 30).t(),
    ]
    outs, before = [torch.empty(each.shape) for each in sums], held.clone()
    source, twin = (LatticeGaussian(SecureStream(insecure_test_key=6)) for _ in range(2))
    source.release(sums, [1.0] * 4, outs, 1.0, grid)
    expected = twin.add_noise(torch.cat([each.double().reshape(-1) for each in sums]), 1.0, grid)
    assert torch.equal(torch.cat([out.reshape(-1) for out in outs]), expected.float())
    assert torch.equal(held, before)


@pytest.mark.parametrize("stddev", [0.0, 1.0])
def test_sums_in_float32_are_released_in_their_own_place(kernels, stddev):
    """Fails if what was written is read again as a sum, or if a sum is left there without noise."""
    grid, sums = lattice_step(1.0), [torch.linspace(-3, 3, 5000), torch.ones(4, 100)]
    source, twin = (LatticeGaussian(SecureStream(insecure_test_key=8)) for _ in range(2))
    expected = twin.add_noise(torch.cat([each.double().reshape(-1) for each in sums]), stddev, grid)
    source.release(sums, [0.3, 2.0], sums, stddev, grid)
    assert torch.equal(sums[0], (expected[:5000] * 0.3).float())
    assert torch.equal(sums[1].view(-1), (expected[5000:] * 2.0).float())


@pytest.mark.parametrize("size", [9, 11])
@pytest.mark.parametrize("stddev", [0.0, 1.0])
def test_an_output_of_another_size_is_refused(kernels, size, stddev):
    """In C it would be written beyond its end, and of a longer one the rest would be what was in
    memory before.
    """
    with pytest.raises(InvalidArgument, match="an output of 10 numbers"):
        LatticeGaussian(SecureStream()).release(
            [torch.zeros(10)], [1.0], [torch.empty(size)], stddev, 2.0**-28
        )


def test_no_sums_at_all_are_nothing_to_release():
    source, twin = (LatticeGaussian(SecureStream(insecure_test_key=1)) for _ in range(2))
    source.release([], [], [], 1.0, 2.0**-28)
    assert torch.equal(source.integers(3, 9.0), twin.integers(3, 9.0))  # nothing was drawn
