import math
import threading

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from streams import ScriptedStream, in_child

from dpfy.errors import InvalidArgument
from dpfy.mechanisms.noise import LatticeGaussian, SecureStream, gaussian, lattice_step, round_to_lattice

SCALE = 2.0**28 * 1.7
EDGES_U = [2**44, 2**44 + 1, 2**52 - 1, 2**52, 2**53, 2**62 - 1, 2**62, 2**63 - 2**44 - 1]
EDGES_V = [0, 1, -1, 2**61, -2**61, 2**62, -2**62 + 1, 3 * 2**61, -2**63, 2**63 - 1]


def integers(words, scale=SCALE, count=2):
    return tuple(LatticeGaussian(ScriptedStream(words)).integers(count, scale).tolist())


def sample(count, key=1, scale=SCALE):
    return LatticeGaussian(SecureStream(insecure_test_key=key)).integers(count, scale)


# --- the float64 evaluation and its error -------------------------------------------------------------------------

def test_torch_errs_by_less_than_4_units_in_the_last_place():
    generator = np.random.default_rng(0)
    uniforms = np.concatenate([generator.random(1000), 2.0 ** -generator.uniform(0, 63, 1000),
                               1 - 2.0 ** -np.arange(1, 53), 2.0 ** -np.arange(1, 64)])
    angles = np.concatenate([generator.uniform(-math.pi, math.pi, 2000), np.multiply(EDGES_V, 2 * math.pi * 2.0**-64),
                             [math.pi / 2, -math.pi / 2, math.pi, 1e-19]])
    for function, exact, points in ((torch.log, mpmath.log, uniforms), (torch.sqrt, mpmath.sqrt, -np.log(uniforms)),
                                    (torch.cos, mpmath.cos, angles), (torch.sin, mpmath.sin, angles)):
        for point, value in zip(points, function(torch.from_numpy(points)).tolist(), strict=True):
            with mpmath.workprec(200):
                error = abs(exact(mpmath.mpf(float(point))) - value)
            assert error <= 4 * math.ulp(value), f"{function.__name__}({point!r})"


def test_the_error_of_float64_stays_below_its_bound():
    generator = np.random.default_rng(1)
    us = np.concatenate([generator.integers(2**44, 2**63 - 2**44, 600), EDGES_U])
    vs = np.concatenate([generator.integers(-2**63, 2**63, 600), generator.choice(EDGES_V, len(EDGES_U))])
    uniform = us.astype(np.float64) * 2.0**-63
    radius = np.sqrt(-2 * np.log(uniform))
    bound = gaussian._error(radius, uniform)
    angle = torch.from_numpy(vs.astype(np.float64) * (2 * math.pi * 2.0**-64))
    length = torch.from_numpy(uniform).log().mul(-2 * SCALE * SCALE).sqrt()
    for function, exact in ((torch.cos, mpmath.cospi), (torch.sin, mpmath.sinpi)):
        evaluated = (function(angle) * length).tolist()
        for u, v, value, error in zip(us, vs, evaluated, bound, strict=True):
            for f in (0, 1):  # both ends of the cell that the words stand for
                with mpmath.workprec(200):
                    true = SCALE * mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(int(u) + f) / 2**63))
                    assert abs(true * exact(mpmath.mpf(int(v) + f) / 2**63) - value) <= error * SCALE


def test_the_common_bound_covers_every_pair_away_from_the_edges():
    near_zero = gaussian._EDGE * np.linspace(1, 100, 10_001)
    uniform = np.concatenate([np.linspace(gaussian._EDGE, 1 - gaussian._EDGE, 100_001), near_zero, 1 - near_zero])
    assert gaussian._error(np.sqrt(-2 * np.log(uniform)), uniform).max() <= gaussian._ERROR


@pytest.mark.parametrize("scale", [2.0**28, 2.0**29 * 0.999, 2.0**32, 3.7, 1e-3])
def test_the_exact_path_gives_the_same_integers_as_the_fast_one(monkeypatch, scale):
    fast = sample(601, scale=scale)
    monkeypatch.setattr(gaussian, "_EDGE", 0.5)  # every pair is re-evaluated
    assert torch.equal(fast, sample(601, scale=scale))


