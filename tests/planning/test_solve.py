"""Each of the five quantities, from the other four."""

import pytest

from dpfy.accounting import account
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.planning import solve

GIVEN = {"epsilon": 3.0, "delta": 1e-5, "noise_multiplier": 2.0, "rate": 0.02, "steps": 3000}


def claim(found):
    run = Repeated(
        Sampled(Poisson(found.rate), (SumQuery(1.0, found.noise_multiplier),)), found.steps
    )
    return account(run, relation=found.relation).claim(found.delta)


def without(name, **others):
    return {key: value for key, value in GIVEN.items() if key != name} | others


@pytest.mark.parametrize("name", GIVEN)
def test_the_open_quantity_is_filled_in_and_the_claim_is_the_accountants(name):
    # A solver that searched in the wrong direction, or returned the side of the bracket that
    # exceeds the budget.
    found = solve(**without(name))
    assert found.solved == name
    for given, value in without(name).items():
        assert getattr(found, given) == (
            value if given != "epsilon" else pytest.approx(value, rel=2e-3)
        )
    assert claim(found) <= 3.0 * (1 + 1e-12) or name in ("epsilon", "delta")
    if name not in ("delta",):
        assert found.epsilon == claim(found)


@pytest.mark.parametrize(
    ("name", "better"), [("noise_multiplier", 0.99), ("rate", 1.01), ("steps", 1.01)]
)
def test_nothing_much_better_would_do(name, better):
    found = solve(**without(name))
    tighter = getattr(found, name) * better
    values = without(name, **{name: round(tighter) if name == "steps" else tighter})
    del values["epsilon"]
    assert solve(**values).epsilon > 3.0


def test_delta_and_epsilon_are_inverse():
    epsilon = solve(**without("epsilon")).epsilon
    assert solve(**without("delta", epsilon=epsilon)).delta == pytest.approx(1e-5, rel=1e-3)


def test_batch_size_and_epochs_stand_for_rate_and_steps():
    by_epochs = solve(records=60_000, batch_size=1200, epochs=60, epsilon=3.0, delta=1e-5)
    assert (by_epochs.rate, by_epochs.steps, by_epochs.epochs) == (0.02, 3000, 60.0)
    plan = by_epochs.plan(clip=0.5)
    assert (plan.steps, plan.rate, plan.divisor, plan.clip) == (3000, 0.02, 1200, 0.5)
    assert plan.noise_multiplier == by_epochs.noise_multiplier
    assert by_epochs.noise_in_mean(0.5) == by_epochs.noise_multiplier * 0.5 / 1200


@pytest.mark.parametrize("epochs", [1, 2.5, 60])
def test_a_solved_batch_is_whole_and_one_that_is_larger_would_cost_too_much(epochs):
    # At a fixed number of epochs the steps change with the rate; ignoring that gives another batch.
    found = solve(records=5000, noise_multiplier=1.5, epochs=epochs, epsilon=1.0, delta=1e-5)
    batch = round(found.batch_size)
    assert found.batch_size == pytest.approx(batch) and found.epsilon <= 1.0
    if batch < 5000:
        larger = solve(
            records=5000,
            batch_size=batch * 1.02 + 1,
            noise_multiplier=1.5,
            epochs=epochs,
            delta=1e-5,
        )
        assert larger.epsilon > 1.0


def test_a_rate_is_never_more_than_one():
    assert (
        solve(records=1000, noise_multiplier=1000.0, epochs=1, epsilon=3.0, delta=1e-5).rate == 1.0
    )


def test_the_relation_counts():
    assert (
        solve(**without("epsilon", relation="replace_one")).epsilon
        > solve(**without("epsilon")).epsilon
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (GIVEN, "none is"),
        ({"epsilon": 3.0, "delta": 1e-5}, "noise_multiplier, rate, steps is"),
        (without("epsilon", epochs=3), "not both"),
        (without("rate", batch_size=10), "with records="),
        (without("epsilon", delta=0.0), "delta"),
        (without("epsilon", noise_multiplier=0.0), "noise_multiplier"),
        (without("steps", noise_multiplier=0.2, rate=1.0), "single step"),
        (without("rate", noise_multiplier=0.2, records=10), "Not even one"),
    ],
)
def test_what_cannot_be_solved_says_why(values, words):
    with pytest.raises(InvalidArgument, match=words):
        solve(**values)


def test_no_plan_without_records():
    with pytest.raises(InvalidArgument, match="records="):
        solve(**without("noise_multiplier")).plan()
