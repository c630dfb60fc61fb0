"""Samples, partitions and choices for groups: declarations, events, and who is asked."""

import math

import numpy as np
import pytest

from dpfy.accounting import account
from dpfy.errors import InvalidArgument, LedgerMismatch, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Event, Sampled
from dpfy.mechanisms.one_shot import (
    Budgets,
    DiscreteGaussian,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PermuteAndFlip,
    PersonalisedChoice,
    PersonalisedParts,
    PersonalisedSample,
    RandomizedResponse,
    SparseVector,
    release,
    release_personalised,
)
from dpfy.noise import SecureStream

BUDGETS = Budgets.of({"strict": (0.4, 0.5), "usual": (1.0, 0.3), "open": (2.5, 0.2)})
BINS = (("strict", "usual"), ("open",))
GROUP_OF = ["open", "strict", "elsewhere", "usual", None, "strict"]


def book():
    return Ledger.in_memory(header=Header(key_source="insecure test key"))


def streams(key):
    return SecureStream(key), SecureStream(key, "sampling")


@pytest.mark.parametrize(
    "mechanism",
    [
        Laplace.with_epsilon(2.5),
        ExponentialMechanism.with_epsilon(2.5),
        PermuteAndFlip.with_epsilon(2.5),
        SparseVector.with_epsilon(2.5, threshold=3.0),
        RandomizedResponse.with_epsilon(2.5),
    ],
)
def test_every_pure_mechanism_gives_each_group_its_own_epsilon(mechanism):
    event = PersonalisedSample(mechanism, BUDGETS).event
    assert Event.from_json(event.to_json()) == event
    for name, epsilon in zip(BUDGETS.names, BUDGETS.epsilons, strict=True):
        claim = account(event).groups[name].claim(1e-15)
        assert 0.99 * epsilon <= claim <= epsilon * (1 + 1e-9)


def test_an_approximate_mechanism_has_the_rate_in_its_delta():
    for mechanism in (Gaussian(1.0, 2.0), DiscreteGaussian(1.0, 2.0)):
        whole = account(mechanism.event)
        found = account(PersonalisedSample(mechanism, BUDGETS).event).groups
        rates = BUDGETS.rates(2.5)
        for name, epsilon, rate in zip(BUDGETS.names, BUDGETS.epsilons, rates, strict=True):
            assert found[name].delta(epsilon).upper <= rate * whole.delta(2.5).upper * (1 + 1e-3)


def test_a_partition_gives_each_group_the_epsilon_of_its_bin():
    mechanisms = Laplace.with_epsilon(0.4), Laplace.with_epsilon(2.5)
    event = PersonalisedParts(mechanisms, BUDGETS, BINS).event
    assert Event.from_json(event.to_json()) == event
    found = account(event).groups
    for name, epsilon in (("strict", 0.4), ("usual", 0.4), ("open", 2.5)):
        alone = account(Laplace.with_epsilon(epsilon).event)
        assert found[name].claim(1e-9) == pytest.approx(alone.claim(1e-9), rel=2e-3)
        assert found[name].claim(1e-15) <= epsilon * (1 + 1e-6)


def test_a_choice_gives_each_group_a_range_of_its_own_epsilon():
    choice = PersonalisedChoice(BUDGETS)
    for name, epsilon, bound in zip(BUDGETS.names, BUDGETS.epsilons, choice.bounds, strict=True):
        alone = account(ExponentialMechanism.with_epsilon(epsilon).event)
        own = account(choice.event).groups[name]
        assert epsilon * (1 - 1e-6) <= bound <= epsilon
        assert own.claim(1e-9) == pytest.approx(alone.claim(1e-9), rel=1e-4)


@pytest.mark.parametrize("epsilons", [(1.0, 1.0), (1e-9, 3.0), (0.1, 0.3), (1e-12, 1e6)])
def test_bounds_are_multiples_of_one_unit_and_never_above_a_budget(epsilons):
    choice = PersonalisedChoice(Budgets(("a", "b"), epsilons, (0.5, 0.5)))
    assert math.frexp(choice.unit)[0] == 0.5
    for bound, price, epsilon in zip(choice.bounds, choice.prices, epsilons, strict=True):
        assert bound == price * choice.unit <= epsilon and 1 <= price <= 2**31


def test_a_sample_asks_those_who_are_kept_and_nobody_else():
    """Rates of 1 for the open group, of which everyone is kept, and of (e^ε − 1)/(e^t − 1)."""
    sample, asked = PersonalisedSample(Laplace.with_epsilon(2.5), BUDGETS), []
    group_of = ["strict"] * 2000 + GROUP_OF

    def compute(indices):
        asked.append(indices)
        return 0.0

    with book() as ledger:
        release_personalised(sample, ledger, compute, group_of, *streams(1))
        release_personalised(sample, ledger, compute, group_of, *streams(2))
    first, second = asked
    names = np.array(group_of, dtype=object)
    assert 2000 in first and 2000 in second  # the open one
    assert set(names[first]) <= set(BUDGETS.names) and first.tolist() == sorted(set(first.tolist()))
    assert set(first.tolist()) != set(second.tolist())
    rate = math.expm1(0.4) / math.expm1(2.5)
    kept = (first < 2000).sum() + (second < 2000).sum()
    assert abs(kept - 4000 * rate) <= 5.4 * math.sqrt(4000 * rate * (1 - rate))


