"""Noise that was drawn ahead is the noise that would have been drawn, is used once, and leaves
nothing running.
"""

import gc
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from streams import in_child
from torch import nn
from torch.utils.data import TensorDataset

import dpfy
from dpfy.noise import LatticeGaussian, SecureStream, lattice_step, prefetch
from dpfy.noise.native import kernels
from dpfy.noise.native.kernels import InNumpy
from dpfy.testing import check_noise

STDDEV = 1.7
GRID = lattice_step(STDDEV)


@pytest.fixture(autouse=True)
def spare_core(monkeypatch):
    """One thread for torch, one core to spare, and vectors of a few values that are worth it."""
    monkeypatch.setattr(prefetch, "_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(prefetch, "_SERIAL", 0)
    monkeypatch.setattr(prefetch, "SEGMENT", 500)


def noise(key=1):
    return LatticeGaussian(SecureStream(insecure_test_key=key))


def take(source, count=1200, stddev=STDDEV, grid=GRID):
    return source.add_noise(torch.zeros(count, dtype=torch.float64), stddev, grid)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("dpfy noise")]


class Ahead(LatticeGaussian):
    """Prefetches everything before it takes it."""

    def add_noise(self, values, stddev, grid):
        self.prefetch(values.numel(), stddev, grid)
        assert stddev == 0 or values.numel() == 0 or self._prefetcher._prefetched
        return super().add_noise(values, stddev, grid)


def test_noise_drawn_ahead_conforms(monkeypatch):
    monkeypatch.setattr(prefetch, "SEGMENT", 1 << 16)
    check_noise(Ahead)


def test_it_is_the_noise_that_would_have_been_drawn_and_never_the_same_twice():
    ahead, plain = Ahead(SecureStream(insecure_test_key=1)), noise()
    seen = set()
    for _ in range(4):
        drawn = take(ahead)
        assert torch.equal(drawn, take(plain))
        assert not seen & set(
            drawn.tolist()
        )  # a chance coincidence: 1e-2 of one value at most, and the key is fixed
        seen |= set(drawn.tolist())


@pytest.mark.parametrize("other", [{"count": 1199}, {"count": 1201}, {"count": 1}, {"stddev": 1.6}])
def test_what_was_prefetched_for_something_else_is_never_used(other):
    source, twin = noise(), noise()
    source.prefetch(1200, STDDEV, GRID)
    prefetched = take(twin)
    drawn = take(source, **{"count": 1200, "stddev": STDDEV, "grid": GRID} | other)
    assert not set(prefetched.tolist()) & set(drawn.tolist())
    assert not set(prefetched.tolist()) & set(take(source).tolist())
    assert source._prefetcher._prefetched is None


def test_noise_drawn_ahead_while_the_compiler_works_is_the_same(monkeypatch):
    source, twin = noise(), noise()
    with monkeypatch.context() as first_step:
        first_step.setattr(kernels, "LARGE", 0)
        first_step.setattr(kernels, "_begun", [SimpleNamespace(is_running=True)])
        first_step.setattr(kernels, "compiled", lambda: pytest.fail("it waits for the compiler"))
        source.prefetch(1200, STDDEV, GRID)
        wait([future for _, future in source._prefetcher._prefetched.segments])
    assert torch.equal(take(source), take(twin))


def test_a_prefetch_replaces_the_one_before():
    source, twin = noise(), noise()
    source.prefetch(1200, STDDEV, GRID)
    source.prefetch(1200, STDDEV, GRID)
    take(twin)
    assert torch.equal(take(source), take(twin))


def test_a_rescaled_lattice_takes_the_same_noise():
    source, twin = noise(), noise()
    source.prefetch(1200, 2 * STDDEV, 2 * GRID)  # the same Gaussians in other units
    assert torch.equal(take(source, stddev=STDDEV, grid=GRID), take(twin))


