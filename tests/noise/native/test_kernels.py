"""Noise is the same to the last bit whether numpy or C draws it, and no compiler is needed."""

import ctypes
import ctypes.util
import gc
import math
import os
import subprocess
import sys
import tempfile
import threading
from copy import copy
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch
from streams import ScriptedStream, in_child

from dpfy.mechanisms.gaussian_sum import GaussianSum
from dpfy.noise import (
    LatticeGaussian,
    SecureStream,
    lattice_step,
    prefetch,
    random_stream,
    rejection,
)
from dpfy.noise.native import kernels, openmp, openssl
from dpfy.noise.native.kernels import IN_NUMPY
from dpfy.noise.rejection_table import RECTANGLES, rejection_table
from dpfy.noise.vector import Piece, Vector

SPREAD = 32 * 1.7
COUNT = 20 * rejection.PART


@pytest.fixture
def in_c():
    return kernels.compiled() or pytest.skip("there is no C compiler")


def noisy(monkeypatch, large, count, stddev, key):
    """Return values between lattice points with the noise of vectors that are large from ``large``
    on.
    """
    monkeypatch.setattr(kernels, "LARGE", large)
    values = torch.linspace(-3 * stddev, 5e6 * stddev, count, dtype=torch.float64)
    return LatticeGaussian(SecureStream(insecure_test_key=key)).add_noise(
        values, stddev, lattice_step(stddev)
    )


# --- the same bits
# ------


@pytest.mark.parametrize("count", [0, 1, 2, 63, 1 << 14, prefetch.SEGMENT + 1])
@pytest.mark.parametrize("stddev", [1.0, 1.37, 1.9999999, 1e-30])
def test_c_draws_the_noise_that_numpy_draws(monkeypatch, in_c, count, stddev):
    for key in range(1 if count > prefetch.SEGMENT else 5):
        expected = noisy(monkeypatch, 1 << 62, count, stddev, key)
        assert torch.equal(noisy(monkeypatch, 0, count, stddev, key), expected)


@pytest.mark.parametrize("spread", [32.0, SPREAD, 63.9])
def test_cells_are_the_same_where_points_are_judged_in_more_digits(monkeypatch, in_c, spread):
    monkeypatch.setattr(rejection, "MARGIN", 2.0**-16)  # about one in every other part
    judged, real = [], rejection.is_below
    monkeypatch.setattr(
        rejection, "is_below", lambda *arguments: judged.append(1) or real(*arguments)
    )
    parts = SecureStream(insecure_test_key=9).parts()
    drawn = [each.draw(np.empty(COUNT), spread, parts).copy() for each in (IN_NUMPY, in_c)]
    assert np.array_equal(*drawn) and len(judged) > 10 and len(judged) % 2 == 0
    assert 0 < len(in_c._draw_most(np.empty(COUNT), spread, parts)) < 20


class Scripted:
    """A cipher for C, and streams for numpy, whose words a test chooses for each part."""

    def __init__(self, words, refuse=None):
        """Emit ``words[number]``; let the call ``refuse`` fail, counted over all."""
        self.words, self.calls = [np.asarray(each, dtype=np.uint64).tobytes() for each in words], 0
        whatever, text, integers = ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)

        def start(context, cipher, engine, key, counter):
            if counter:
                self.rest = self.words[int.from_bytes(ctypes.string_at(counter, 8), "big")]
            return self.go_on(refuse)

        def encrypt(context, out, written, given, count):
            assert len(self.rest) >= count, "more words were drawn than the test provides"
            ctypes.memmove(out, self.rest, count)
            self.rest, written[0] = self.rest[count:], count
            return self.go_on(refuse)

        self.functions = (
            ctypes.CFUNCTYPE(whatever)(lambda: 1),
            ctypes.CFUNCTYPE(None, whatever)(lambda _: None),
            ctypes.CFUNCTYPE(whatever)(lambda: 1),
            ctypes.CFUNCTYPE(ctypes.c_int, whatever, whatever, whatever, text, text)(start),
            ctypes.CFUNCTYPE(ctypes.c_int, whatever, text, integers, text, ctypes.c_int)(encrypt),
        )

    aes_key = bytes(32)

    def go_on(self, refuse):
        self.calls += 1
        return 0 if self.calls == refuse else 1

    def stream(self, number):
        return ScriptedStream(np.frombuffer(self.words[number], dtype=np.uint64).tolist())

    def left_by(self, in_c, buffer):
        """Fill ``buffer`` in C with these words, and return the numbers of the parts that are
        left.
        """
        those = copy(in_c)
        those._cipher = openssl.Cipher(
            *(ctypes.cast(each, ctypes.c_void_p) for each in self.functions)
        )
        return those._draw_most(buffer, SPREAD, self)


