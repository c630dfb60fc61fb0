"""Gaps have exactly the law of coins; logarithms err less than the proof allows."""

import itertools
import math
import tracemalloc
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpfy.ledger.events import TruncatedPoisson
from dpfy.mechanisms.sampling import PoissonSampler, TruncatedPoissonSampler, skips
from dpfy.mechanisms.sampling.skips import Skips, power
from dpfy.noise.random_stream import SecureStream
from dpfy.testing import check_sampler

RATES = (2.0**-3, 0.1, 1e-3, 1e-7, 1e-12)
TINY = (2.0**-64, 1e-30, 2.0**-1000, 5e-324)
LEVEL = 1e-7  # of one test of a law; there are nine of them


class Tape(SecureStream):
    """Blocks begin with the given words; further bits come from words of their own."""

    def __init__(self, words, further=()):
        super().__init__(insecure_test_key=0, purpose="sampling")
        self.first, self.further = list(words), list(further)

    def words(self, count):
        if count == 1:
            return np.array([self.further.pop(0)], dtype=np.uint64)
        block, self.first = self.first[:count], self.first[count:]
        return np.array(block + [2**63] * (count - len(block)), dtype=np.uint64)


class Counted(SecureStream):
    """Counts the words that are drawn."""

    taken = 0

    def fill(self, out):
        self.taken += len(out)
        super().fill(out)


def stream(key=1):
    return Counted(insecure_test_key=key, purpose="sampling")


def draw(rate, words, n, further=()):
    """Return what is drawn by these words, and by exactly these further ones."""
    tape = Tape(words, further)
    drawn = PoissonSampler(rate, tape).draw(n).tolist()
    assert not tape.further, "fewer words were drawn than the comparison needs"
    return drawn


def gap(rate, word, n, further=()):
    """Return the gap that the sampler makes of a word, or n if no record is drawn."""
    return (PoissonSampler(rate, Tape([word], further)).draw(n).tolist() or [n])[0]


def survival(rate, k, words):
    """Return the digits to the base 2⁶⁴ of (1−rate)ᵏ, exactly computed."""
    digits, rest = [], (1 - Fraction(rate)) ** k
    for _ in range(words):
        digit, rest = divmod(rest * 2**64, 1)
        digits.append(digit)
    return digits


# --- the law, exactly
# ------


def first_word(holds):
    """Return the smallest 64-bit word for which something holds that then holds for all larger."""
    low, high = 0, 2**64
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def test_every_subset_of_twelve_records_has_the_probability_of_coins():
    """The sampler itself tells how many words make each gap; (7/8)ᵏ is a whole number of them."""
    n, rate = 12, Fraction(1, 8)
    at_least = [first_word(lambda word, k=k: gap(0.125, word, n) < k) for k in range(n + 2)]
    assert at_least[0] == 2**64 and at_least[n + 1] == 0
    chance = [Fraction(b - a, 2**64) for b, a in itertools.pairwise(at_least)]
    total = Fraction(0)
    for size in range(n + 1):
        for chosen in itertools.combinations(range(n), size):
            gaps = np.diff([-1, *chosen, n]) - 1  # the last one at least: a longer one is cut
            probability = math.prod((chance[each] for each in gaps[:-1]), start=Fraction(1))
            last = Fraction(at_least[gaps[-1]], 2**64)
            assert probability * last == rate**size * (1 - rate) ** (n - size)
            ends = [[at_least[each + 1], at_least[each] - 1] for each in gaps[:-1]]
            ends.append([0, at_least[gaps[-1]] - 1])
            words = [each[(place + size) % 2] for place, each in enumerate(ends)]
            assert draw(0.125, words, n) == list(chosen)
            total += probability * last
    assert total == 1


@pytest.mark.parametrize("rate", [0.1, 0.03, 1e-3])
@pytest.mark.parametrize("k", [1, 2, 7, 12])
def test_a_gap_is_exactly_as_likely_as_so_many_tails(rate, k):
    """Found by bisection over 192 bits, of which the last are asked for one word at a time."""
    first, second, third = survival(rate, k, 3)
    assert first_word(lambda word: gap(rate, word, 13, [2**64 - 1] * 3) < k) == first
    assert first_word(lambda word: gap(rate, first, 13, [word, 2**64 - 1, 0]) < k) == second
    assert first_word(lambda word: gap(rate, first, 13, [second, word, 2**64 - 1]) < k) == third


# --- doubtful gaps
# ------


@pytest.mark.parametrize("rate, k", [(0.1, 5), (1e-3, 40), (1e-3, 2000), (1e-7, 3), (1e-7, 500)])
def test_further_words_are_drawn_exactly_where_64_bits_do_not_tell(rate, k):
    """The reference is exact arithmetic of fractions."""
    first, second, third = survival(rate, k, 3)
    for word, further, expected in (
        (first - 1, [], k),
        (first + 1, [], k - 1),
        (first, [second - 1], k),
        (first, [second + 1], k - 1),
        (first, [second, third - 1], k),
        (first, [second, third + 1], k - 1),
    ):
        assert draw(rate, [word, 0], k + 1, further) == ([k] if expected == k else [k - 1])


