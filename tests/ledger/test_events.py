import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from dpfy.errors import InvalidArgument
from dpfy.ledger.events import (
    BallsInBins,
    Cyclic,
    Event,
    Fact,
    FixedSize,
    NonPrivate,
    Poisson,
    Policy,
    Repeated,
    Sampled,
    Shuffled,
    SumQuery,
    TruncatedPoisson,
    canonical_json,
    run_lengths,
)

scales = st.floats(0, 1e300)
queries = st.builds(SumQuery, scales, scales, st.text(max_size=5))
few, many = st.integers(1, 40), st.integers(40, 10**9)
policies = st.one_of(
    st.builds(Poisson, st.floats(0, 1)),
    st.builds(TruncatedPoisson, st.floats(0, 1), few, many),
    *(st.builds(policy, few, many) for policy in (FixedSize, Shuffled, Cyclic, BallsInBins)),
)
sampled = st.builds(
    Sampled, policies, st.lists(queries, max_size=3).map(tuple), st.floats(0, 1), st.booleans()
)
events = st.one_of(sampled, st.builds(NonPrivate, st.text(max_size=10)))


@given(events)
def test_json_round_trip_is_exact(event):
    assert Event.from_json(json.loads(canonical_json(event.to_json()))) == event


@given(events, events)
def test_addresses_are_equal_exactly_for_equal_facts(one, other):
    assert (one.address == other.address) == (one.to_json() == other.to_json())
    assert Event.from_json(one.to_json()).address == one.address


@pytest.mark.parametrize(
    "change",
    [
        {"rate": 0.02},
        {"l2_bound": 2.0},
        {"stddev": 1.0},
        {"name": "count"},
        {"numerical_delta": 1e-9},
        {"adaptive": True},
    ],
)
def test_every_field_moves_the_address(change):
    def build(
        rate=0.01, l2_bound=1.0, stddev=1.1, name="gradient", numerical_delta=0.0, adaptive=False
    ):
        return Sampled(
            Poisson(rate), (SumQuery(l2_bound, stddev, name),), numerical_delta, adaptive
        )

    assert build(**change).address != build().address


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "poisson",
        {},
        {"type": "gauss"},
        {"type": "poisson"},
        {"type": "poisson", "rate": 0.1, "q": 1},
        {"type": "poisson", "rate": 1.5},
        {"type": "poisson", "rate": "0.1"},
        {"type": "poisson", "rate": float("nan")},
        {"type": "fixed_size", "size": 3},
        {"type": "fixed_size", "size": 3, "records": 2},
        {"type": "fixed_size", "size": 3.0, "records": 5},
        {"type": "truncated_poisson", "rate": 0.1, "capacity": 6, "records": 5},
        {"type": "shuffled", "batch_size": 0, "records": 5},
        {"type": "balls_in_bins", "bins": 2, "records": 5, "rate": 0.5},
        {"type": "sum", "l2_bound": -1.0, "stddev": 1.0, "name": "x"},
    ],
)
def test_unknown_types_fields_and_domains_are_refused(value):
    with pytest.raises(InvalidArgument, match="Expected"):
        Fact.from_json(value)


@pytest.mark.parametrize(
    "policy, rate, steps",
    [
        (Poisson(0.3), 0.3, 1),
        (FixedSize(3, 12), 0.25, 1),
        (TruncatedPoisson(0.5, 2, 12), 0.5, 1),
        (Shuffled(5, 12), 5 / 12, 3),
        (Shuffled(4, 12), 4 / 12, 3),
        (Cyclic(12, 12), 1.0, 1),
        (BallsInBins(7, 12), 1 / 7, 7),
    ],
)
def test_a_policy_knows_its_rate_and_how_many_steps_an_event_pays_for(policy, rate, steps):
    assert (policy.rate, policy.steps_per_event) == (rate, steps)
    assert Policy.from_json(policy.to_json()) == policy


def test_policies_of_equal_numbers_are_different_facts():
    made = [policy(3, 12) for policy in (FixedSize, Shuffled, Cyclic, BallsInBins)]
    assert len({policy.address for policy in made}) == 4
    assert Shuffled(3, 12) != Cyclic(3, 12)


def test_a_fact_of_another_kind_is_refused():
    with pytest.raises(InvalidArgument, match="Expected a Policy"):
        Policy.from_json(NonPrivate("x").to_json())
    with pytest.raises(InvalidArgument, match="one policy"):
        Sampled.from_json(
            {**Sampled(Poisson(0.1), ()).to_json(), "policy": SumQuery(1.0, 1.0).to_json()}
        )


@given(
    st.lists(
        st.builds(Repeated, st.sampled_from([NonPrivate("a"), NonPrivate("b")]), st.integers(0, 3))
    )
)
def test_run_lengths_keep_the_sequence_and_merge_all_neighbours(runs):
    merged = run_lengths(runs)

    def flatten(items):
        return [run.event for run in items for _ in range(run.times)]

    assert flatten(merged) == flatten(runs)
    assert all(run.times for run in merged)
    assert all(one.event != two.event for one, two in pairwise(merged))


def test_repeated_counts_a_bare_event_once():
    run = Repeated(NonPrivate("x"), 7)
    assert Repeated.from_json(run.to_json()) == run
    assert Repeated.from_json(run.event.to_json()) == Repeated(run.event, 1)
    with pytest.raises(InvalidArgument, match="times"):
        Repeated(run.event, -1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_canonical_json_has_no_nan(value):
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(value)
