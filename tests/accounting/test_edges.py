"""Extreme declarations: never NaN, never negative, never a silent zero."""

import itertools
import math

import pytest
from hypothesis import given, settings, strategies as st

from dpfy.accounting import account
from dpfy.accounting.dominating_pairs import Pair
from dpfy.accounting.pld import accountant as pld, closed_forms
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery

EXTREMES = list(itertools.product([0.0, 1e-3, 1e6], [0.0, 1e-9, 1.0], [0, 1, 10**7]))


def run(rate, noise, steps):
    return Repeated(Sampled(Poisson(rate), (SumQuery(1.0, noise),)), steps)


@pytest.mark.parametrize(
    ("method", "relation"),
    [("pld", "add_or_remove_one"), ("pld", "replace_one"), ("rdp", "add_or_remove_one")],
)
@pytest.mark.parametrize(("noise", "rate", "steps"), EXTREMES)
def test_extremes_give_an_ordered_bracket(noise, rate, steps, method, relation):
    guarantee = account(run(rate, noise, steps), method, relation)
    lower, upper = guarantee.epsilon(1e-5)
    assert 0 <= lower <= upper
    low, high = guarantee.delta(1.0)
    assert 0 <= low <= high <= 1
    if rate == 0 or steps == 0:
        assert upper == high == 0
    elif noise == 0:
        assert upper == math.inf
    else:
        assert upper < math.inf
        assert guarantee.delta(upper).upper <= 1.001e-5
        assert guarantee.delta(lower * 0.999).upper >= 1e-5 or lower == 0


def test_zero_is_claimed_only_if_the_total_variation_allows_it():
    mu = 1e-3 * math.sqrt(1000)
    tight = closed_forms.delta(mu, 0.0)
    assert account(run(1.0, 1e3, 1000)).epsilon(tight * 1.001).upper == 0
    assert account(run(1.0, 1e3, 1000)).epsilon(tight * 0.999).upper > 0


@given(
    rate=st.floats(1e-5, 1),
    noise=st.floats(0.05, 50),
    steps=st.integers(1, 1000),
    log_delta=st.floats(-9, -1),
)
@settings(max_examples=30)
def test_random_runs_are_bracketed_and_never_above_what_counting_gives(
    rate, noise, steps, log_delta
):
    delta = 10**log_delta
    pairs = ((Pair(rate, noise), steps),)
    lower, upper = pld.epsilon_lower(pairs, delta), pld.epsilon_upper(pairs, delta).value
    assert 0 <= lower <= upper * (1 + 1e-9)
    assert (
        upper <= closed_forms.epsilon(math.sqrt(steps) / noise, delta).upper * 1.001 + 1e-6
    )  # amplification never hurts
    assert pld.delta_lower(pairs, upper) <= delta
    assert (
        pld.delta_upper(pairs, upper * 1.003).value <= delta * (1 + 1e-6) or upper > 1.001 * lower
    )
    assert pld.delta_upper(pairs, lower * 0.999).value >= delta or lower == 0


@pytest.mark.parametrize(
    ("mu", "delta"), list(itertools.product([1e-6, 1e-2, 1, 30, 3e6], [1e-300, 1e-12, 1e-5, 0.3]))
)
def test_gaussian_closed_form_inverts_itself(mu, delta):
    lower, upper = closed_forms.epsilon(mu, delta)
    assert lower <= upper
    if upper > 0:
        assert closed_forms.log_delta(mu, upper) <= math.log(delta) + 1e-6
        assert closed_forms.log_delta(mu, lower * (1 - 1e-9)) >= math.log(delta) - 1e-6


def test_four_hundred_kinds_of_steps_cost_between_the_cheapest_and_the_dearest():
    events = [Sampled(Poisson(0.01), (SumQuery(1.0, 2.0 * 0.35 ** (t / 399)),)) for t in range(400)]
    guarantee = account(events)
    lower, upper = guarantee.epsilon(1e-5)
    assert 0 < lower < upper < 1.0011 * lower
    assert (
        account(run(0.01, 2.0, 400)).epsilon(1e-5).upper
        < upper
        < account(run(0.01, 0.7, 400)).epsilon(1e-5).upper
    )


@pytest.mark.parametrize(("delta", "truth"), [(1e-15, 11.760), (1e-50, 24.445)])
def test_tiny_delta_keeps_its_digits(delta, truth):
    lower, upper = account(run(0.01, 1.0, 10_000)).epsilon(delta)
    assert lower <= truth * 1.0005 and truth * 0.9995 <= upper <= 1.001 * lower


def test_where_float64_ends_the_note_names_the_bound_that_is_used():
    assert "Rényi" in account(run(0.01, 1.0, 10_000)).note(1e-290)
    assert "participations" in account(run(1e-6, 0.01, 100)).note(1e-5)
