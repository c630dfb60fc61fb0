"""One guarantee per group: rates and bounds of their own."""

import pytest

from dpfy.accounting import ZcdpFilter, account
from dpfy.accounting.individual import (
    Group,
    account_groups,
    calibrate_group_bounds,
    calibrate_group_rates,
)
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import (
    Cyclic,
    FixedSize,
    LaplaceSum,
    NonPrivate,
    Poisson,
    Repeated,
    Sampled,
    SumQuery,
)
from dpfy.ledger.individual import Individual
from dpfy.ledger.one_shot import RandomizedAnswer

STEPS, DELTA, SHARES, EPSILONS = 3495, 1e-5, (0.34, 0.43, 0.23), (1.0, 2.0, 3.0)
RATE = 512 / 60_000


def run(noise, rate=RATE, steps=STEPS, bound=1.0):
    return Repeated(Sampled(Poisson(rate), (SumQuery(bound, noise),)), steps)


def test_published_rates_cost_what_was_published():
    """Rates .00481, .00906, .01306 at noise 1.368 cost 1, 2 and 3 by Rényi accounting, and less in
    truth.
    """
    groups = {
        name: Group(rate=rate)
        for name, rate in zip("abc", (0.00481, 0.00906, 0.01306), strict=True)
    }
    claims = [found.claim(DELTA) for found in account_groups(run(1.368), groups, "rdp").values()]
    assert claims == pytest.approx([1.001, 2.001, 3.001], abs=3e-3)
    printed = {str(rate): Group(rate=rate) for rate in (0.005, 0.009, 0.013)}
    tight = [found.claim(DELTA) for found in account_groups(run(1.368), printed).values()]
    assert tight == pytest.approx([0.953, 1.822, 2.747], abs=1e-2)


def test_published_bounds_cost_what_was_published():
    noises = (2.190, 1.310, 1.032)
    scale = sum(share * noise for share, noise in zip(SHARES, noises, strict=True))
    assert scale == pytest.approx(1.5451, abs=2e-3)
    groups = {str(noise): Group(bound=scale / noise) for noise in noises}
    claims = [found.claim(DELTA) for found in account_groups(run(scale), groups, "rdp").values()]
    assert claims == pytest.approx(EPSILONS, abs=5e-3)


def test_rates_are_calibrated_to_each_group():
    noise, rates = calibrate_group_rates(
        epsilons=(1.0, 2.0), shares=(1, 1), delta=DELTA, rate=0.05, steps=100
    )
    assert sum(rates) / 2 == pytest.approx(0.05, rel=1e-3) and rates[0] < 0.05 < rates[1]
    found = account_groups(run(noise, 0.05, 100), {str(rate): Group(rate=rate) for rate in rates})
    assert all(
        0.999 * epsilon < one.claim(DELTA) <= epsilon
        for one, epsilon in zip(found.values(), (1.0, 2.0), strict=True)
    )
    alone = calibrate_group_rates(epsilons=(1.0,), shares=(3,), delta=DELTA, rate=0.05, steps=100)
    assert alone[1] == pytest.approx((0.05,), rel=1e-3)


@pytest.mark.slow
def test_calibrated_rates_are_the_published_ones():
    noise, rates = calibrate_group_rates(
        epsilons=EPSILONS, shares=SHARES, delta=DELTA, rate=RATE, steps=STEPS, method="rdp"
    )
    assert noise == pytest.approx(1.368, abs=3e-3) and rates == pytest.approx(
        (0.00481, 0.00906, 0.01306), abs=3e-5
    )
    assert sum(share * rate for share, rate in zip(SHARES, rates, strict=True)) == pytest.approx(
        RATE, rel=1e-4
    )
    found = account_groups(run(noise), {str(rate): Group(rate=rate) for rate in rates}, "rdp")
    assert all(
        one.claim(DELTA) <= epsilon for one, epsilon in zip(found.values(), EPSILONS, strict=True)
    )