def test_a_partition_asks_each_bin_for_its_own_records():
    asked = []
    parts = PersonalisedParts((Laplace(1.0, 2.5), Laplace(1.0, 0.4)), BUDGETS, BINS)
    with book() as ledger:
        answers = release_personalised(
            parts, ledger, lambda kept: asked.append(kept.tolist()) or 7.0, GROUP_OF, *streams(1)
        )
        assert ledger.count == 1 and ledger.uses[0].event == parts.event
    assert asked == [[1, 3, 5], [0]] and len(answers) == 2
    assert answers[0] != answers[1]  # noise of their own


@pytest.mark.parametrize("group_of", [[], ["elsewhere"] * 3])
def test_nobody_to_ask_is_no_reason_to_stop(group_of):
    asked = []
    sample = PersonalisedSample(Laplace.with_epsilon(2.5), BUDGETS)
    with book() as ledger:
        release_personalised(
            sample, ledger, lambda kept: asked.append(len(kept)) or 0.0, group_of, *streams(1)
        )
    assert asked == [0]


def test_the_event_is_recorded_before_a_coin_is_flipped_or_a_record_is_read(monkeypatch):
    seen = []

    def compute(indices):
        seen.append(ledger.count)
        raise OSError("disk")

    sample = PersonalisedSample(Laplace.with_epsilon(2.5), BUDGETS)
    with book() as ledger:
        noise, coins = streams(1)
        flip = coins.words
        monkeypatch.setattr(coins, "words", lambda n: seen.append(ledger.count) or flip(n))
        with pytest.raises(OSError, match="disk"):
            release_personalised(sample, ledger, compute, ["strict"] * 9, noise, coins)
        assert ledger.count == 1 and set(seen) == {1} and len(seen) > 1


def test_streams_have_their_purpose_and_the_ledger_knows_their_key():
    sample = PersonalisedSample(Laplace.with_epsilon(2.5), BUDGETS)
    noise, coins = streams(1)
    with book() as ledger, pytest.raises(InvalidArgument, match="purpose='sampling'"):
        release_personalised(sample, ledger, len, GROUP_OF, noise, noise)
    with Ledger.in_memory() as ledger:
        with pytest.raises(LedgerMismatch, match="insecure test key"):
            release_personalised(sample, ledger, len, GROUP_OF, None, coins)
        assert ledger.count == 0


def test_a_partition_is_fixed_in_advance():
    parts = PersonalisedParts((Laplace(1.0, 2.5), Laplace(1.0, 0.4)), BUDGETS, BINS)
    with book() as ledger:
        with pytest.raises(InvalidArgument, match="cannot be adaptive"):
            release(parts, ledger, list, adaptive=True)
        assert ledger.count == 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PersonalisedSample(Laplace(1.0, 0.3), BUDGETS), "costs an epsilon of 3.33333"),
        (lambda: PersonalisedSample(Laplace(1.0, 1.0), BUDGETS, 0.9), "more than the threshold"),
        (lambda: PersonalisedSample(Laplace(1.0, 9.0), BUDGETS, 2.6), "threshold=2.6"),
        (lambda: PersonalisedSample(Laplace(1.0, 9.0), BUDGETS, [1.0]), "no event pays for"),
        (lambda: PersonalisedParts((Laplace(1.0, 9.0),), BUDGETS, BINS), "one mechanism for each"),
        (lambda: PersonalisedParts((Laplace(1.0, 9.0),), BUDGETS, BINS[:1]), "in one bin"),
        (
            lambda: PersonalisedParts((Laplace(1.0, 9.0),) * 3, BUDGETS, (*BINS, ("open",))),
            "in one bin",
        ),
        (
            lambda: PersonalisedParts((Laplace(1.0, 1.0), Laplace(1.0, 0.4)), BUDGETS, BINS),
            "epsilon of group 'strict'",
        ),
    ],
)
def test_a_wrong_declaration_is_refused(make, match):
    with pytest.raises(InvalidArgument, match=match):
        make()


def test_a_mechanism_that_has_groups_already_is_refused():
    class Nested:
        event = Sampled(BUDGETS.policy(), Laplace(1.0, 9.0).event.queries)

    with pytest.raises(UnsupportedEvent, match="once on all records, got Nested"):
        PersonalisedSample(Nested(), BUDGETS)
