"""Events with groups have one guarantee per group, and the weakest is the only one for all."""

import copy
import pickle

import pytest

from dpfy.accounting import DominatedBy, GroupGuarantee, RenyiFilter, account
from dpfy.accounting.conversions import group_claim, tpr_at_fpr
from dpfy.accounting.extras.interop import to_dp_event, to_opacus
from dpfy.accounting.extras.tuning import tuning_costs
from dpfy.accounting.group import group_epsilon
from dpfy.accounting.individual import Group, account_groups
from dpfy.accounting.to_pairs import canonical
from dpfy.errors import InvalidArgument, UnsupportedEvent
from dpfy.ledger import Header, Ledger, Unguarded
from dpfy.ledger.composite_events import Composed, Parallel
from dpfy.ledger.events import LaplaceSum, NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.ledger.one_shot import (
    AboveThreshold,
    DiscreteGaussianSum,
    ExponentialChoice,
    NoisyMax,
    RandomizedAnswer,
)
from dpfy.ledger.selection import NegativeBinomialTrials, Selected
from dpfy.types import Relation

DELTA = 1e-5
NAMES, RATES, BOUNDS = ("strict", "usual", "open"), (0.005, 0.01, 0.02), (0.5, 1.0, 1.5)
GROUPS = Individual(NAMES, RATES, BOUNDS, (0.34, 0.43, 0.23))
STEP = Sampled(GROUPS, (SumQuery(1.0, 1.2),))
RUN = Repeated(STEP, 200)


def of(name, query=SumQuery, *rest, noise=1.2):
    """The step of a group by hand: its rate, and its bound times that of the query."""
    number = NAMES.index(name)
    return Sampled(Poisson(RATES[number]), (query(BOUNDS[number], noise, *rest),))


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_each_group_has_the_guarantee_of_its_rate_and_bound(method, relation):
    if (method, relation) == ("rdp", Relation.REPLACE_ONE):
        with pytest.raises(UnsupportedEvent, match="No rdp rule"):
            account(RUN, method, relation)
        return
    found = account(RUN, method, relation)
    assert list(found.groups) == list(NAMES)
    for name, each in found.groups.items():
        alone = account(Repeated(of(name), 200), method, relation)
        assert each.epsilon(DELTA) == alone.epsilon(DELTA)
        assert each.delta(0.5) == alone.delta(0.5)


@pytest.mark.parametrize("name", NAMES)
def test_each_group_is_what_an_independent_accountant_finds(name):
    from dp_accounting.pld import privacy_loss_distribution

    number = NAMES.index(name)
    step = privacy_loss_distribution.from_gaussian_mechanism(
        1.2,
        sensitivity=BOUNDS[number],
        sampling_prob=RATES[number],
        value_discretization_interval=1e-4,
    )
    theirs = step.self_compose(200).get_epsilon_for_delta(DELTA)
    lower, upper = account(RUN).groups[name].epsilon(DELTA)
    assert lower <= theirs and theirs == pytest.approx(upper, rel=2e-2)  # theirs is rounded up


def test_account_groups_finds_the_same():
    groups = {
        name: Group(rate, bound) for name, rate, bound in zip(NAMES, RATES, BOUNDS, strict=True)
    }
    plain = Repeated(Sampled(Poisson(0.5), STEP.queries), 200)
    for name, each in account_groups(plain, groups).items():
        assert each.epsilon(DELTA) == account(RUN).groups[name].epsilon(DELTA)


def test_the_whole_is_the_weakest_group_at_each_delta():
    """Which group is the weakest depends on δ: one is drawn often, the other moves far."""
    crossing = Individual(("often", "far"), (1.0, 1e-3), (0.2, 3.0), (0.5, 0.5))
    found = account(Repeated(Sampled(crossing, (SumQuery(1.0, 1.0),)), 10))
    weakest = {found.epsilon(delta).weakest for delta in (1e-2, 1e-8)}
    assert weakest == {"often", "far"}
    for delta in (1e-2, 1e-8):
        parts, whole = [each.epsilon(delta) for each in found.groups.values()], found.epsilon(delta)
        assert whole.upper == found.claim(delta) == max(part.upper for part in parts)
        assert whole.lower == max(part.lower for part in parts)
        assert whole.groups == {name: each.epsilon(delta) for name, each in found.groups.items()}
        assert f"group {whole.weakest!r}, the weakest of 2" in found.note(delta)
    assert found.delta(1.0).upper == max(each.delta(1.0).upper for each in found.groups.values())
    assert tpr_at_fpr(found, 0.01) == pytest.approx(
        max(tpr_at_fpr(each, 0.01) for each in found.groups.values()), rel=1e-6
    )


def test_brackets_of_groups_say_which_is_whose_and_can_be_copied():
    found = account(RUN).epsilon(DELTA)
    assert all(name in repr(found) for name in NAMES)
    for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert copied == found and copied.groups == found.groups


@pytest.mark.parametrize(
    ("query", "half"),
    [
        (SumQuery(2.0, 1.0), SumQuery(1.0, 1.0)),
        (LaplaceSum(2.0, 1.0), LaplaceSum(1.0, 1.0)),
        (DiscreteGaussianSum(2.0, 3.0), DiscreteGaussianSum(1.0, 3.0)),
        (ExponentialChoice(2.0, 4.0), ExponentialChoice(1.0, 4.0)),
        (NoisyMax(2.0, 4.0, True), NoisyMax(1.0, 4.0, True)),
        (AboveThreshold(2.0, 4.0, 8.0), AboveThreshold(1.0, 4.0, 8.0)),
    ],
)
def test_a_query_of_any_kind_is_moved_by_the_bound_of_the_group(query, half):
    groups = Individual(("half", "whole"), (0.5, 1.0), (0.5, 1.0), (0.5, 0.5))
    found = account(Sampled(groups, (query,)))
    assert found.groups["half"].claim(DELTA) == account(Sampled(Poisson(0.5), (half,))).claim(DELTA)
    whole = account(Sampled(Poisson(1.0), (query,)))
    assert found.groups["whole"].claim(DELTA) == whole.claim(DELTA)