def words_of(place, rectangle, *heights):
    """Return the words of one part in which these places and rectangles are drawn, and then these
    heights.
    """
    given = np.concatenate(
        [
            np.asarray(place, dtype=np.int32).view(np.uint8),
            np.asarray(rectangle, dtype=np.uint16).view(np.uint8),
        ]
    )
    padded = np.pad(given, (0, -len(given) % 8)).view(np.uint64)
    return np.concatenate([padded, np.array(heights, dtype=np.int64).view(np.uint64)])


def test_every_rectangle_place_and_height_gives_the_same(in_c):
    """All rectangles are drawn, in parts that have enough of the certain ones; and the ends of all
    intervals.
    """
    generator, each = np.random.default_rng(1), rejection.PART + rejection._spare(rejection.PART)
    rectangle = generator.permutation(np.resize(np.arange(RECTANGLES - 1), 4 * each)).astype(
        np.uint16
    )
    place = generator.integers(-(2**31), 2**31, 4 * each, dtype=np.int32)
    place[::7], place[::11] = -(2**31), 2**31 - 1
    height = generator.integers(-(2**63), 2**63, 4 * each, dtype=np.int64)
    height[::5], height[::7] = -(2**63), 2**63 - 1
    script = Scripted(
        [
            words_of(
                *(numbers[part * each : (part + 1) * each] for numbers in (place, rectangle)),
                *height[part * each : part * each + 3000],
            )
            for part in range(4)
        ]
    )
    buffer = np.empty(4 * rejection.PART)
    assert script.left_by(in_c, buffer) == []
    for number, part in enumerate(buffer.reshape(4, -1)):
        assert np.array_equal(
            part, rejection.draw_gaussians(rejection.PART, SPREAD, script.stream(number))
        )


CERTAIN, LAST, SPARE = 0, RECTANGLES - 1, 64


@pytest.mark.parametrize(
    ("height", "left"),
    [(-(2**63), [0]), (rejection.TAIL - 1, [0]), (rejection.TAIL, []), (0, []), (2**63 - 1, [])],
)
@pytest.mark.parametrize("at", [0, 1, 50])
def test_what_may_come_from_the_tail_is_left_to_python(in_c, height, left, at):
    """And what does not is above the curve, and replaced, if it is not spare itself."""
    rectangle = np.full(1 + SPARE, CERTAIN)
    rectangle[at] = LAST
    script, buffer = Scripted([words_of(np.arange(1 + SPARE), rectangle, height)]), np.empty(1)
    assert script.left_by(in_c, buffer) == left
    if not left:
        assert buffer[0] == rejection_table(SPREAD).middle[CERTAIN] + (at == 0)


@pytest.mark.parametrize("off", [-1, 1])
def test_points_at_the_curve_are_left_to_python(in_c, monkeypatch, off):
    table, rectangle = rejection_table(SPREAD), np.full(1 + SPARE, CERTAIN)
    rectangle[0] = table.certain
    curve = rejection.curve_at(table.middle[rectangle[:1]], table)[0]
    for nearer, left in ((2.0**-33, [0]), (2.0**-31, [])):
        height = round((curve * (1 + off * nearer) / table.height - table.level[0]) * 2**64)
        assert -(2**63) <= height < 2**63
        script = Scripted([words_of(np.zeros(1 + SPARE), rectangle, height)])
        assert script.left_by(in_c, np.empty(1)) == left