def test_values_within_the_error_of_a_boundary_are_re_evaluated():
    with mpmath.workprec(300):  # pairs whose cosine is just beside a half: float64 alone rounds some of them wrongly
        pairs, generator = [], np.random.default_rng(2)
        for v in map(int, generator.integers(-2**61, 2**61, 60)):
            beside = generator.choice([-1, 1]) * mpmath.mpf(2) ** -26
            half = int(generator.integers(2**27, 2**28)) + mpmath.mpf(1) / 2 + beside
            radius = half / (mpmath.mpf(SCALE) * mpmath.cospi(mpmath.mpf(v) / 2**63))
            pairs.append((int(mpmath.exp(-radius**2 / 2) * 2**63), v, int(mpmath.nint(half))))
    got = [integers([u, v])[0] for u, v, _ in pairs]
    uniform = torch.tensor([u for u, _, _ in pairs], dtype=torch.float64) * 2.0**-63
    angle = torch.tensor([v for _, v, _ in pairs], dtype=torch.float64) * (2 * math.pi * 2.0**-64)
    naive = (uniform.log().mul(-2 * SCALE * SCALE).sqrt() * angle.cos()).round().tolist()
    expected = [integer for _, _, integer in pairs]
    assert got == expected
    assert naive != expected


# --- the tail -----------------------------------------------------------------------------------------------------

def cell_words(i, j, bits):
    """Return prefixes of U and V, of 63 + 64·k and 64 + 64·k bits, that lead to the lattice pair (i, j)."""
    with mpmath.workprec(400):
        square = (mpmath.mpf(i) ** 2 + mpmath.mpf(j) ** 2) / mpmath.mpf(SCALE) ** 2
        turn = mpmath.atan2(j, i) / (2 * mpmath.pi)
        return int(mpmath.exp(-square / 2) * 2 ** (bits - 1)), int(mpmath.floor(turn * 2**bits))


def neighbourhood():
    """Return the 49 lattice pairs around a point where U is 2^-40.3, between two multiples of 2^-53."""
    radius = SCALE * math.sqrt(80.6 * math.log(2))
    centre = round(radius * math.cos(1)), round(radius * math.sin(1))
    return [(centre[0] + a, centre[1] + b) for a in range(-3, 4) for b in range(-3, 4)]


def reached_with_53_bits(i, j):
    """Return whether a uniform m·2^-53 has a radius that passes through the cell of (i, j) at all."""
    with mpmath.workprec(200):
        distance, reach = mpmath.sqrt(mpmath.mpf(i) ** 2 + mpmath.mpf(j) ** 2), mpmath.sqrt(0.5)
        low, high = (mpmath.exp(-((distance + side) / SCALE) ** 2 / 2) * 2**53 for side in (reach, -reach))
        return mpmath.floor(high) >= mpmath.ceil(low)


def test_every_lattice_pair_in_the_tail_is_reachable():
    for i, j in neighbourhood():
        u, v = cell_words(i, j, bits=128)
        assert (u >> 64).bit_length() == 23  # U ≈ 2^-40
        assert integers([u >> 64, v >> 64, u % 2**64, v % 2**64]) == (i, j)


def test_with_53_bit_uniforms_no_pair_of_that_neighbourhood_is():
    assert not any(reached_with_53_bits(i, j) for i, j in neighbourhood())
    assert reached_with_53_bits(round(SCALE * math.sqrt(80 * math.log(2))), 0)  # U = 2^-40 itself is such a uniform


def test_the_tail_goes_on_beyond_9_standard_deviations():
    x, y = integers([0, 2**61, 2**58, 0])  # U = 2^-69 exactly at the lower end, an eighth of a turn
    assert math.hypot(x, y) / SCALE == pytest.approx(math.sqrt(2 * 69 * math.log(2)), rel=1e-9)
    assert x == y and x > 6.9 * SCALE


