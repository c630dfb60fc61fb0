"""From events to pairs."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from dpfy.accounting.dominating_pairs import Pair, coarsened
from dpfy.accounting.to_pairs import canonical, noise_multiplier
from dpfy.errors import UnsupportedEvent
from dpfy.ledger.events import (
    Event,
    NonPrivate,
    Poisson,
    Policy,
    RecordedQuery,
    Repeated,
    Sampled,
    SumQuery,
)

ADD_REMOVE = "add_or_remove_one"


def step(*queries, rate=0.1, **kwargs):
    return Sampled(Poisson(rate), queries or (SumQuery(1.0, 1.0),), **kwargs)


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=5))
def test_queries_collapse_to_the_root_of_summed_squares_and_never_upwards(pairs):
    got = noise_multiplier([SumQuery(bound, noise) for bound, noise in pairs])
    exact = math.fsum((bound / noise) ** 2 for bound, noise in pairs) ** -0.5
    assert got == pytest.approx(exact, rel=1e-12)
    assert got <= exact * (1 + 1e-15)


def test_a_unit_bound_keeps_the_noise_multiplier_exactly():
    assert noise_multiplier([SumQuery(1.0, 1.1)]) == 1.1


def test_no_noise_and_no_bound():
    assert noise_multiplier([SumQuery(1.0, 1.0), SumQuery(0.5, 0.0)]) == 0.0
    assert noise_multiplier([SumQuery(0.0, 0.0)]) == math.inf
    assert noise_multiplier([]) == math.inf


def test_equal_steps_are_counted_together_wherever_they_occur():
    a, b = step(), step(SumQuery(1.0, 2.0))
    got = canonical((Repeated(a, 3), Repeated(b, 2), Repeated(a, 4)), "pld", ADD_REMOVE)
    assert got.pairs == ((Pair(0.1, 1.0), 7), (Pair(0.1, 2.0), 2))
    assert got.steps == 9


def test_free_steps_count_but_leave_no_pair():
    got = canonical(
        (Repeated(step(rate=0.0), 5), Repeated(step(SumQuery(0.0, 1.0)), 2)), "pld", ADD_REMOVE
    )
    assert got.pairs == () and got.steps == 7


def test_numerical_delta_adds_up_over_repetitions():
    runs = (Repeated(step(numerical_delta=1e-9), 1000), Repeated(step(numerical_delta=1e-8), 10))
    assert canonical(runs, "pld", ADD_REMOVE).numerical_delta == pytest.approx(1.1e-6)
    assert canonical(runs, "pld", ADD_REMOVE).numerical_delta >= 1.1e-6


def test_non_private_is_noticed_unless_it_never_happened():
    assert canonical((Repeated(NonPrivate("x"), 1),), "pld", ADD_REMOVE).non_private
    assert not canonical((Repeated(NonPrivate("x"), 0),), "pld", ADD_REMOVE).non_private


def test_replacing_opposes_the_two_records():
    assert (
        canonical((Repeated(step(), 1),), "pld", "replace_one").pairs[0][0].neighbours == "opposed"
    )


@dataclass(frozen=True)
class Shuffled(Policy, tag="test_shuffled"):
    rate: float


@dataclass(frozen=True)
class Median(RecordedQuery, tag="test_median"):
    stddev: float


@dataclass(frozen=True)
class Rumour(Event, tag="test_rumour"):
    text: str


@pytest.mark.parametrize(
    ("event", "method", "relation", "words"),
    [
        (step(adaptive=True), "pld", ADD_REMOVE, ["adaptive", "filter"]),
        (
            Sampled(Shuffled(0.1), (SumQuery(1.0, 1.0),)),
            "pld",
            ADD_REMOVE,
            ["test_shuffled", ADD_REMOVE],
        ),
        (Sampled(Poisson(0.1), (Median(1.0),)), "pld", ADD_REMOVE, ["test_median"]),
        (Rumour("x"), "rdp", "zero_out", ["test_rumour", "zero_out"]),
        (step(), "rdp", "replace_one", ["poisson", "replace_one", "'pld'"]),
    ],
)
def test_what_has_no_rule_is_refused_by_name(event, method, relation, words):
    with pytest.raises(UnsupportedEvent) as caught:
        canonical((Repeated(event, 1),), method, relation)
    assert all(word in str(caught.value) for word in words)


@given(
    st.lists(
        st.tuples(st.floats(1e-4, 1), st.floats(0.3, 10)), min_size=1, max_size=60, unique=True
    ),
    st.integers(1, 12),
)
def test_coarsening_keeps_the_steps_and_moves_every_pair_to_the_asked_side(values, limit):
    pairs = tuple(sorted((Pair(rate, noise), 2) for rate, noise in values))
    up, down = coarsened(pairs, limit, pessimistic=True), coarsened(pairs, limit, pessimistic=False)
    for merged in (up, down):
        assert len(merged) <= limit and sum(times for _, times in merged) == 2 * len(pairs)
    assert min(p.noise_multiplier for p, _ in up) == min(p.noise_multiplier for p, _ in pairs)
    for pair, _ in pairs:
        assert any(
            p.rate >= pair.rate and p.noise_multiplier <= pair.noise_multiplier for p, _ in up
        )
        assert any(
            p.rate <= pair.rate and p.noise_multiplier >= pair.noise_multiplier for p, _ in down
        )