@pytest.mark.parametrize("useless", [0, 63, 64])
def test_without_enough_to_spare_a_part_is_left_to_python(in_c, useless):
    rectangle = np.full(1 + SPARE, CERTAIN)
    rectangle[: 1 + useless] = LAST
    script, buffer = (
        Scripted([words_of(np.arange(1 + SPARE), rectangle, *[0] * (1 + useless))]),
        np.empty(1),
    )
    assert script.left_by(in_c, buffer) == ([0] if useless == SPARE else [])
    assert useless == SPARE or buffer[0] == rejection_table(SPREAD).middle[CERTAIN] + 1 + useless


@pytest.mark.parametrize("refused", range(1, 6))
def test_where_the_cipher_fails_a_part_is_left_to_python(in_c, refused):
    """The key, the number, places, rectangles, heights: whatever is refused, nothing is made of
    what was there.
    """
    rectangle = np.full(1 + SPARE, CERTAIN)
    rectangle[0] = LAST
    words = words_of(np.arange(1 + SPARE), rectangle, 0)
    assert Scripted([words], refuse=refused).left_by(in_c, np.empty(1)) == [0]
    assert Scripted([words], refuse=6).left_by(in_c, np.empty(1)) == []


@pytest.mark.parametrize("missing", ["library", "instructions"])
def test_without_a_cipher_numpy_draws(in_c, monkeypatch, missing):
    if missing == "library":
        monkeypatch.setattr(in_c, "_cipher", None)
    else:
        monkeypatch.setattr(random_stream, "_HAS_AES", False)
    expected = noisy(monkeypatch, 1 << 62, 20_000, 1.0, key=1)
    assert torch.equal(noisy(monkeypatch, 0, 20_000, 1.0, key=1), expected)
    assert in_c._draw_most(np.empty(20_000), SPREAD, SecureStream().parts()) == [0, 1]


def test_the_cipher_is_found_without_pythons_hashes(monkeypatch):
    monkeypatch.setattr(openssl, "find_spec", lambda name: None)
    for found, expected in (
        (None, None),
        ("no-such-library.so", None),
        (ctypes.util.find_library("c"), None),
    ):
        monkeypatch.setattr(openssl, "find_library", lambda name, found=found: found)
        assert openssl.cipher.__wrapped__() is expected


@pytest.mark.parametrize("far", [0.0, 1e3, 2.0**50, -(2.0**51), 2.0**60])
@pytest.mark.parametrize("stride", [1, 3])
def test_sums_on_the_lattice_are_the_same(in_c, far, stride):
    generator = np.random.default_rng(2)
    values, middles = (
        generator.normal(size=5000 * stride) + far,
        np.floor(generator.normal(size=5000) * 2.0**37) + 0.5,
    )
    numpy, c = values.copy(), values.copy()
    for each, numbers in ((IN_NUMPY, numpy), (in_c, c)):
        each.add(
            Vector([Piece(0, torch.from_numpy(numbers[::stride]))], 2.0**-20, 0.25),
            0,
            middles.copy(),
        )
    assert np.array_equal(numpy, c) and not np.array_equal(numpy, values)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_release_adds_noise_and_rounds_the_product_to_float32(in_c, dtype):
    generator = np.random.default_rng(3)
    sums = torch.from_numpy(
        np.concatenate(
            [
                generator.normal(size=5000) * 10.0 ** np.arange(-50, 50).repeat(50),
                [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300],
            ]
        )
    ).to(dtype)
    middles = np.floor(generator.normal(size=len(sums)) * 2.0**37) + 0.5
    expected = sums.double().clone()
    Vector([Piece(0, expected)], 2.0**-20, 0.25).add(0, middles.copy())
    for factor in (1.0, 1 / 3, -1e-30, 1e30):
        for each in (IN_NUMPY, in_c):
            given, out = sums.clone(), torch.empty(len(sums))
            each.add(Vector([Piece(0, given, factor, out)], 2.0**-20, 0.25), 0, middles.copy())
            assert torch.equal(out.nan_to_num(7), (expected * factor).float().nan_to_num(7))
            assert torch.equal(
                given.nan_to_num(7), (expected if dtype is torch.float64 else sums).nan_to_num(7)
            )
            if dtype is torch.float32:
                each.add(
                    Vector([Piece(0, given, factor, given)], 2.0**-20, 0.25), 0, middles.copy()
                )  # in its place
                assert torch.equal(given.nan_to_num(7), out.nan_to_num(7))