def test_a_power_with_finitely_many_digits_is_not_below_itself():
    assert draw(0.125, [7 * 2**61], 1) == [0] and draw(0.125, [7 * 2**61 - 1], 1) == []


@pytest.mark.parametrize("rate", (*RATES, *TINY))
def test_logarithms_and_whole_numbers_agree(rate, monkeypatch):
    """With a huge error every gap is doubtful; 64 bits still suffice, so the words are the same."""
    n = math.ceil(min(2**48, 300 / rate))
    expected = PoissonSampler(rate, stream(2)).draw(n)
    monkeypatch.setattr(skips, "_ERROR", 0.5)
    drawn = PoissonSampler(rate, stream(2)).draw(n)
    assert drawn.tolist() == expected.tolist() and (len(drawn) > 200 or rate in TINY)


def true_gaps(word, rate):
    """Return the least and the largest gap of a uniform real that begins with a word."""
    with mpmath.workprec(1300):
        decay = -mpmath.log1p(-mpmath.mpf(rate))
        least = mpmath.floor(-mpmath.log(mpmath.mpf(word + 1) / 2**64) / decay)
        return least, mpmath.floor(-mpmath.log(mpmath.mpf(word) / 2**64) / decay) if word else None


@pytest.mark.parametrize("rate", (*RATES, *TINY))
def test_the_gap_is_between_the_bounds(rate):
    ends = [k for j in (0, 1, 2, 10, 11, 53, 63) for k in (2**j - 1, 2**j, 2**64 - 2**j)]
    words = [*ends, *stream(3).words(60).tolist()]
    words += [min(survival(rate, k, 1)[0], 2**64 - 1) for k in (1, 2, 3)]
    low, high = Skips(rate, stream())._bounds(np.array(words, dtype=np.uint64), 2**48)
    for word, below, above in zip(words, low.tolist(), high.tolist(), strict=True):
        least, largest = true_gaps(word, rate)
        assert below <= least
        assert above == 2**48 or (largest is not None and above >= largest)


def test_the_bounds_of_most_gaps_are_equal():
    """Otherwise every draw would be slow, and the logarithms would never be used."""
    low, high = Skips(4096 / 10**10, stream())._bounds(stream(4).words(100_000), 2**48)
    assert np.count_nonzero(low < high) < 10


# --- assumptions on float64
# ------


def test_logarithms_of_words_err_less_than_is_assumed():
    """The bound of the proof is 2⁻⁵⁰ of the value; arrays are long enough for vector kernels."""
    near_one = [2**64 - 2**k for k in range(11, 63)]
    small = [word >> 40 | 1 for word in stream(5).words(1000).tolist()]
    words = [*stream(6).words(4000).tolist(), *small, *near_one]
    points = np.array(words, dtype=np.uint64) * 2.0**-64
    with mpmath.workprec(160):
        for point, found in zip(points.tolist(), np.log(points).tolist(), strict=True):
            true = mpmath.log(mpmath.mpf(point))
            assert abs(mpmath.mpf(found) - true) <= abs(true) * mpmath.mpf(2) ** -50


def test_logarithms_of_rates_err_less_than_is_assumed():
    exponents = np.concatenate((np.linspace(-1074, -60, 99), np.linspace(-60, -3, 900)))
    for rate in (2.0**exponents).tolist():
        with mpmath.workprec(200 if rate > 2.0**-61 else 2400):
            true = -mpmath.log1p(-mpmath.mpf(rate))
            assert abs(mpmath.mpf(-math.log1p(-rate)) - true) <= true * mpmath.mpf(2) ** -50


@pytest.mark.parametrize("rate", (*RATES, 2.0**-64))
@pytest.mark.parametrize("k", [1, 2, 3, 1000, 2**31 - 1, 2**48])
def test_powers_are_enclosed(rate, k):
    for bits in (128, 192):
        low, high = power(1 - Fraction(rate), k, bits)
        with mpmath.workprec(600):
            exact = mpmath.exp(k * mpmath.log1p(-mpmath.mpf(rate))) * mpmath.mpf(2) ** bits
            assert low <= exact * (1 + mpmath.mpf(2) ** -500)
            assert high >= exact * (1 - mpmath.mpf(2) ** -500)
        assert 0 <= high - low < 6 * k


# --- the law, in samples
# ------


