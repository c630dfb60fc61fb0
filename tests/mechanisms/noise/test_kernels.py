"""Noise is the same to the last bit, whether numpy draws it or C; and nobody needs a compiler."""

import ctypes
import gc
import math
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from streams import in_child

from dpfy.mechanisms.noise import LatticeGaussian, SecureStream, cells, desk, kernels, lattice_step, team
from dpfy.mechanisms.noise.cover import RECTANGLES, cover
from dpfy.mechanisms.noise.kernels import IN_NUMPY

SPREAD = 32 * 1.7


@pytest.fixture
def in_c():
    return kernels.compiled() or pytest.skip("there is no C compiler")


def noisy(monkeypatch, large, count, stddev, key):
    """Return values between lattice points with the noise of vectors that are large from ``large`` on."""
    monkeypatch.setattr(kernels, "LARGE", large)
    values = torch.linspace(-3 * stddev, 5e6 * stddev, count, dtype=torch.float64)
    return LatticeGaussian(SecureStream(insecure_test_key=key)).add_noise(values, stddev, lattice_step(stddev))


# --- the same bits ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("count", [0, 1, 2, 63, 1 << 14, desk.SEGMENT + 1])
@pytest.mark.parametrize("stddev", [1.0, 1.37, 1.9999999, 1e-30])
def test_c_draws_the_noise_that_numpy_draws(monkeypatch, in_c, count, stddev):
    for key in range(1 if count > desk.SEGMENT else 5):
        expected = noisy(monkeypatch, 1 << 62, count, stddev, key)
        assert torch.equal(noisy(monkeypatch, 0, count, stddev, key), expected)


@pytest.mark.parametrize("spread", [32.0, SPREAD, 63.9])
def test_cells_are_the_same_where_points_are_rejected_or_judged_in_more_digits(monkeypatch, in_c, spread):
    monkeypatch.setattr(cells, "_MARGIN", 2.0**-4)  # some hundred of them
    judged, real = [], cells.is_below
    monkeypatch.setattr(cells, "is_below", lambda *arguments: judged.append(1) or real(*arguments))
    drawn = [cells.draw_cells(np.empty(cells.room_for(30_000)), 30_000, spread, SecureStream(insecure_test_key=9), each)
             for each in (IN_NUMPY, in_c)]
    assert np.array_equal(*drawn) and len(judged) > 100 and len(judged) % 2 == 0


def test_every_rectangle_place_and_height_gives_the_same(in_c):
    bell, generator = cover(SPREAD), np.random.default_rng(1)
    rectangle = np.arange(RECTANGLES, dtype=np.uint16)
    place = generator.integers(-2**31, 2**31, RECTANGLES, dtype=np.int32)
    place[::7], place[::11] = -2**31, 2**31 - 1
    points, found = zip(*((out := np.empty(RECTANGLES), each.propose(place, rectangle, bell, out))
                          for each in (IN_NUMPY, in_c)), strict=True)
    assert np.array_equal(*points) and np.array_equal(*found) and len(found[0]) == len(bell.level)
    height = generator.integers(-2**63, 2**63, len(bell.level), dtype=np.int64)
    height[::5], height[::7] = -2**63, 2**63 - 1
    for margin in (2.0**-32, 2.0**-8, 1e9):
        verdicts = [each.judge(found[0], points[0], rectangle, height, bell, margin) for each in (IN_NUMPY, in_c)]
        assert all(map(np.array_equal, *verdicts))
    assert 0 < verdicts[0][0].mean() < 1 and len(verdicts[0][1]) == len(bell.level)


@pytest.mark.parametrize("far", [0.0, 1e3, 2.0**50, -2.0**51, 2.0**60])
@pytest.mark.parametrize("stride", [1, 3])
def test_sums_on_the_lattice_are_the_same(in_c, far, stride):
    generator = np.random.default_rng(2)
    values, middles = generator.normal(size=5000 * stride) + far, np.floor(generator.normal(size=5000) * 2.0**37) + 0.5
    numpy, c = values.copy(), values.copy()
    IN_NUMPY.add(numpy[::stride], middles.copy(), 2.0**-20, 0.25)
    in_c.add(c[::stride], middles.copy(), 2.0**-20, 0.25)
    assert np.array_equal(numpy, c) and not np.array_equal(numpy, values)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_release_adds_noise_and_rounds_the_product_to_float32(in_c, dtype):
    generator = np.random.default_rng(3)
    with np.errstate(over="ignore"):
        sums = np.concatenate([generator.normal(size=5000) * 10.0 ** np.arange(-50, 50).repeat(50),
                               [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300]]).astype(dtype)
    middles = np.floor(generator.normal(size=len(sums)) * 2.0**37) + 0.5
    expected = sums.astype(np.float64)
    IN_NUMPY.add(expected, middles.copy(), 2.0**-20, 0.25)
    for factor in (1.0, 1 / 3, -1e-30, 1e30):
        for each in (IN_NUMPY, in_c):
            given, out = sums.copy(), np.empty(len(sums), dtype=np.float32)
            each.release(given, middles.copy(), 2.0**-20, 0.25, factor, out)
            assert np.array_equal(out, (torch.from_numpy(expected) * factor).float().numpy(), equal_nan=True)
            assert np.array_equal(given, expected if dtype is np.float64 else sums, equal_nan=True)
            if dtype is np.float32:
                each.release(given, middles.copy(), 2.0**-20, 0.25, factor, given)  # in their own place
                assert np.array_equal(given, out, equal_nan=True)