@pytest.mark.parametrize("count", [0, 1, 2047, 2048, 2049, 100_000])
def test_torchs_threads_compute_what_one_computes(in_c, count, monkeypatch):
    """Fails if a part is left out or done twice."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    shared, generator = in_c.shared(), np.random.default_rng(count)
    assert (shared.threads, in_c.threads) == (3, 1)
    parts = SecureStream(insecure_test_key=1).parts()
    sums, singles = torch.from_numpy(generator.normal(size=count)), torch.randn(count)
    numbers = generator.integers(-(2**31), 2**31, count, dtype=np.int32)

    def results(these):
        points = these.draw(np.empty(count), SPREAD, parts)
        values, outs = [sums.clone() for _ in range(3)], torch.empty(3, count)
        for index, pieces in enumerate(
            (
                [Piece(0, values[0])],
                [Piece(0, values[1], 0.3, outs[0])],
                [Piece(0, singles, 0.3, outs[1])],
            )
        ):
            these.add(Vector(pieces, 2.0**-30, 2.0**-20), 0, points.copy())
            assert count == 0 or not torch.equal(values[index], sums) or index == 2
        cut = count // 3
        both = Vector(
            [Piece(0, values[2][:cut]), Piece(cut, singles[cut:], 0.3, outs[2, cut:])],
            2.0**-30,
            2.0**-20,
        )
        these.draw_and_add(both, 0, np.empty(count), SPREAD, parts)
        assert torch.equal(values[2][:cut], values[0][:cut]) and torch.equal(
            outs[2, cut:], outs[1, cut:]
        )
        totals = these.totals([torch.from_numpy(numbers)])
        return [points, *values, outs[:2], outs[2, cut:], totals]

    for found, expected in zip(results(shared), results(in_c), strict=True):
        assert np.array_equal(found, expected)


def test_few_frames_lie_between_a_release_and_the_loop_that_adds_its_noise(in_c, monkeypatch):
    """A newcomer who follows a sum to its noise opens three files."""
    found, real = [], in_c._draw

    def draw(*arguments):
        frame, frames = sys._getframe(1), []
        while frame.f_code is not GaussianSum.release_pieces.__code__:
            frames.append(frame.f_code.co_filename)
            frame = frame.f_back
        found.append([*frames, frame.f_code.co_filename])
        return real(*arguments)

    monkeypatch.setattr(in_c, "_draw", draw)
    sums = torch.zeros(10**6)
    noise = LatticeGaussian(SecureStream(insecure_test_key=1))
    GaussianSum(1.0, 1.0, len(sums)).release_pieces([sums], [1.0], [sums], noise)
    assert len(found) == 2 and sums.std() > 0.9
    assert all(len(frames) <= 5 and len(set(frames)) <= 3 for frames in found)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_computes_on_one_thread(in_c):
    """It has none of torch's threads: a loop that is divided among them would never end."""
    torch.set_num_threads(2)
    try:
        torch.randn(300, 300) @ torch.randn(300, 300)
        assert in_c.shared().totals([torch.ones(100_000, dtype=torch.int32)]) == [100_000]
        script = (
            "import torch; from dpfy.noise.native import openmp; print(openmp.openmp_threads())"
        )
        assert (
            in_child(lambda: str((openmp.openmp_threads(), in_c.shared().threads)).encode())
            == b"((None, 1), 1)"
        )
        found = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
        ).stdout
        assert found.startswith("(") and found != "(None, 1)\n"
    finally:
        torch.set_num_threads(1)