def test_a_query_without_a_bound_needs_bounds_of_one():
    answer = (RandomizedAnswer(0.75),)
    rates = Individual(("a", "b"), (0.5, 1.0), (1.0, 1.0), (0.5, 0.5))
    assert account(Sampled(rates, answer)).groups["a"].claim(DELTA) > 0
    with pytest.raises(UnsupportedEvent, match=r"'randomized_response' has no bound.*0\.5"):
        account(Sampled(GROUPS, answer))


def test_events_without_groups_count_for_every_group():
    extra = Sampled(Poisson(1.0), (SumQuery(1.0, 8.0, "norms"),))
    found = account([extra, RUN])
    for name, each in found.groups.items():
        assert each.claim(DELTA) == account([extra, Repeated(of(name), 200)]).claim(DELTA)
    assert (found.steps, found.counted, found.exact) == (201, "steps", True)
    exposed = account([RUN, NonPrivate("a test")])
    assert exposed.claim(DELTA) == exposed.groups["strict"].claim(DELTA) == float("inf")


def test_a_group_that_is_never_drawn_pays_nothing():
    never = Individual(("never", "always"), (0.0, 1.0), (1.0, 1.0), (0.5, 0.5))
    found = account(Sampled(never, (SumQuery(1.0, 5.0),)))
    assert found.epsilon(DELTA).groups["never"] == (0.0, 0.0) < found.epsilon(DELTA)


@pytest.mark.parametrize(
    "hold",
    [
        lambda step: Composed((step,), (20,)),
        lambda step: Parallel((step, Sampled(Poisson(1.0), (SumQuery(1.0, 5.0),)))),
        lambda step: Selected(
            Composed((step,), (20,)), NegativeBinomialTrials.with_mean(5.0, shape=1.0)
        ),
    ],
)
def test_groups_inside_other_events_are_found(hold):
    found = account(hold(STEP), relation="zero_out")
    assert isinstance(found, GroupGuarantee)
    for name, each in found.groups.items():
        assert each.claim(DELTA) == account(hold(of(name)), relation="zero_out").claim(DELTA)


def test_a_ledger_has_the_groups_that_it_registered_before_the_first_step():
    header = Header(envelope=(RUN,), relation="add_or_remove_one", unit="record")
    with Ledger.in_memory(Unguarded(), header) as ledger:
        assert account(ledger).epsilon(DELTA).groups == dict.fromkeys(NAMES, (0.0, 0.0))
        ledger.reserve(STEP)
        found = account(ledger)
        assert found.groups["open"].claim(DELTA) == account(of("open")).claim(DELTA)
    assert found.envelope.epsilon(DELTA) == account(RUN).epsilon(DELTA)
    whole = account(Repeated(of("strict"), 200)).claim(DELTA)
    assert found.envelope.groups["strict"].claim(DELTA) == whole
    assert found.groups["strict"].envelope.claim(DELTA) == whole


def test_different_groups_in_one_run_are_refused_by_name():
    other = Individual(("strict", "wide"), (0.1, 0.1), (1.0, 1.0), (0.5, 0.5))
    with pytest.raises(UnsupportedEvent, match="strict, usual, open, and another has strict, wide"):
        account([STEP, Sampled(other, STEP.queries)])
    order = Individual(
        ("open", "usual", "strict"), RATES[::-1], BOUNDS[::-1], (0.23, 0.43, 0.34)
    )  # the order of names means nothing
    both, twice = account([STEP, Sampled(order, STEP.queries)]), account([STEP, STEP])
    assert both.epsilon(DELTA).groups == twice.epsilon(DELTA).groups


def test_no_reader_takes_groups_for_one_sample_of_the_mean_rate():
    """``policy.rate`` is a mean over groups, and accounting by it would claim too little."""
    with pytest.raises(UnsupportedEvent, match=r"one guarantee each.*strict, usual, open"):
        canonical((RUN,), "pld", "add_or_remove_one")
    for refused in (
        lambda: to_opacus((RUN,)),
        lambda: to_dp_event((RUN,)),
        lambda: RenyiFilter(1.0, DELTA).guard().admit(STEP, 1),
        lambda: RenyiFilter.tuned(1.0, DELTA, (RUN,)),
    ):
        with pytest.raises(UnsupportedEvent):
            refused()
    with pytest.raises(InvalidArgument, match="strict, usual, open"):
        DominatedBy((RUN,))


def test_several_records_at_once_may_be_of_several_groups():
    """No group's mixture covers them, so the weakest curve is followed record by record."""
    assert group_epsilon(RUN, 3, DELTA) == group_claim(account(RUN), 3, DELTA)
    alone = group_epsilon(Repeated(of("open"), 200), 3, DELTA)
    assert group_epsilon(RUN, 3, DELTA) > alone


def test_tuning_costs_what_it_costs_the_weakest_group():
    trials = NegativeBinomialTrials.with_mean(5.0, shape=1.0)
    run, open_ = Composed((STEP,), (20,)), Composed((of("open"),), (20,))
    assert tuning_costs(run, trials, DELTA) == tuning_costs(open_, trials, DELTA)
