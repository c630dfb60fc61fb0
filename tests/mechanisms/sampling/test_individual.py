"""Samplers of groups: each record is drawn at its own group's rate, and by no other coin."""

import numpy as np
import pytest

from dpfy.errors import InvalidArgument
from dpfy.ledger.individual import Individual
from dpfy.mechanisms.sampling import IndividualSampler, PoissonSampler, sampler_for
from dpfy.noise.random_stream import SecureStream
from dpfy.testing import check_sampler

NAMES, RATES = ("strict", "usual", "open"), (0.03, 0.1, 0.4)
NUMBERS = np.arange(600) % 4 - 1  # no group, strict, usual, open, in turns


def policy(rates=RATES):
    return Individual(NAMES, rates, (1.0,) * 3, (0.34, 0.43, 0.23))


def stream(key=1):
    return SecureStream(insecure_test_key=key, purpose="sampling")


def test_every_group_is_drawn_at_its_own_rate_and_independently():
    check_sampler(lambda words: sampler_for(policy(), words, NUMBERS), NUMBERS)


def test_rates_of_zero_and_one_draw_nobody_and_everybody():
    sampler = IndividualSampler(policy((0.0, 1.0, 0.5)), NUMBERS, stream())
    for _ in range(20):
        drawn = NUMBERS[sampler.draw(600)]
        assert (drawn == 1).sum() == 150 and not (drawn <= 0).any()


@pytest.mark.parametrize("wrong", [(0.03 * 2 / 3, 0.1, 0.4), (0.03 * 1.5, 0.1, 0.4)])
def test_the_suite_notices_a_wrong_rate_of_one_group(wrong):
    class Wrong(IndividualSampler):
        policy = property(lambda self: policy())

    with pytest.raises(AssertionError, match="group 'strict': records are included at rate"):
        check_sampler(lambda words: Wrong(policy(wrong), NUMBERS, words), NUMBERS)


def test_the_suite_notices_groups_that_are_swapped_and_records_of_no_group():
    for given in (np.where(NUMBERS < 0, NUMBERS, 2 - NUMBERS), np.where(NUMBERS < 0, 0, NUMBERS)):
        with pytest.raises(AssertionError):
            check_sampler(lambda words, g=given: IndividualSampler(policy(), g, words), NUMBERS)


def test_the_suite_notices_a_coin_that_two_groups_share():
    class Shared(IndividualSampler):
        def draw(self, n):
            heads = stream(int(super().draw(n).sum())).words(150) / 2.0**64  # one for each place
            rates = np.repeat(heads[:, None], 4, 1) < np.array([0.0, *RATES])
            return np.flatnonzero(rates.ravel())

    with pytest.raises(AssertionError, match="records 1 apart is correlated"):
        check_sampler(lambda words: Shared(policy(), NUMBERS, words), NUMBERS)


def test_one_group_of_everybody_draws_what_poisson_draws():
    alone = Individual(("all",), (0.2,), (1.0,), (1.0,))
    drawn = IndividualSampler(alone, np.zeros(500, dtype=np.int64), stream()).draw(500)
    assert drawn.tolist() == PoissonSampler(0.2, stream()).draw(500).tolist()


def test_empty_groups_and_empty_data_draw_nothing():
    assert not len(IndividualSampler(policy(), np.full(50, -1), stream()).draw(50))
    assert not len(IndividualSampler(policy(), np.empty(0, dtype=np.int64), stream()).draw(0))
    some = IndividualSampler(policy((1.0, 1.0, 1.0)), np.zeros(5, dtype=np.int64), stream())
    assert some.draw(5).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("numbers", [np.array([0, 3]), np.array([-2, 0]), np.zeros((2, 2))])
def test_a_number_that_is_no_group_is_refused(numbers):
    with pytest.raises(InvalidArgument, match="number from -1 to 2"):
        IndividualSampler(policy(), numbers, stream())


def test_a_policy_with_groups_needs_to_know_who_is_in_them():
    with pytest.raises(InvalidArgument, match="nothing says who is in them"):
        sampler_for(policy(), stream())