def test_uniforms_next_to_one_give_tiny_values():
    assert integers([2**63 - 1, 0, 2**64 - 1, 0]) == (0, 0)
    x, y = integers([2**63 - 2**20, 0, 0, 0])
    assert (x, y) == (round(SCALE * math.sqrt(2 * 2.0**-43)), 0)


# --- the law ------------------------------------------------------------------------------------------------------

def test_small_scales_have_the_law_of_a_rounded_gaussian():
    drawn, scale = sample(300_000, key=8, scale=1.3).numpy(), 1.3
    edges = np.arange(-5, 6) - 0.5
    expected = len(drawn) * np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]), scale=scale))
    observed = np.bincount(np.clip(drawn, -6, 5) + 6, minlength=12)
    assert stats.chisquare(observed, expected).pvalue > 1e-6
    for wrong in (2 / 3, 3 / 2, 1.02):
        observed = np.bincount(np.clip(sample(300_000, key=8, scale=wrong * scale).numpy(), -6, 5) + 6, minlength=12)
        assert stats.chisquare(observed, expected).pvalue < 1e-6


def test_chunks_neither_overlap_nor_repeat(monkeypatch):
    monkeypatch.setattr(gaussian, "_PAIRS", 64)
    monkeypatch.setattr(gaussian, "_SEGMENT", 300)
    for count in (0, 1, 2, 127, 128, 129, 257, 300, 301, 1000):
        drawn = sample(count)
        assert len(drawn) == count
        assert len(set(drawn.tolist())) > count - 3  # about count²/2^31 coincidences


def lowest_bit(released, grid):
    """Count how often each of the low ten bits of the released lattice points is the lowest set one."""
    steps = (released / grid).to(torch.int64).numpy()
    return np.bincount(np.minimum(np.log2(np.maximum(steps & -steps, 1)).astype(int), 9), minlength=10)


def test_the_lowest_set_bit_does_not_tell_whether_a_canary_was_in_the_sum():
    grid, count = lattice_step(1.0), 100_000
    counts = []
    for key, canary in ((1, 0.0), (2, 0.625), (3, 0.1)):
        sums = round_to_lattice(torch.full((count,), canary, dtype=torch.float64), grid)
        released = LatticeGaussian(SecureStream(insecure_test_key=key)).add_noise(sums, stddev=1.0, grid=grid)
        assert bool((released.remainder(grid) == 0).all())
        counts.append(lowest_bit(released, grid))
    assert stats.chi2_contingency(counts).pvalue > 1e-6

    # Floats added to floats, on the grid of the noise's own last bits, do tell: the test has power.
    noise = sample(count, key=4).double() / SCALE / 16
    naive = [lowest_bit(noise + canary, 2.0**-56) for canary in (0.0, 0.625)]
    assert stats.chi2_contingency(np.array(naive) + 1).pvalue < 1e-9


# --- add_noise ----------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("arguments, message", [
    ({"stddev": -1.0}, "stddev=-1.0"), ({"stddev": math.nan}, "stddev=nan"), ({"stddev": math.inf}, "stddev=inf"),
    ({"grid": 0.3}, "power of two"), ({"grid": 0.0}, "grid=0.0"), ({"grid": -0.5}, "grid=-0.5"),
    ({"grid": 2.0**-33}, "lattice_step"), ({"grid": math.nan}, "grid=nan"),
    ({"stddev": 0.0, "grid": 0.3}, "power of two"),
    ({"values": torch.zeros(2)}, "torch.float32"), ({"values": torch.zeros(2, dtype=torch.int64)}, "torch.int64"),
])
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
    monkeypatch.setattr(gaussian, "_PAIRS", 64)
    monkeypatch.setattr(gaussian, "_SEGMENT", 2000)
    drawn = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        drawn.append(sample(9001))
    assert torch.equal(*drawn)
    assert len(set(drawn[0].tolist())) > 8995  # segments do not share words; 0.1 coincidences are expected


def test_threads_of_torch_are_left_as_they_were():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        sample(5000)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *seen] == [2, 2]
    finally:
        torch.set_num_threads(before)
