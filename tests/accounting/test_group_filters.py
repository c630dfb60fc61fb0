"""A filter with a limit for each group: no group's own filter is ever exceeded."""

import pytest
from hypothesis import given, settings, strategies as st

from dpfy.accounting import (
    GaussianFilter,
    GroupFilterGuarantee,
    GroupGaussianFilter,
    account,
    odometer,
)
from dpfy.accounting.filters import Filter
from dpfy.errors import BudgetExhausted, InvalidArgument, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.reporting import report

NAMES = ("strict", "open")
RULE = GroupGaussianFilter(NAMES, (0.5, 1.5))


def step(noise: float, bounds: tuple[float, float] = (1.0, 2.0)) -> Sampled:
    policy = Individual(NAMES, (1.0, 1.0), bounds, (0.5, 0.5))
    return Sampled(policy, (SumQuery(1.0, noise),), adaptive=True)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(1, 20), st.floats(0.1, 3), st.floats(0.1, 3)), max_size=12))
def test_what_is_admitted_stays_within_the_limit_of_every_group(steps):
    guard, spent = RULE.guard(), [0.0, 0.0]
    for noise, *bounds in steps:
        after = [s + (b / noise) ** 2 for s, b in zip(spent, bounds, strict=True)]
        limits = [mu**2 for mu in RULE.mus]
        event = step(noise, tuple(bounds))
        if any(a > limit * (1 + 1e-9) for a, limit in zip(after, limits, strict=True)):
            with pytest.raises(BudgetExhausted):
                guard.admit(event, 1)
        elif all(a < limit * (1 - 1e-9) for a, limit in zip(after, limits, strict=True)):
            guard.admit(event, 1)
            guard.record(event, 1)
            spent = after
    shares = (s / mu**2 for s, mu in zip(spent, RULE.mus, strict=True))
    assert guard.used == pytest.approx(max(shares), rel=1e-6, abs=1e-12)


def test_the_first_group_to_be_exhausted_is_named():
    with pytest.raises(BudgetExhausted, match="Group 'strict'"):
        RULE.guard().admit(step(1.0), 1)
    with pytest.raises(BudgetExhausted, match="Group 'open'"):
        RULE.guard().admit(step(4.0, (1.0, 7.0)), 1)


def test_a_ledger_is_accounted_by_the_limit_of_each_group():
    with Ledger.in_memory(RULE.guard(), Header(filter=RULE.to_json())) as ledger:
        ledger.reserve(step(4.0))
        ledger.reserve(Sampled(Poisson(1.0), (SumQuery(1.0, 9.0),), adaptive=True))
        with pytest.raises(BudgetExhausted):
            ledger.reserve(step(2.0))
    found = account(ledger)
    assert isinstance(found, GroupFilterGuarantee) and found.steps == 2
    for name, mu in zip(NAMES, RULE.mus, strict=True):
        alone = GaussianFilter(mu).profile("pld", found.relation, found.accuracy)
        assert found.groups[name].claim(1e-5) == alone.epsilon(1e-5).upper
    assert found.claim(1e-5) == found.groups["open"].claim(1e-5)
    assert odometer(ledger, 1e-5).used == pytest.approx((1 / 16 + 1 / 81) / 0.25)
    written = report(ledger, 1e-5)
    assert [group.name for group in written.costs.groups] == list(NAMES)


def test_a_ledger_that_another_guard_kept_is_refused():
    with Ledger.in_memory(header=Header(filter=RULE.to_json())) as ledger:
        ledger.reserve(step(4.0))
    with pytest.raises(UnsupportedEvent, match="guarded by 'unguarded'"):
        account(ledger)


def test_groups_without_a_limit_and_other_noise_are_refused():
    others = Individual(("strict", "unknown"), (1.0, 1.0), (1.0, 1.0), (0.5, 0.5))
    with pytest.raises(InvalidArgument, match="'open'"):
        RULE.guard().admit(Sampled(others, (SumQuery(1.0, 9.0),)), 1)
    for names, mus in (((), ()), (("a", "a"), (1.0, 1.0)), (("a",), (1.0, 2.0)), (("a",), (0.0,))):
        with pytest.raises(InvalidArgument):
            GroupGaussianFilter(names, mus)
    assert Filter.from_json(RULE.to_json()) == RULE
    with pytest.raises(BudgetExhausted):
        RULE.guard().admit(step(0.0), 1)  # without noise
