"""Plans with groups: every group is within its own ε, and what has no proof is refused."""

import json
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

import dpfy
from dpfy.accounting import Group, account_groups
from dpfy.errors import InvalidArgument
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.types import Budget, GroupBudgets

THREE = {"strict": (1.0, 0.34), "usual": (2.0, 0.43), "open": (3.0, 0.23)}
PAPER = {"records": 50_000, "batch_size": 1024, "steps": 1465, "groups": THREE, "delta": 1e-5}
SMALL = {
    "records": 1000,
    "batch_size": 50,
    "steps": 20,
    "groups": {"strict": (0.5, 0.3), "open": (2.0, 0.7)},
    "delta": 1e-5,
}


@pytest.fixture(scope="module", params=["sample", "scale"])
def plan(request):
    return dpfy.idpsgd(**PAPER, method=request.param)


def hand_made(**changes):
    """A plan whose noise is given, so that nothing is calibrated."""
    policy = Individual(("strict", "open"), (0.05, 0.05), (0.5, 1.2), (0.3, 0.7))
    base = dpfy.dpsgd(rate=0.05, divisor=50, steps=20, noise_multiplier=1.0)
    found = {name: getattr(base, name) for name in ("query", "steps", "divisor")}
    return dpfy.Plan(**{**found, "sampling": policy, "noise_multiplier": 1.0, **changes})


# What the groups get


def test_every_group_is_within_its_own_epsilon_by_an_account_of_its_own(plan):
    """The reference composes a plain Poisson-sampled Gaussian for each group by hand."""
    policy, z = plan.sampling, plan.noise_multiplier
    steps = Repeated(Sampled(Poisson(1.0), (SumQuery(1.0, z),)), plan.steps)
    groups = {
        name: Group(rate, bound)
        for name, rate, bound in zip(policy.names, policy.rates, policy.bounds, strict=True)
    }
    for name, guarantee in account_groups(steps, groups).items():
        epsilon = THREE[name][0]
        assert 0.999 * epsilon < guarantee.claim(1e-5) <= epsilon
        assert dpfy.account(plan).groups[name].claim(1e-5) <= epsilon


def test_another_library_s_accountant_agrees_for_every_group(plan):
    """Its discretisation is pessimistic, and leaves a claim below 1.01 of the budget."""
    policy, z = plan.sampling, plan.noise_multiplier
    for name, rate, bound in zip(policy.names, policy.rates, policy.bounds, strict=True):
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z / bound))
        other = PLDAccountant().compose(step, plan.steps).get_epsilon(1e-5)
        assert THREE[name][0] * 0.99 < other < THREE[name][0] * 1.01


def test_the_published_setting_has_the_noise_that_was_computed_for_it(plan):
    if plan.sampling.bounds == (1.0,) * 3:
        assert plan.noise_multiplier == pytest.approx(1.839, abs=5e-4)
        assert plan.sampling.rates == pytest.approx((0.0116, 0.0217, 0.0312), abs=5e-5)
    else:
        assert plan.noise_multiplier == pytest.approx(1.882, abs=5e-4)
        assert plan.sampling.bounds == pytest.approx((0.617, 1.076, 1.424), abs=5e-4)


def test_rate_and_bound_keep_their_mean_over_the_declared_shares(plan):
    policy = plan.sampling
    assert policy.rate == pytest.approx(1024 / 50_000, rel=1e-4)
    assert sum(s * b for s, b in zip(policy.shares, policy.bounds, strict=True)) == pytest.approx(1)
    assert plan.divisor == 1024 and plan.steps == 1465


def test_a_plan_with_groups_reads_back_from_json_in_any_order(plan):
    text = json.dumps(plan.to_json(), sort_keys=True)
    assert dpfy.Plan.from_json(json.loads(text)) == plan
    assert plan.budget == GroupBudgets(("strict", "usual", "open"), (1.0, 2.0, 3.0), 1e-5)


def test_the_guard_admits_all_steps_and_stops_where_the_first_group_is_exhausted(plan):
    assert plan.guard().limit == plan.steps
    tight = GroupBudgets(("strict", "usual", "open"), (1.0, 1.0, 3.0), 1e-5)
    assert 0 < replace(plan, budget=tight).guard().limit < plan.steps


def test_other_relations_and_epochs_are_calibrated_too():
    for relation in ("zero_out", "replace_one"):
        found = dpfy.idpsgd(**SMALL, relation=relation, method="scale")
        assert found.relation == relation
        assert dpfy.account(found).groups["strict"].claim(1e-5) <= 0.5
    full = {**SMALL, "batch_size": 1000, "steps": None, "epochs": 3}
    found = dpfy.idpsgd(**full, method="scale")
    assert found.steps == 3 and set(found.sampling.rates) == {1.0}


def test_one_group_is_plain_dpsgd():
    alone = dpfy.idpsgd(**{**SMALL, "groups": {"all": (1.0, 1.0)}}, method="scale")
    plain = dpfy.dpsgd(records=1000, batch_size=50, steps=20).calibrate(1.0, 1e-5)
    assert alone.noise_multiplier == pytest.approx(plain.noise_multiplier, rel=1e-9)
    assert alone.sampling.bounds == pytest.approx((1.0,))