def p_values(sampler, rate, n, draws):
    """Compare sizes with Binomial(n, rate), first records with a geometric law, places with a
    uniform one.
    """
    samples = [sampler.draw(n) for _ in range(draws)]
    sizes = np.array(list(map(len, samples)))
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 13)[1:-1], n, rate)).astype(int)
    chance = np.diff([0, *stats.binom.cdf(edges, n, rate), 1])
    counts = np.bincount(np.searchsorted(edges, sizes), minlength=len(chance))
    yield stats.chisquare(counts, draws * chance).pvalue
    first = np.array([each[0] if len(each) else n for each in samples])
    edges = np.unique(np.floor(np.log1p(-np.linspace(0, 1, 21)[1:-1]) / np.log1p(-rate)))
    chance = np.diff([0, *-np.expm1((edges + 1) * np.log1p(-rate)), 1])
    counts = np.bincount(np.searchsorted(edges, first), minlength=len(chance))
    yield stats.chisquare(counts, draws * chance).pvalue
    yield stats.chisquare(np.histogram(np.concatenate(samples), 50, (0, n))[0]).pvalue


@pytest.mark.parametrize("rate, n", [(2.0**-3, 400), (1e-3, 50_000), (1e-7, 5 * 10**8)])
def test_samples_have_the_law_of_coins_and_of_no_other_rate(rate, n):
    """n is 50 expected records, and a sample without any has the probability e⁻⁵⁰."""
    assert min(p_values(PoissonSampler(rate, stream(6)), rate, n, 3000)) > LEVEL
    for factor in (2 / 3, 3 / 2):
        other = PoissonSampler(factor * min(rate, 1 / 12), stream(6))
        assert min(p_values(other, min(rate, 1 / 12), n, 300)) < LEVEL


def test_stretches_of_few_coins_have_the_same_law(monkeypatch):
    monkeypatch.setattr(skips, "_HEADS", 20)
    check_sampler(lambda words: PoissonSampler(0.1, words))


# --- edges
# ------


def test_the_first_and_the_last_record_can_be_drawn():
    assert draw(0.125, [2**64 - 1, 0], 5) == [0]
    between = [survival(0.125, k, 1)[0] for k in (4, 5)]  # words of a gap of 4
    assert draw(0.125, [between[0] - 1, 2**64 - 1], 5) == [4] == draw(0.125, [between[1]], 5)
    assert draw(0.125, [between[1] - 1], 5) == []


def test_a_stretch_goes_on_after_its_first_words():
    """Gaps of 0 for more words than were expected: every record is drawn, once."""
    tape = Tape([2**64 - 1] * 1000)
    assert PoissonSampler(0.125, tape).draw(300).tolist() == list(range(300))
    assert len(tape.first) > 600


@pytest.mark.parametrize("rate", TINY)
def test_nothing_is_drawn_at_tiny_rates(rate):
    assert PoissonSampler(rate, stream()).draw(2**50).tolist() == []
    assert draw(rate, [0], 10**8) == []  # U < 2⁻⁶⁴ is far below (1−rate)ⁿ


@pytest.mark.parametrize("rate", [2.0**-60 + 2.0**-100, 2.0**-70, 1e-9, 2.0**-1000])
def test_a_tiny_rate_is_compared_to_its_last_digit(rate):
    """The first record is drawn if and only if U ≥ 1 − rate."""
    first, *digits, last = np.trim_zeros(survival(rate, 1, 17), "b")
    assert draw(rate, [first], 1, [*digits, last]) == [0]
    assert draw(rate, [first], 1, [*digits, last - 1]) == []


def test_more_records_than_float64_can_count():
    drawn = PoissonSampler(2.0**-50, stream(7)).draw(2**55)
    assert drawn.dtype == np.int64 and 5 < len(drawn) < 80  # 32 expected: 1e-7 outside
    assert bool((np.diff(drawn) > 0).all()) and 2**48 < drawn[-1] < 2**55


def peak(sampler, n):
    sampler.draw(n)  # numpy and the cipher keep what they allocate first
    tracemalloc.start()
    drawn = sampler.draw(n)
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return size, drawn.nbytes


@pytest.mark.parametrize("n", [10**8, 10**10])
def test_a_draw_takes_a_megabyte_and_thousands_of_words_whatever_the_number_of_records(n):
    capacity = TruncatedPoisson(4096 / n, 5000, n)
    for make in (
        lambda words: PoissonSampler(4096 / n, words),
        lambda words: TruncatedPoissonSampler(capacity, words),
    ):
        assert peak(make(words := stream()), n)[0] <= 10**6
        assert words.taken < 10_000  # of two draws


def test_large_samples_take_memory_for_themselves_only():
    size, own = peak(PoissonSampler(0.05, stream()), 10**7)
    assert size < 2.1 * own + 10**6


def test_more_common_coins_have_a_word_each():
    words = stream(8).words(1000)
    rate = math.nextafter(1 / 8, 1)
    expected = np.flatnonzero(words < np.uint64(int(Fraction(rate) * 2**64)))
    assert PoissonSampler(rate, stream(8)).draw(1000).tolist() == expected.tolist()
