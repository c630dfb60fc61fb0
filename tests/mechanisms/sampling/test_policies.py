"""Every policy is drawn with exactly its law; the suite notices samplers that are nearly right."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from streams import ScriptedStream

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    CyclicPoisson,
    FixedSize,
    Poisson,
    Shuffled,
    TruncatedPoisson,
)
from dpfy.mechanisms.sampling import (
    SAMPLERS,
    EpochSampler,
    FixedSizeSampler,
    PoissonSampler,
    TruncatedPoissonSampler,
    sampler_for,
)
from dpfy.mechanisms.sampling.draws import integers, order, subset
from dpfy.noise.random_stream import SecureStream
from dpfy.testing import check_sampler

EXAMPLES = {
    Poisson: [Poisson(0.1)],
    FixedSize: [FixedSize(1, 100), FixedSize(10, 100), FixedSize(70, 101), FixedSize(100, 100)],
    TruncatedPoisson: [
        TruncatedPoisson(0.1, 22, 200),
        TruncatedPoisson(0.1, 200, 200),
        TruncatedPoisson(1.0, 20, 200),
        TruncatedPoisson(0.0, 20, 200),
    ],
    Shuffled: [Shuffled(30, 100), Shuffled(25, 100), Shuffled(100, 100), Shuffled(1, 20)],
    Cyclic: [Cyclic(30, 100), Cyclic(100, 100)],
    CyclicPoisson: [CyclicPoisson(0.3, 3, 100), CyclicPoisson(0.05, 1, 100)],
    BallsInBins: [BallsInBins(5, 100), BallsInBins(1, 50), BallsInBins(40, 30)],
}
EVERY = [policy for policies in EXAMPLES.values() for policy in policies]


def stream(key=1):
    return SecureStream(insecure_test_key=key, purpose="sampling")


def test_every_policy_that_can_be_drawn_has_examples():
    assert set(SAMPLERS) == set(EXAMPLES)


@pytest.mark.parametrize("policy", EVERY, ids=str)
def test_every_sampler_conforms_and_names_its_policy(policy):
    check_sampler(lambda words: sampler_for(policy, words))
    sampler = sampler_for(policy, stream())
    assert sampler.policy == policy and sampler.steps_per_event == policy.steps_per_event


# --- samplers that are nearly right
# -------------------------------------------------------------------------------


class LowIndicesFavoured(FixedSizeSampler):
    """Remainders of short words: the first indices come up more often."""

    def draw(self, n):
        words, drawn = self._stream.words(8 * self.policy.size) % np.uint64(128) % np.uint64(n), []
        for index in words.tolist():
            drawn += [index] if index not in drawn else []
        return np.sort(np.array(drawn[: self.policy.size], dtype=np.int64))


class WithReplacement(FixedSizeSampler):
    def draw(self, n):
        return np.sort(integers(self._stream, n, self.policy.size))


class Binomial(FixedSizeSampler):
    def draw(self, n):
        return PoissonSampler(self.policy.rate, self._stream).draw(n)


class EveryStepTwice(FixedSizeSampler):
    last = None

    def draw(self, n):
        self.last, drawn = (None, self.last) if self.last is not None else (super().draw(n),) * 2
        return drawn


class NeighboursTogether(FixedSizeSampler):
    def draw(self, n):
        half = subset(self._stream, self.policy.size // 2, n // 2)
        return np.sort(np.concatenate((2 * half, 2 * half + 1)))


class AnyNumber(FixedSizeSampler):
    def draw(self, n):
        return subset(self._stream, min(self.policy.size, n), n)


class FirstStay(TruncatedPoissonSampler):
    def draw(self, n):
        return self._poisson.draw(n)[: self.policy.capacity]


class DrawnAgain(TruncatedPoissonSampler):
    """Rejects samples that are too large instead of cutting them."""

    def draw(self, n):
        while len(drawn := self._poisson.draw(n)) > self.policy.capacity:
            pass
        return drawn


class NotCut(TruncatedPoissonSampler):
    def draw(self, n):
        return self._poisson.draw(n)


class OtherRate(TruncatedPoissonSampler):
    factor = 1.05

    def __init__(self, policy, words):
        super().__init__(policy, words)
        self._poisson = PoissonSampler(self.factor * policy.rate, words)


class LowerRate(OtherRate):
    factor = 0.95


class OneOrder(EpochSampler):
    """Shuffles once and keeps the order."""

    kept = None

    def draw(self, n):
        self.kept = (
            [super(OneOrder, self).draw(n) for _ in range(self.steps_per_event)]
            if self.kept is None
            else self.kept[1:] + self.kept[:1]
        )
        return self.kept[0]


class ShuffledBuffer(EpochSampler):
    """Shuffles within halves only."""

    def draw(self, n):
        if not self._batches:
            half = n // 2
            parts = np.concatenate(
                (order(self._stream, half), half + order(self._stream, n - half))
            )
            self._batches = np.split(
                parts, range(self.policy.batch_size, n, self.policy.batch_size)
            )[::-1]
        return np.sort(self._batches.pop())


class FreshEachStep(EpochSampler):
    def draw(self, n):
        return subset(self._stream, self.policy.batch_size, n)


class UnevenBins(EpochSampler):
    """The first bin is 5 % too likely."""

    def draw(self, n):
        if not self._batches:
            chosen = integers(self._stream, self.policy.bins, n)
            moved = PoissonSampler(0.05 / (self.policy.bins - 1), self._stream).draw(n)
            chosen[moved] = 0
            self._batches = [np.flatnonzero(chosen == each) for each in range(self.policy.bins)][
                ::-1
            ]
        return self._batches.pop()


class EqualBins(EpochSampler):
    """Batches of equal size instead of independent choices."""

    def draw(self, n):
        if not self._batches:
            self._batches = list(np.split(order(self._stream, n), self.policy.bins))
        return np.sort(self._batches.pop())


FIXED, CUT = FixedSize(10, 100), TruncatedPoisson(0.1, 22, 200)


@pytest.mark.parametrize(
    "make, policy, message",
    [
        (LowIndicesFavoured, FIXED, "took part|first half"),
        (WithReplacement, FIXED, "without repetition"),
        (Binomial, FIXED, "have 10 records"),
        (EveryStepTwice, FIXED, "1 earlier|took part"),
        (NeighboursTogether, FIXED, "half|every other record|two of every four"),
        (AnyNumber, FIXED, "declares 100"),
        (FirstStay, CUT, "took part"),
        (DrawnAgain, CUT, "sizes"),
        (NotCut, CUT, "more than 22"),
        (OtherRate, CUT, "sizes"),
        (LowerRate, CUT, "sizes"),
        (OneOrder, Shuffled(25, 100), "took part|earlier"),
        (ShuffledBuffer, Shuffled(25, 100), "half|took part"),
        (FreshEachStep, Shuffled(25, 100), "exactly once"),
        (
            lambda policy, words: Renamed(Shuffled(25, 100), words, Cyclic(25, 100)),
            None,
            "in order",
        ),
        (
            lambda policy, words: Renamed(Cyclic(25, 100), words, Shuffled(25, 100)),
            None,
            "took part|half",
        ),
        (
            lambda policy, words: Renamed(Shuffled(20, 100), words, BallsInBins(5, 100)),
            None,
            "sizes of batch",
        ),
        (
            lambda policy, words: Renamed(BallsInBins(5, 100), words, Shuffled(20, 100)),
            None,
            "other sizes",
        ),
        (UnevenBins, BallsInBins(5, 100), "frequencies"),
        (EqualBins, BallsInBins(5, 100), "sizes"),
        (OneOrder, BallsInBins(5, 100), "times in batch|frequencies|epochs 1 apart"),
    ],
)
def test_the_suite_notices(make, policy, message, monkeypatch):
    if make is not AnyNumber:  # the others are told apart by their laws
        monkeypatch.setattr("dpfy.testing.sampling._check_declared", lambda *_: None)
    with pytest.raises(AssertionError, match=message):
        check_sampler(lambda words: make(policy, words))


class Renamed(EpochSampler):
    """Draws one policy, names another."""

    def __init__(self, actual, words, named):
        super().__init__(actual, words)
        self._inner, self.policy = sampler_for(actual, words), named

    def draw(self, n):
        return self._inner.draw(n)


# --- exact draws
# ------


def test_integers_reject_the_incomplete_multiple():
    """2^64 = 3·k + 1: the last word would make the remainder 0 too likely."""
    words = ScriptedStream([2**64 - 1, 2**64 - 2, 5, 7], purpose="sampling")
    assert integers(words, 3, 3).tolist() == [(2**64 - 2) % 3, 5 % 3, 7 % 3]
    assert not words.script


def test_integers_below_a_power_of_two_reject_nothing():
    assert integers(ScriptedStream([2**64 - 1, 8], purpose="sampling"), 8, 2).tolist() == [7, 0]


def test_an_order_follows_the_words_and_ties_follow_further_words():
    assert order(ScriptedStream([30, 10, 20], purpose="sampling"), 3).tolist() == [1, 2, 0]
    # 0, 2 and 3 share the word 7; 1 is before, 4 after; the next three words decide, of which two
    # tie again
    words = ScriptedStream([7, 1, 7, 7, 9, 50, 40, 50, 2, 1], purpose="sampling")
    assert order(words, 5).tolist() == [1, 2, 3, 0, 4]
    assert not words.script


def test_two_groups_of_ties_are_settled_each_by_itself():
    words = ScriptedStream([1, 1, 2, 2, 6, 5, 3, 4], purpose="sampling")
    assert order(words, 4).tolist() == [1, 0, 2, 3]
    assert not words.script


@pytest.mark.parametrize(
    "draw, kinds",
    [
        (lambda words: tuple(order(words, 4)), list(itertools.permutations(range(4)))),
        (
            lambda words: tuple(subset(words, 2, 20)),
            list(itertools.combinations(range(20), 2)),
        ),  # by different integers
        (
            lambda words: tuple(subset(words, 3, 6)),
            list(itertools.combinations(range(6), 3)),
        ),  # by an order
    ],
)
def test_orders_and_subsets_are_uniform(draw, kinds):
    """A chi-square test over all outcomes; level 1e-7."""
    words, counts = stream(5), dict.fromkeys(kinds, 0)
    for _ in range(200 * len(kinds)):
        counts[draw(words)] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-7


def test_short_words_would_be_noticed():
    """Orders from keys of two bits, ties kept in place, fail the same test."""
    words, counts = stream(5), dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(200 * len(counts)):
        counts[tuple(np.argsort(words.words(4) % np.uint64(4), kind="stable"))] += 1
    assert stats.chisquare(list(counts.values())).pvalue < 1e-7


def test_edges_of_subsets():
    assert subset(stream(), 0, 5).tolist() == [] and subset(stream(), 5, 5).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert subset(stream(), 1, 1).tolist() == [0] and order(stream(), 0).tolist() == []


# --- epochs
# ------


@pytest.mark.parametrize(
    "policy, sizes",
    [
        (Shuffled(4, 10), [4, 4, 2]),
        (Cyclic(4, 10), [4, 4, 2]),
        (Shuffled(5, 10), [5, 5]),
        (Cyclic(10, 10), [10]),
    ],
)
def test_an_epoch_has_every_record_once(policy, sizes):
    sampler = sampler_for(policy, stream())
    assert sampler.steps_per_event == len(sizes)
    for _ in range(3):
        batches = [sampler.draw(10) for _ in sizes]
        assert [len(batch) for batch in batches] == sizes
        assert sorted(np.concatenate(batches).tolist()) == list(range(10))


def test_a_new_sampler_starts_a_new_epoch():
    words = stream()
    first = sampler_for(Cyclic(2, 6), words)
    first.draw(6)
    assert sampler_for(Cyclic(2, 6), words).draw(6).tolist() == [0, 1]
    assert first.draw(6).tolist() == [2, 3]


def test_empty_bins_are_batches_too():
    sampler = sampler_for(BallsInBins(50, 3), stream())
    sizes = [len(sampler.draw(3)) for _ in range(50)]
    assert sum(sizes) == 3 and 0 in sizes


def test_a_million_records_are_no_list_of_objects():
    """An epoch of a million records takes a word per record, and each batch is an array of its own
    size.
    """
    sampler = sampler_for(Shuffled(1000, 10**6), stream())
    seen = np.concatenate([sampler.draw(10**6) for _ in range(sampler.steps_per_event)])
    assert len(seen) == 10**6 and bool((np.sort(seen) == np.arange(10**6)).all())


# --- arguments
# ------


@pytest.mark.parametrize(
    "policy", [policy for policy in EVERY if not isinstance(policy, Poisson)], ids=str
)
@pytest.mark.parametrize("n", [0, 76543])
def test_another_number_of_records_is_refused_and_not_told(policy, n):
    with pytest.raises(InvalidArgument, match=f"declares records={policy.records}") as caught:
        sampler_for(policy, stream()).draw(n)
    assert "76543" not in str(caught.value)


@pytest.mark.parametrize("policy", EVERY, ids=str)
def test_a_noise_stream_is_refused(policy):
    with pytest.raises(InvalidArgument, match="purpose='sampling'"):
        sampler_for(policy, SecureStream())


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedSize(11, 10),
        lambda: FixedSize(0, 10),
        lambda: FixedSize(2.0, 10),
        lambda: FixedSize(1, 0),
        lambda: TruncatedPoisson(1.1, 5, 10),
        lambda: TruncatedPoisson(0.5, 0, 10),
        lambda: TruncatedPoisson(0.5, 11, 10),
        lambda: Shuffled(11, 10),
        lambda: Cyclic(0, 10),
        lambda: BallsInBins(0, 10),
        lambda: BallsInBins(5, True),
        lambda: TruncatedPoisson(math.nan, 5, 10),
    ],
)
def test_policies_outside_their_domain_are_refused(make):
    with pytest.raises(InvalidArgument, match="Expected"):
        make()