def test_bounds_are_calibrated_to_each_group_and_keep_their_mean():
    noise, bounds = calibrate_group_bounds(
        epsilons=EPSILONS, shares=SHARES, delta=DELTA, rate=RATE, steps=STEPS, method="rdp"
    )
    assert noise == pytest.approx(1.4155, abs=3e-3)
    assert sum(share * bound for share, bound in zip(SHARES, bounds, strict=True)) == pytest.approx(
        1
    )
    assert [0.2 * bound for bound in bounds] == pytest.approx([0.129, 0.216, 0.274], abs=1e-3)
    found = account_groups(run(noise), {str(bound): Group(bound=bound) for bound in bounds}, "rdp")
    assert all(
        one.claim(DELTA) <= epsilon * (1 + 1e-9)
        for one, epsilon in zip(found.values(), EPSILONS, strict=True)
    )


def test_a_group_like_all_others_has_the_guarantee_of_all():
    steps = run(1.0, 0.01, 50)
    same, none = account_groups(steps, {"same": Group(), "none": Group(bound=0.0)}).values()
    assert same.claim(DELTA) == account(steps).claim(DELTA) and none.claim(DELTA) == 0
    half = account_groups(run(1.0, 0.01, 50, bound=2.0), {"half": Group(bound=0.5)})["half"]
    assert half.claim(DELTA) == pytest.approx(account(steps).claim(DELTA), rel=1e-6)
    epochs = Repeated(Sampled(Cyclic(10, 100), (SumQuery(1.0, 4.0),)), 2)
    bounded = account_groups(epochs, {"a": Group(bound=0.5)}, relation="zero_out")["a"]
    assert bounded.claim(DELTA) < 0.6 * account(epochs, relation="zero_out").claim(DELTA)


def test_a_bound_of_a_group_does_not_shrink_the_records_that_take_its_place():
    """One of two records is drawn, the other is ten noises away: what is seen near the group's
    record then tells of no other, and costs what it would cost without sampling.
    """
    step, group = Sampled(FixedSize(1, 2), (SumQuery(1.0, 0.1),)), {"a": Group(bound=0.1)}
    seen = account(Sampled(Poisson(1.0), (SumQuery(0.1, 0.1),)), relation="replace_one")
    drawn = Sampled(FixedSize(1, 2), (SumQuery(0.1, 0.1),))  # as if all records had that bound
    assert account(drawn, relation="replace_one").delta(3.0).upper < 0.5 * seen.delta(3.0).lower
    with pytest.raises(UnsupportedEvent, match="whose bounds are not the group's"):
        account_groups(step, group, relation="replace_one")


def test_other_noise_is_accounted_by_the_bound_of_the_group():
    step = Sampled(Poisson(0.1), (LaplaceSum(1.0, 1.0),))
    half = Sampled(Poisson(0.1), (LaplaceSum(0.5, 1.0),))
    found = account_groups(step, {"a": Group(bound=0.5)})["a"]
    assert found.claim(DELTA) == account(half).claim(DELTA)


def test_what_has_no_groups_is_refused():
    with pytest.raises(UnsupportedEvent, match="Poisson"):
        account_groups(
            Sampled(Cyclic(10, 100), (SumQuery(1.0, 1.0),)),
            {"a": Group(rate=0.1)},
            relation="zero_out",
        )
    with pytest.raises(UnsupportedEvent, match="randomized_response"):
        answer = Sampled(Poisson(0.1), (RandomizedAnswer(0.75),))
        account_groups(answer, {"a": Group(bound=0.5)})
    with pytest.raises(UnsupportedEvent, match="sampled steps, not for 'non_private'"):
        account_groups(NonPrivate("a test"), {"a": Group()})
    named = Individual(("strict", "open"), (0.1, 0.2), (1.0, 1.0), (0.5, 0.5))
    with pytest.raises(UnsupportedEvent, match="groups of their own: strict, open"):
        account_groups(Sampled(named, (SumQuery(1.0, 1.0),)), {"a": Group()})
    rule = ZcdpFilter(1.0)
    with (
        Ledger.in_memory(rule.guard(), Header(filter=rule.to_json())) as ledger,
        pytest.raises(UnsupportedEvent, match="every record"),
    ):
        account_groups(ledger, {"a": Group()})
    with pytest.raises(InvalidArgument, match="one share for each"):
        calibrate_group_bounds(epsilons=(1.0,), shares=(0.5, 0.5), delta=DELTA, rate=0.1, steps=5)
    with pytest.raises(InvalidArgument):
        Group(rate=1.5)