def test_without_openmp_a_loop_is_for_the_thread_that_it_is_called_on(in_c, monkeypatch):
    monkeypatch.setattr(openmp, "_gomp_parallel", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert in_c.shared().threads == 1
    assert in_c.shared().totals([torch.ones(5000, dtype=torch.int32)]) == [5000]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -math.nan])
@pytest.mark.parametrize("place", [0, 2047, 2048, 4999])
def test_a_single_number_that_is_not_finite_is_found(in_c, value, place):
    numbers, largest = torch.full((5000,), 3.4028234e38), torch.full((3,), -3.4028234e38)
    for these in (in_c, in_c.shared(), IN_NUMPY):
        assert these.are_finite([]) and these.are_finite([largest, numbers, torch.empty(0)])
    numbers[place] = value
    for these in (in_c, in_c.shared(), IN_NUMPY):
        assert not these.are_finite([largest, numbers, largest])


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 1 << 17])
def test_totals_are_the_same_and_do_not_overflow(in_c, count):
    numbers = [torch.full((size,), -(2**31), dtype=torch.int32) for size in (count, 3, count)]
    expected = [-(2**31) * size for size in (count, 3, count)]
    assert in_c.totals(numbers) == IN_NUMPY.totals(numbers) == expected
    wide = torch.arange(count, dtype=torch.float64)
    assert in_c.totals([wide]) == IN_NUMPY.totals([wide])