@pytest.mark.parametrize("finished", [False, True])
def test_a_fork_leaves_the_prefetched_noise_to_the_parent(finished):
    source = noise()
    source.prefetch(1200, STDDEV, GRID)
    if finished:
        wait([future for _, future in source._prefetcher._prefetched.segments])
    child = np.frombuffer(in_child(lambda: take(source).numpy().tobytes()), dtype=np.float64)
    parent = take(source)
    assert torch.equal(parent, take(noise()))
    assert len(child) == 1200 and not set(child) & set(parent.tolist())


def test_an_exception_reaches_the_caller_and_the_next_noise_is_fresh(monkeypatch):
    source, twin, real = noise(), noise(), InNumpy.draw

    def fail(kernels, buffer, *others):
        if len(buffer) < 500:
            raise MemoryError("no room")
        return real(kernels, buffer, *others)

    monkeypatch.setattr(InNumpy, "draw", fail)
    source.prefetch(1200, STDDEV, GRID)
    with pytest.raises(MemoryError, match="no room"):
        take(source)
    monkeypatch.setattr(InNumpy, "draw", real)
    lost = take(twin)
    drawn = take(source)
    assert torch.equal(drawn, take(twin)) and not set(lost.tolist()) & set(drawn.tolist())


def test_noise_whose_addition_failed_is_never_taken_again(monkeypatch):
    source, twin = noise(), noise()
    monkeypatch.setattr(InNumpy, "add_steps", lambda *_: 1 / 0)
    source.prefetch(1200, STDDEV, GRID)
    try:
        take(source)
    except ZeroDivisionError as error:
        kept = error  # with its frames, and all that they hold
    monkeypatch.undo()
    lost = take(twin)
    assert kept.__traceback__ and not set(lost.tolist()) & set(take(source).tolist())


def test_a_failure_on_any_thread_reaches_the_caller_and_ends_all(monkeypatch):
    source, twin, failed, real = noise(), noise(), threading.Event(), InNumpy.add
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)

    def add(*arguments):
        if threading.current_thread() is not threading.main_thread():
            failed.set()
            raise ZeroDivisionError
        assert failed.wait(60)
        return real(*arguments)

    monkeypatch.setattr(InNumpy, "add", add)
    with pytest.raises(ZeroDivisionError):
        take(source, count=5000)
    monkeypatch.setattr(InNumpy, "add", real)
    lost, drawn = take(twin, count=5000), take(source, count=5000)
    assert torch.equal(drawn, take(twin, count=5000)) and not set(lost.tolist()) & set(
        drawn.tolist()
    )


class Interrupted:
    """Threads that draw or add nothing before they are shut down; the one who asks is interrupted
    after a while.
    """

    def __init__(self, monkeypatch, step, submitted):
        """Let a step of the kernels wait, on other threads, and submitting raise when so much was
        submitted.
        """
        self.futures, self.buffers, self.begun = [], [], 0
        self.gate, self.entered = threading.Event(), threading.Event()
        submit, shutdown, real = (
            ThreadPoolExecutor.submit,
            ThreadPoolExecutor.shutdown,
            getattr(InNumpy, step),
        )

        def submitting(pool, function, *arguments):
            self.futures.append(submit(pool, function, *arguments))
            self.buffers += [each for each in arguments if isinstance(each, np.ndarray)]
            if len(self.futures) == submitted:
                assert self.entered.wait(60)
                raise KeyboardInterrupt
            return self.futures[-1]

        def waiting(*arguments):
            self.begun += 1
            if threading.current_thread() is not threading.main_thread():
                self.entered.set()
                assert self.gate.wait(60)
            return real(*arguments)

        monkeypatch.setattr(InNumpy, step, waiting)
        monkeypatch.setattr(ThreadPoolExecutor, "submit", submitting)
        monkeypatch.setattr(
            ThreadPoolExecutor,
            "shutdown",
            lambda *arguments, **options: (self.gate.set(), shutdown(*arguments, **options)),
        )

    def touches(self, buffers):
        return any(np.shares_memory(one, other) for one in self.buffers for other in buffers)