def test_delta_auto_is_that_of_other_plans(capsys):
    found = dpfy.idpsgd(**{**SMALL, "delta": "auto"}, method="scale")
    assert found.budget.delta == 1000**-1.1 and "1000^-1.1" in capsys.readouterr().out


# What is refused


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ({"strict": (1.0, 0.3), "open": (2.0, 0.6)}, r"add up to 1, got 0.9 .*'open': 0.6"),
        ({"strict": (0.0, 0.3), "open": (2.0, 0.7)}, "epsilon of group 'strict'"),
        ({"strict": (float("nan"), 0.3), "open": (2.0, 0.7)}, "epsilon of group 'strict'"),
        ({"strict": (1.0, 1.0), "open": (2.0, 0.0)}, "share of group 'open'"),
        ({"strict": 1.0, "open": (2.0, 0.7)}, "group 'strict' to have an epsilon and a share"),
        ({"": (1.0, 1.0)}, "groups with a name each"),
        ({}, "at least one group"),
        ([("strict", (1.0, 1.0))], "at least one group, got list"),
    ],
)
def test_groups_that_make_no_sense_are_refused_by_name(groups, text):
    with pytest.raises(InvalidArgument, match=text):
        dpfy.idpsgd(**{**SMALL, "groups": groups})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"statistics": [dpfy.SampleSize(share=0.1)]}, "statistic 'sample size'"),
        ({"controllers": [dpfy.QuantileClipping()]}, "bounded as for all"),
        ({"clip": [dpfy.mechanisms.ClippedSum(1.0, "a", ("a",)),
                   dpfy.mechanisms.ClippedSum(1.0, "b")]}, "one norm of all parameters"),
        ({"clip": dpfy.mechanisms.ClippedSum(1.0, "a", ("a",), (2.0,))}, "one norm"),
    ],
)  # fmt: skip
def test_clip_bounds_of_groups_refuse_what_they_cannot_bound(options, text):
    with pytest.raises(InvalidArgument, match=text):
        dpfy.idpsgd(**SMALL, method="scale", **options)
    plain = dpfy.dpsgd(rate=0.05, divisor=50, steps=20, noise_multiplier=1.0, **options)
    replace(plain, sampling=Individual(("strict", "open"), (0.02, 0.06), (1.0, 1.0), (0.3, 0.7)))


def test_adaclip_has_no_clip_bounds_of_groups():
    with pytest.raises(InvalidArgument, match="'strict' has a clip bound of its own, and"):
        hand_made(controllers=(dpfy.AdaClip(),))


@pytest.mark.parametrize("method", ["sample", "scale"])
def test_noise_that_follows_outputs_is_refused_for_groups(method):
    with pytest.raises(InvalidArgument, match="norm_noise chooses noise from outputs"):
        dpfy.idpsgd(**SMALL, method=method, controllers=[dpfy.GradientNormNoise()])


def test_a_scheduled_clip_bound_is_allowed_with_clip_bounds_of_groups():
    found = dpfy.idpsgd(**SMALL, method="scale", clip_schedule="exponential:0.05")
    assert len(set(found.envelope)) == 1  # noise in proportion: one event


def test_filters_and_one_epsilon_for_all_are_refused():
    rule = dpfy.accounting.GaussianFilter(0.5)
    with pytest.raises(InvalidArgument, match="A filter gives its limit to every record"):
        hand_made().under(rule)
    with pytest.raises(InvalidArgument, match="no one epsilon is meant"):
        hand_made().calibrate(1.0, 1e-5)
    with pytest.raises(InvalidArgument, match="an epsilon for each of the groups strict, open"):
        hand_made(budget=Budget(1.0, 1e-5))
    with pytest.raises(InvalidArgument, match="Group 'usual' has one without the other"):
        hand_made(budget=GroupBudgets(("strict", "open", "usual"), (1.0, 1.0, 1.0), 1e-5))
    with pytest.raises(InvalidArgument, match="which has no groups"):
        plain = dpfy.dpsgd(rate=0.1, divisor=1, steps=1).to_json()
        budget = GroupBudgets(("a",), (1.0,), 1e-5)
        dpfy.Plan.from_json({**plain, "budget": budget.to_json()})


@pytest.mark.parametrize("odd", [{"microbatches": 4}, {"least_sample": 10}])
def test_sums_that_a_record_moves_twice_are_refused(odd):
    query = dpfy.dpsgd(rate=0.05, divisor=None, records=1000, steps=20, **odd).query
    with pytest.raises(InvalidArgument, match="leave out microbatches and least_sample"):
        hand_made(query=query)


def test_sums_that_would_not_be_exact_are_refused():
    with pytest.raises(InvalidArgument, match="divisor times the largest bound"):
        hand_made(divisor=2.0**19)


def test_full_batches_leave_no_room_for_rates():
    with pytest.raises(InvalidArgument, match=r"is all records.* Use method='scale'"):
        dpfy.idpsgd(**{**SMALL, "batch_size": 1000}, method="sample")


def test_an_unknown_method_is_refused():
    with pytest.raises(InvalidArgument, match="method"):
        dpfy.idpsgd(**SMALL, method="weigh")