@pytest.mark.parametrize(
    "shape", [(1, 0, 5), (1, 1, 1), (2, 3, 7), (3, 5, 8), (2, 40, 2049), (1, 2, 5000)]
)
def test_rows_are_measured_and_added_up_in_float64(in_c, shape, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    generator = np.random.default_rng(5)
    rows = (generator.normal(size=shape) * 10.0 ** generator.integers(-18, 18, size=shape)).astype(
        np.float32
    )
    chosen = np.flatnonzero(generator.random(shape[1]) < 0.6)
    weights = generator.random(len(chosen))
    for each in (IN_NUMPY, in_c, in_c.shared()):
        squares, totals = each.measure(rows), each.weigh(rows, chosen, weights)
        for block, found, total in zip(rows.astype(np.float64), squares, totals, strict=True):
            np.testing.assert_allclose(
                found, [math.fsum(x * x for x in row) for row in block], rtol=2.0**-40
            )
            terms = weights[:, None] * block[chosen]
            exact = np.array([math.fsum(column) for column in terms.T])
            assert np.all(np.abs(total - exact) <= 2.0**-46 * np.abs(terms).sum(0))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_rows_that_are_not_finite_have_such_a_norm_and_touch_no_other(in_c, bad):
    rows = np.ones((2, 3, 20), dtype=np.float32)
    rows[0, 1, 17] = bad
    for each in (IN_NUMPY, in_c):
        assert np.isfinite(each.measure(rows)).tolist() == [[True, False, True], [True] * 3]
        assert np.array_equal(
            each.weigh(rows, np.array([0, 2]), np.array([1.0, 2.0])), np.full((2, 20), 3.0)
        )


def test_arrays_of_another_kind_are_refused(in_c):
    vector = Vector([Piece(0, torch.zeros(3, dtype=torch.float64))], 1.0, 1.0)
    for noise in (np.zeros(3, dtype=np.float32), np.zeros((1, 3))):
        with pytest.raises(
            ctypes.ArgumentError, match="Expected 1 dimensions of float64 without gaps"
        ):
            in_c.add(vector, 0, noise)
    with pytest.raises(ctypes.ArgumentError, match="Expected 1 dimensions of float64 without gaps"):
        in_c.draw(np.zeros(6)[::2], SPREAD, SecureStream().parts())
    for tensor in (torch.zeros(6)[::2], torch.zeros(3, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match="without gaps"):
            in_c.totals([tensor])


def test_calls_leave_no_cyclic_garbage(in_c):
    values, parts = torch.zeros(3, dtype=torch.float64), SecureStream().parts()
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            vector = Vector([Piece(0, values)], 1.0, 1.0)
            in_c.add(vector, 0, np.zeros(3))
            in_c.draw_and_add(vector, 0, np.empty(3), SPREAD, parts)
        assert gc.collect() < 100
    finally:
        gc.enable()


def test_c_errs_by_less_than_2_to_the_minus_40(in_c):
    table, generator = rejection_table(SPREAD), np.random.default_rng(0)
    middle = np.floor(generator.uniform(-6, 6, 1500) * SPREAD * 2.0**32) + 0.5
    for point, found in zip(middle, in_c.curve(middle, table), strict=True):
        with mpmath.workprec(200):
            exact = mpmath.exp(-((mpmath.mpf(point) / 2**32 / mpmath.mpf(SPREAD)) ** 2) / 2)
            assert abs(mpmath.mpf(found) / exact - 1) < 2.0**-40


# --- without a compiler
# ------


@pytest.mark.parametrize(
    "compiler",
    [
        "",
        "no-such-compiler",
        "false",
        "true",  # succeeds and makes nothing
        "an unfinished 'quotation",
        "cc -D__FAST_MATH__",  # says that its arithmetic is another one
    ],
)
def test_noise_is_drawn_in_numpy_where_no_compiler_does_as_it_is_told(monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(kernels, "compiled", kernels.compiled.__wrapped__)
    expected = noisy(monkeypatch, 1 << 62, 1000, 1.0, key=1)
    assert torch.equal(noisy(monkeypatch, 0, 1000, 1.0, key=1), expected)
    assert kernels.kernels_for(1000) is IN_NUMPY


def test_a_compiler_that_does_not_know_the_processor_compiles_without_it(
    monkeypatch, in_c, tmp_path
):
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\ncase "$*" in *-march=native*) exit 1;; esac\nexec cc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    assert isinstance(kernels.compiled.__wrapped__(), kernels.InC)


@pytest.mark.parametrize(("value", "off"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_a_variable_switches_the_compiler_off(monkeypatch, in_c, value, off):
    calls, real = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda *given, **named: calls.append(1) or real(*given, **named),
    )
    monkeypatch.setenv("DPFY_NO_COMPILER", value)
    assert (kernels.compiled.__wrapped__() is None) == off and len(calls) == (not off)


@pytest.mark.parametrize(
    "flags",
    [
        "-ffast-math",
        "-Ofast",
        "-funsafe-math-optimizations",
        "-fassociative-math -fno-signed-zeros -fno-trapping-math",
    ],
)  # sums would leave the lattice, and nobody would say so
def test_arithmetic_is_ieee_whatever_the_compiler_was_told(monkeypatch, in_c, flags):
    """Fails if operations are reordered, or if denormal numbers are zero after loading on this
    thread.
    """
    monkeypatch.setenv("CC", f"cc {flags}")
    found = []

    def load():
        found.append(type(kernels.compiled.__wrapped__()).__name__)
        found.append(float(np.float64(2.0**-1060) * np.array([0.5])[0]))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert found == ["InC", 2.0**-1061]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("exp(-0.5 * (z * z))", "exp(-0.5 * (z * z)) * (1 + 0x1p-30)"),
        ("exp(-0.5 * (z * z))", "exp(-0.5 * (z * z)) * (1 - 0x1p-30)"),
        (
            "((values[i] + far) + noise_at(real, whole, unit, i)) - far",
            "values[i] + noise_at(real, whole, unit, i)",
        ),  # sums leave the lattice
        (
            "((((double)singles[i] + far) + noise_at(real, whole, unit, i)) - far)",
            "((double)singles[i] + noise_at(real, whole, unit, i))",
        ),
        ("place + count,", "place,"),  # spare points are in the places of others
        (
            "out[uncertain[i]] = spares[next++]",
            "out[uncertain[i]] = spares[next]",
        ),  # the same number twice
        (
            "uncertain[skipped] - count == next",
            "uncertain[skipped] - count == next + 1",
        ),  # takes what was rejected
        ("y > curve", "y > 1.01 * curve"),
        (
            "(uint8_t)(number >> (56 - 8 * i))",
            "(uint8_t)(number >> (8 * i))",
        ),  # words of another number
        ("noise.real + (first - start)", "noise.real"),  # the noise of other coordinates
        ("noise.whole + (first - start)", "noise.whole"),
        ("+= steps->rest[far]", "+= 0"),  # large noise loses its high bits
        ("steps->cells * a->vector->unit", "a->vector->unit"),
        ("steps->place[far] >= last", "1"),  # also where the first such number comes later
        ("noise[i] * steps + far_away", "noise[i] * cells + far_away"),
        ("low = middle + 1", "low = middle + 2"),
        ("exponent = 0x7f800000", "exponent = 0x7fffffff"),
        ("found |= (s->bits[i]", "found = (s->bits[i]"),  # only the last number counts
        ("low[i] = (int32_t)bits", "low[i] = (int32_t)sum"),
        ("(double)row[j + k] * (double)row[j + k]", "row[j + k] * row[j + k]"),  # in float32
        ("weight * (double)row[j]", "(float)weight * row[j]"),
    ],
)
def test_a_library_that_errs_is_not_used(monkeypatch, in_c, tmp_path, right, wrong):
    source = kernels._SOURCE.read_text()
    assert right in source
    (tmp_path / "kernels.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(kernels, "_SOURCE", tmp_path / "kernels.c")
    assert kernels.compiled.__wrapped__() is None


@pytest.mark.parametrize(
    ("method", "failure"),
    [("__init__", OSError("no processes")), ("wait", subprocess.TimeoutExpired("cc", 60))],
)
def test_noise_is_drawn_in_numpy_where_compiling_fails(monkeypatch, method, failure):
    class Failing(subprocess.Popen):
        returncode = 0

    def fail(*given, **named):
        if given[1:] or named:  # not when it waits for what it has killed
            raise failure
        return real(*given)

    real = getattr(Failing, method)
    setattr(Failing, method, fail)
    monkeypatch.setattr(subprocess, "Popen", Failing)
    assert kernels.compiled.__wrapped__() is None


def test_noise_is_drawn_in_numpy_where_nothing_can_be_written_or_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr(
        kernels.ctypes, "CDLL", lambda path: (_ for _ in ()).throw(OSError("noexec"))
    )
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
    script = (
        "from dpfy.noise.native import kernels; import os\n"
        "print(type(kernels.compiled()).__name__, os.listdir(os.environ['TMPDIR']))"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert (found.stdout, found.stderr) == ("InC []\n", "")


def test_who_need_not_wait_for_the_compiler_has_numpy_until_it_is_done(monkeypatch, in_c):
    at_work = SimpleNamespace(is_running=True)
    monkeypatch.setattr(kernels, "_begun", [at_work])
    assert kernels.kernels_for(kernels.LARGE, wait=False) is IN_NUMPY
    assert kernels.kernels_for(kernels.LARGE) is in_c
    at_work.is_running = False
    assert kernels.kernels_for(kernels.LARGE, wait=False) is in_c


@pytest.mark.parametrize("used", [True, False])
def test_what_was_compiled_ahead_is_used_or_deleted(monkeypatch, in_c, tmp_path, used):
    script = (
        "from dpfy.noise.native import kernels; import os, subprocess\n"
        "kernels.compile_ahead(kernels.LARGE - 1), kernels.compile_ahead(kernels.LARGE)\n"
        "kernels.compile_ahead(kernels.LARGE)\n"
        "print(sum(name.startswith('dpfy-') for name in os.listdir(os.environ['TMPDIR'])))\n"
        "subprocess.Popen = None\n"
        f"{used} and print(type(kernels.compiled()).__name__)"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert (found.stdout, found.stderr) == ("1\nInC\n" if used else "1\n", "")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("dpfy-")]