def test_an_interrupted_prefetch_is_dropped_and_writes_into_no_buffer_that_is_used_again(
    monkeypatch,
):
    """Fails if what was submitted and not noted down goes on, or if values are left without
    noise.
    """
    source, twin = noise(), noise()
    source.prefetch(1200, STDDEV, GRID)
    assert torch.equal(take(source), take(twin))  # its buffers go back to the prefetcher
    with monkeypatch.context() as patch:
        interrupted = Interrupted(patch, "draw", submitted=2)
        with pytest.raises(KeyboardInterrupt):
            source.prefetch(1200, STDDEV, GRID)
        assert source._prefetcher._prefetched is None and interrupted.gate.is_set()
        assert [future.done() for future in interrupted.futures] == [
            True,
            True,
        ] and interrupted.begun == 1
    take(twin)
    source.prefetch(1200, STDDEV, GRID)
    assert not interrupted.touches(source._prefetcher._prefetched.buffers.arrays)
    assert torch.equal(take(source), take(twin))


def test_after_an_interrupted_release_nobody_adds_noise_any_more(monkeypatch):
    """Fails if a helper that was not noted down may still add, or if those that were go on to the
    end.
    """
    source, twin, values = noise(), noise(), torch.zeros(5000, dtype=torch.float64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with monkeypatch.context() as patch:
        interrupted = Interrupted(patch, "add", submitted=1)
        with pytest.raises(KeyboardInterrupt):
            source.add_noise(values, STDDEV, GRID)
        left = values.clone()
        interrupted.gate.set()
        wait(interrupted.futures)
        assert torch.equal(values, left) and interrupted.begun == 1  # of ten segments
    take(twin, count=5000)
    assert torch.equal(take(source, count=5000), take(twin, count=5000))
    assert not interrupted.touches(source._prefetcher._buffers.arrays)


def test_a_prefetch_that_is_replaced_while_it_is_drawn_keeps_its_buffers(monkeypatch):
    source, twin = noise(), noise()
    with monkeypatch.context() as patch:
        first = Interrupted(patch, "draw", submitted=-1)
        source.prefetch(1200, STDDEV, GRID)
        assert first.entered.wait(60)
        buffers, first.buffers = first.buffers, []
        source.prefetch(1200, STDDEV, GRID)
        assert not first.touches(buffers)
        first.gate.set()
        take(twin)
        assert torch.equal(take(source), take(twin))
    assert buffers and not any(
        np.shares_memory(one, other)
        for one in buffers
        for other in source._prefetcher._buffers.arrays
    )


def test_closing_ends_the_thread_and_the_noise_goes_on():
    source, twin, before = noise(), noise(), threads()  # of other tests, which may be about to end
    source.prefetch(1200, STDDEV, GRID)
    (started,) = set(threads()) - set(before)
    source.close()
    assert not started.is_alive() and source._prefetcher._buffers.arrays == []
    take(twin)
    assert torch.equal(take(source), take(twin))


def test_a_forgotten_noise_leaves_no_thread():
    before = set(threads())
    source = noise()
    source.prefetch(1200, STDDEV, GRID)
    started = set(threads()) - before
    del source
    gc.collect()
    for thread in started:
        thread.join(60)
    assert started and not any(thread.is_alive() for thread in started)


def test_the_interpreter_ends_with_a_prefetch_open():
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from dpfy.noise import *; from dpfy.noise import prefetch\n"
        "prefetch._cores = lambda: 2\n"
        "noise = LatticeGaussian(SecureStream()); noise.prefetch(3_000_000, 1.0, "
        "lattice_step(1.0))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=300)
    assert ended.returncode == 0 and ended.stderr == b""


def test_a_run_draws_ahead_releases_the_same_and_leaves_no_thread(monkeypatch):
    released, before, real = [], threads(), LatticeGaussian.prefetch
    for cores in (
        0,
        1,
        2,
    ):  # nothing is drawn ahead, as nobody asks, or as torch has all cores; or everything is
        monkeypatch.setattr(LatticeGaussian, "prefetch", real if cores else lambda *_: None)
        monkeypatch.setattr(prefetch, "_cores", lambda cores=cores: cores)
        model = nn.Linear(30, 40)
        opt = torch.optim.SGD(model.parameters(), lr=0.0)
        plan = dpfy.dpsgd(rate=1.0, divisor=4, steps=3, noise_multiplier=1.0)
        rows = TensorDataset(torch.ones(4, 30))
        with dpfy.privatize(
            model, opt, rows, plan, dpfy.Ledger.in_memory(), insecure_test_key=1
        ) as run:
            torch.nn.init.zeros_(model.weight)
            for batch in run:
                found = run.release(lambda x, model=model: model(x).sum(1), batch).gradients
                released.append(torch.cat([gradient.view(-1) for gradient in found.values()]))
                started = set(threads()) - set(before)
                assert len(started) == cores // 2
        assert not any(thread.is_alive() for thread in started)
    for plain, held, ahead in zip(released[:3], released[3:6], released[6:], strict=True):
        assert torch.equal(plain, held) and torch.equal(plain, ahead)
    assert not torch.equal(released[0], released[1])


@pytest.mark.parametrize("cores, count, stddev", [(1, 500, STDDEV), (2, 0, STDDEV), (2, 1200, 0.0)])
def test_nothing_is_prefetched_without_a_core_or_a_need(monkeypatch, cores, count, stddev):
    monkeypatch.setattr(prefetch, "_cores", lambda: cores)
    source = noise()
    source.prefetch(count, stddev, GRID)
    assert source._prefetcher._prefetched is None and source._prefetcher._pool is None


class Waiting(Future):
    """What no thread begins."""

    def cancel(self):
        return self.cancelled() or (super().cancel() and not self.set_running_or_notify_cancel())


class Few:
    """Threads that begin, and finish, some of what they are given and leave the rest."""

    def __init__(self, begun):
        self.left = begun

    def submit(self, function, *arguments):
        self.left -= 1
        if self.left < 0:
            return Waiting()
        done = Future()
        done.set_result(function(*arguments))
        return done


@pytest.mark.parametrize("begun", [0, 1, 4, 6])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_was_not_begun_is_drawn_on_release(monkeypatch, begun, threads):
    monkeypatch.setattr(prefetch, "_cores", lambda: threads + 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    source, twin, drawn, real = noise(), noise(), [], InNumpy.draw
    monkeypatch.setattr(InNumpy, "draw", lambda *arguments: drawn.append(1) or real(*arguments))
    source._prefetcher._pool = Few(begun)
    source.prefetch(2600, STDDEV, GRID)
    source._prefetcher._pool = None
    assert torch.equal(take(source, count=2600), take(twin, count=2600)) and len(drawn) == 12
    assert torch.equal(take(source, count=2600), take(twin, count=2600))


def test_a_device_is_added_to_on_one_thread(monkeypatch):
    """Fails if helpers take what a device adds in the order of the thread that asks."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    taken = []
    monkeypatch.setattr(
        InNumpy, "draw_and_add", lambda *_: taken.append(threading.current_thread())
    )
    noise().add_noise(torch.empty(3000, dtype=torch.float64, device="meta"), STDDEV, GRID)
    assert set(taken) == {threading.current_thread()} and len(taken) == 6


def test_buffers_are_used_again():
    source = noise()

    def drawn_ahead():
        source.prefetch(1200, STDDEV, GRID)
        for _, steps in source._prefetcher._prefetched.segments:
            steps.result()  # what no thread has begun would take other buffers
        take(source)

    for _ in range(2):
        drawn_ahead()
    buffers = [each.ctypes.data for each in source._prefetcher._buffers.arrays]
    drawn_ahead()
    assert [each.ctypes.data for each in source._prefetcher._buffers.arrays] == buffers and len(
        buffers
    ) == 3