@pytest.mark.parametrize("count", [0, 1, 2047, 2048, 2049, 100_000])
def test_torchs_threads_compute_what_one_computes(in_c, count, monkeypatch):
    """Fails if a part is left out or done twice, or if positions of parts are gathered in another order."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shared, bell, generator = in_c.shared(), cover(SPREAD), np.random.default_rng(count)
    assert (shared.threads, in_c.threads) == (3, 1)
    place = generator.integers(-2**31, 2**31, count, dtype=np.int32)
    rectangle = generator.integers(0, RECTANGLES, count).astype(np.uint16)
    sums, singles = generator.normal(size=count), generator.normal(size=count).astype(np.float32)

    def results(these):
        points, outs = np.empty(count), np.empty((2, count), dtype=np.float32)
        position = these.propose(place, rectangle, bell, points)
        heights = np.random.default_rng(1).integers(-2**63, 2**63, len(position), dtype=np.int64)
        verdicts = these.judge(position, points, rectangle, heights, bell, 2.0**-4)
        values, more = sums.copy(), sums.copy()
        these.add(values, points.copy(), 2.0**-30, 2.0**-20)
        these.release(more, points.copy(), 2.0**-30, 2.0**-20, 0.3, outs[0])
        these.release(singles, points.copy(), 2.0**-30, 2.0**-20, 0.3, outs[1])
        return [points, position, *verdicts, values, more, outs, np.array(these.total(place))]

    for found, expected in zip(results(shared), results(in_c), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_computes_on_one_thread(in_c):
    """It has none of torch's threads: a loop that is divided among them would never end."""
    torch.set_num_threads(2)
    try:
        torch.randn(300, 300) @ torch.randn(300, 300)
        assert in_c.shared().total(np.ones(100_000, dtype=np.int32)) == 100_000
        script = "import torch; from dpfy.mechanisms.noise import kernels, team; print(team.torchs_threads())"
        assert in_child(lambda: str((team.torchs_threads(), in_c.shared().threads)).encode()) == b"((None, 1), 1)"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300).stdout
        assert found.startswith("(") and found != "(None, 1)\n"
    finally:
        torch.set_num_threads(1)


def test_without_openmp_a_loop_is_for_the_thread_that_it_is_called_on(in_c, monkeypatch):
    monkeypatch.setattr(team, "_parallel", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert in_c.shared().threads == 1
    assert in_c.shared().total(np.ones(5000, dtype=np.int32)) == 5000


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 1 << 17])
def test_totals_are_the_same_and_do_not_overflow(in_c, count):
    numbers = np.full(count, -2**31, dtype=np.int32)
    assert in_c.total(numbers) == IN_NUMPY.total(numbers) == -2**31 * count


