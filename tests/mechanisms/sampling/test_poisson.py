import threading
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from streams import ScriptedStream, in_child

from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger.events import Poisson, Policy
from dpfy.mechanisms.sampling import PoissonSampler, poisson, sampler_for
from dpfy.noise.random_stream import SecureStream
from dpfy.testing import check_sampler

RATES = (0.0, 0.02, 0.1, 0.5, 0.9, 1.0)


def draw(rate, words, n):
    stream = ScriptedStream(words, purpose="sampling")
    drawn = PoissonSampler(rate, stream).draw(n).tolist()
    assert not stream.script, "fewer words were drawn than the comparison needs"
    return drawn


@pytest.mark.parametrize("rate", RATES)
def test_the_sampler_conforms(rate):
    check_sampler(lambda stream: PoissonSampler(rate, stream))


class Broken(PoissonSampler):
    """Draws at ``actual``, declares ``rate``."""

    def __init__(self, stream, rate=0.1, actual=0.1):
        super().__init__(actual, stream)
        self.declared = Poisson(rate)

    policy = property(lambda self: self.declared)


class FixedSize(Broken):
    def draw(self, n):
        return np.sort(np.argsort(self._stream.words(n))[: n // 10]).astype(np.int64)


class Shuffled(Broken):
    order = ()

    def draw(self, n):
        if n != 1000:
            return super().draw(n)
        self.order = self.order if len(self.order) else np.argsort(self._stream.words(n))
        batch, self.order = self.order[: n // 10], self.order[n // 10 :]
        return np.sort(batch).astype(np.int64)


class EveryStepTwice(Broken):
    last = None

    def draw(self, n):
        self.last, drawn = (
            (None, self.last) if self.last is not None and n == 1000 else (super().draw(n),) * 2
        )
        return drawn


class NeighboursTogether(Broken):
    def draw(self, n):
        return np.flatnonzero(
            np.repeat(np.isin(np.arange(n // 2 + 1), super().draw(n // 2 + 1)), 2)[:n]
        )


class NeverEmpty(Broken):
    def draw(self, n):
        drawn = super().draw(n)
        return drawn if len(drawn) else np.zeros(1, dtype=np.int64)


class WeightedByIndex(Broken):
    def draw(self, n):
        low, high = (PoissonSampler(rate, self._stream).draw(n) for rate in (0.08, 0.12))
        return np.concatenate([low[low < n // 2], high[high >= n // 2]])


class NumpyGenerator(Broken):
    def draw(self, n):
        return np.flatnonzero(np.random.random(n) < 0.1)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda stream: Broken(stream, 0.1, 0.105), "at rate"),
        (lambda stream: Broken(stream, 0.1, 0.095), "at rate"),
        (lambda stream: Broken(stream, 0.02, 0.021), "at rate"),
        (lambda stream: Broken(stream, 0.9, 0.92), "at rate"),
        (FixedSize, "sizes of the samples spread 0.000"),
        (Shuffled, "sizes of the samples spread 0.000"),
        (EveryStepTwice, "spread|steps 1 apart"),
        (NeighboursTogether, "spread|records 1 apart"),
        (NeverEmpty, "indices below n=0"),
        (WeightedByIndex, "took part"),
        (NumpyGenerator, "generator"),
    ],
)
def test_the_suite_notices(make, message):
    with pytest.raises(AssertionError, match=message):
        check_sampler(make)


# --- exact coins
# ------


def test_the_coin_is_heads_exactly_below_the_rate():
    threshold = Fraction(0.3) * 2**64  # a whole number: 0.3 has 54 binary digits
    assert draw(0.3, [threshold - 1, threshold, threshold + 1, 0, 2**64 - 1], 5) == [0, 3]


def test_rates_zero_and_one_are_exact():
    assert draw(0.0, [], 3) == []
    assert draw(1.0, [], 3) == [0, 1, 2]
    assert draw(1 - 2.0**-53, [2**64 - 2**11 - 1, 2**64 - 2**11], 2) == [0]


# --- the law
# ------


def test_sample_sizes_are_binomial_including_empty_ones():
    sampler = PoissonSampler(0.05, SecureStream(insecure_test_key=3, purpose="sampling"))
    sizes = np.array([len(sampler.draw(20)) for _ in range(20_000)])
    expected = len(sizes) * np.append(
        stats.binom.pmf(np.arange(4), 20, 0.05), stats.binom.sf(3, 20, 0.05)
    )
    assert stats.chisquare(np.bincount(np.minimum(sizes, 4), minlength=5), expected).pvalue > 1e-6
    assert (sizes == 0).any()


def test_chunks_are_independent_and_complete(monkeypatch):
    words = SecureStream(insecure_test_key=4, purpose="sampling").words(1000)
    expected = np.flatnonzero(words < np.uint64(2**62))
    monkeypatch.setattr(poisson.Coins, "stretch", 64)
    drawn = PoissonSampler(0.25, SecureStream(insecure_test_key=4, purpose="sampling")).draw(1000)
    assert (drawn == expected).all() and drawn.dtype == np.int64


def test_a_forked_child_draws_another_sample():
    sampler = PoissonSampler(0.5, SecureStream(insecure_test_key=1, purpose="sampling"))
    assert in_child(lambda: sampler.draw(200).tobytes()) != sampler.draw(200).tobytes()


def test_threads_do_not_share_coins():
    sampler, drawn = PoissonSampler(0.5, SecureStream(purpose="sampling")), []

    def work():
        drawn.extend(sampler.draw(3000).tobytes() for _ in range(40))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(drawn)) == 160


# --- arguments
# ------


@pytest.mark.parametrize("rate", [-0.1, 1.0001, float("nan"), float("inf"), "0.1", True, None])
def test_rates_outside_the_unit_interval_are_refused(rate):
    with pytest.raises(InvalidArgument, match="rate="):
        PoissonSampler(rate, SecureStream(purpose="sampling"))


@pytest.mark.parametrize("n", [-1, 1.5, None])
def test_bad_numbers_of_records_are_refused(n):
    with pytest.raises(InvalidArgument, match="n="):
        PoissonSampler(0.5, SecureStream(purpose="sampling")).draw(n)


def test_a_noise_stream_is_refused():
    with pytest.raises(InvalidArgument, match="purpose='sampling'"):
        PoissonSampler(0.5, SecureStream())


def test_an_unknown_policy_is_named():
    class Sortition(Policy):
        pass

    with pytest.raises(UnsupportedEvent, match=r"Sortition.*poisson"):
        sampler_for(Sortition(), SecureStream(purpose="sampling"))