@pytest.mark.parametrize("shape", [(1, 0, 5), (1, 1, 1), (2, 3, 7), (3, 5, 8), (2, 40, 2049), (1, 2, 5000)])
def test_rows_are_measured_and_added_up_in_float64(in_c, shape, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    generator = np.random.default_rng(5)
    rows = (generator.normal(size=shape) * 10.0 ** generator.integers(-18, 18, size=shape)).astype(np.float32)
    chosen = np.flatnonzero(generator.random(shape[1]) < 0.6)
    weights = generator.random(len(chosen))
    for each in (IN_NUMPY, in_c, in_c.shared()):
        squares, totals = each.measure(rows), each.weigh(rows, chosen, weights)
        for block, found, total in zip(rows.astype(np.float64), squares, totals, strict=True):
            np.testing.assert_allclose(found, [math.fsum(x * x for x in row) for row in block], rtol=2.0**-40)
            terms = weights[:, None] * block[chosen]
            exact = np.array([math.fsum(column) for column in terms.T])
            assert np.all(np.abs(total - exact) <= 2.0**-46 * np.abs(terms).sum(0))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_rows_that_are_not_finite_have_such_a_norm_and_touch_no_other(in_c, bad):
    rows = np.ones((2, 3, 20), dtype=np.float32)
    rows[0, 1, 17] = bad
    for each in (IN_NUMPY, in_c):
        assert np.isfinite(each.measure(rows)).tolist() == [[True, False, True], [True] * 3]
        assert np.array_equal(each.weigh(rows, np.array([0, 2]), np.array([1.0, 2.0])), np.full((2, 20), 3.0))


def test_arrays_of_another_kind_are_refused(in_c):
    for values in (np.zeros(3, dtype=np.float32), np.zeros((1, 3))):
        with pytest.raises(ctypes.ArgumentError, match="Expected 1 dimensions of float64 without gaps"):
            in_c.add(values, np.zeros(3), 1.0, 1.0)
    with pytest.raises(ctypes.ArgumentError, match="without gaps"):
        in_c.total(np.zeros(6, dtype=np.int32)[::2])


def test_calls_leave_no_cyclic_garbage(in_c):
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            in_c.add(np.zeros(3), np.zeros(3), 1.0, 1.0)
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_c_errs_by_less_than_2_to_the_minus_40(in_c):
    # A point at relative distance 2^-40 from the curve is on the side on which 200-bit arithmetic has it.
    bell, generator, position = cover(SPREAD), np.random.default_rng(0), np.arange(1500)
    middle = np.floor(generator.uniform(-6, 6, len(position)) * SPREAD * 2.0**32) + 0.5
    rectangle = (position + bell.certain).astype(np.uint16)
    for side in (-1, 1):
        with mpmath.workprec(200):
            level = np.array([float(mpmath.exp(-((mpmath.mpf(x) / 2**32 / mpmath.mpf(SPREAD)) ** 2) / 2)
                                    * (1 + side * mpmath.mpf(2) ** -40) / mpmath.mpf(bell.height)) for x in middle])
        height = np.zeros(len(position), dtype=np.int64)
        above, _ = in_c.judge(position, middle, rectangle, height, replace(bell, level=level), 2.0**-32)
        assert above.all() if side > 0 else not above.any()


# --- without a compiler -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("compiler", [
    "", "no-such-compiler", "false",
    "true",  # succeeds and makes nothing
    "an unfinished 'quotation",
    "cc -D__FAST_MATH__",  # says that its arithmetic is another one
])
def test_noise_is_drawn_in_numpy_where_no_compiler_does_as_it_is_told(monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(kernels, "compiled", kernels.compiled.__wrapped__)
    expected = noisy(monkeypatch, 1 << 62, 1000, 1.0, key=1)
    assert torch.equal(noisy(monkeypatch, 0, 1000, 1.0, key=1), expected)
    assert kernels.kernels_for(1000) is IN_NUMPY


@pytest.mark.parametrize("flags", [
    "-ffast-math", "-Ofast", "-funsafe-math-optimizations",
    "-fassociative-math -fno-signed-zeros -fno-trapping-math"])  # sums would leave the lattice, and nobody would say so
def test_arithmetic_is_ieee_whatever_the_compiler_was_told(monkeypatch, in_c, flags):
    """Fails if operations are reordered, or if denormal numbers are zero after loading on this thread."""
    monkeypatch.setenv("CC", f"cc {flags}")
    found = []

    def load():
        found.append(type(kernels.compiled.__wrapped__()).__name__)
        found.append(float(np.float64(2.0**-1060) * np.array([0.5])[0]))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert found == ["InC", 2.0**-1061]


@pytest.mark.parametrize(("right", "wrong"), [
    ("exp(-0.5 * (z * z))", "exp(-0.5 * (z * z)) * (1 + 0x1p-30)"),
    ("exp(-0.5 * (z * z))", "exp(-0.5 * (z * z)) * (1 - 0x1p-30)"),
    ("((values[i] + far) + noise[i] * unit) - far", "values[i] + noise[i] * unit"),  # sums leave the lattice
    ("((((double)singles[i] + far) + noise[i] * unit) - far)", "((double)singles[i] + noise[i] * unit)"),
    ("(double)row[j + k] * (double)row[j + k]", "row[j + k] * row[j + k]"),  # in float32
    ("weight * (double)row[j]", "(float)weight * row[j]"),
])
def test_a_library_that_errs_is_not_used(monkeypatch, in_c, tmp_path, right, wrong):
    source = kernels._SOURCE.read_text()
    assert right in source
    (tmp_path / "kernels.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(kernels, "_SOURCE", tmp_path / "kernels.c")
    assert kernels.compiled.__wrapped__() is None


@pytest.mark.parametrize("failure", [OSError("no processes"), subprocess.TimeoutExpired("cc", 60)])
def test_noise_is_drawn_in_numpy_where_compiling_fails(monkeypatch, failure):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(kernels.subprocess, "run", fail)
    assert kernels.compiled.__wrapped__() is None


def test_noise_is_drawn_in_numpy_where_nothing_can_be_written_or_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels.ctypes, "CDLL", lambda path: (_ for _ in ()).throw(OSError("noexec")))
    assert kernels.compiled.__wrapped__() is None
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert kernels.compiled.__wrapped__() is None


def test_nothing_is_compiled_for_short_vectors(monkeypatch):
    monkeypatch.setattr(kernels, "compiled", lambda: pytest.fail("a compiler was called"))
    assert kernels.kernels_for(kernels.LARGE - 1) is IN_NUMPY
    LatticeGaussian(SecureStream()).integers(1000, 1.0)


def test_long_vectors_are_compiled_for_and_no_file_is_left(monkeypatch, in_c, tmp_path):
    assert kernels.kernels_for(kernels.LARGE) is in_c
    script = ("from dpfy.mechanisms.noise import kernels; import os\n"
              "print(type(kernels.compiled()).__name__, os.listdir(os.environ['TMPDIR']))")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert (found.stdout, found.stderr) == ("InC []\n", "")
