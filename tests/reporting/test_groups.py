"""A report on groups has one guarantee per group, and says of every other number whose it is."""

import json

import pytest

from dpfy.accounting import account
from dpfy.accounting.conversions import tpr_at_fpr
from dpfy.cli.app import main
from dpfy.ledger import Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual
from dpfy.reporting import report
from dpfy.reporting.certificate import differences
from dpfy.reporting.groups import group_costs

from .conftest import DELTA, PLAN, STEPS

NAMES, RATES, BOUNDS = ("strict", "usual", "open|wide"), (0.02, 0.05, 0.1), (0.5, 1.0, 1.5)
GROUPS = Individual(NAMES, RATES, BOUNDS, (0.34, 0.43, 0.23))
STEP = Sampled(GROUPS, (SumQuery(1.0, 2.0),))
GROUP_PLAN = {
    **PLAN,
    "sampling": GROUPS.to_json(),
    "budget": {"names": list(NAMES), "epsilons": [1.0, 2.0, 5.0], "delta": DELTA},
}


def command(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["report", *arguments])
    return caught.value.code


def alone(name, steps=STEPS, rate=None):
    number = NAMES.index(name)
    policy = Poisson(RATES[number] if rate is None else rate)
    return account(Repeated(Sampled(policy, (SumQuery(BOUNDS[number], 2.0),)), steps))


@pytest.fixture(scope="module")
def folder(make, facts, tmp_path_factory):
    path = tmp_path_factory.mktemp("groups")
    make(path / "ledger.dpl", event=STEP, plan=GROUP_PLAN)
    report(path / "ledger.dpl", DELTA, facts).write(path)
    return path


@pytest.fixture(scope="module")
def grouped(folder, facts):
    return report(folder / "ledger.dpl", DELTA, facts)


def test_each_group_has_its_rate_its_bound_its_epsilon_and_its_attackers(grouped):
    groups = grouped.costs.groups
    assert [(each.name, each.rate, each.bound) for each in groups] == list(
        zip(NAMES, RATES, BOUNDS, strict=True)
    )
    for each in groups:
        found = alone(each.name)
        assert each.interval == found.epsilon(DELTA)
        assert each.true_positives == tpr_at_fpr(found, 0.01)
        assert each.guess == (1 + found.delta(0.0).upper) / 2
    assert grouped.costs.headline.interval.upper == alone("open|wide").claim(DELTA)


def test_without_sampling_groups_keep_their_bounds(grouped):
    """A rate of 1 at a bound of 1 would be less than the group with the bound of 1.5 costs."""
    full = alone("open|wide", rate=1.0).claim(DELTA)
    assert grouped.costs.without_sampling.interval.upper == full


@pytest.mark.parametrize("format", ["to_markdown", "to_html", "to_model_card"])
def test_every_format_names_all_groups_and_the_weakest(grouped, format):
    text = getattr(grouped, format)().replace("&#x27;", "'").replace("\\|", "|")
    assert "ε = 0.106 for group 'strict', 0.705 for group 'usual', 2.7" in text
    assert "for group 'open|wide' at δ = 1e-5" in text
    assert "one number for all is the weakest, " in text
    assert "Which group a record is in" in text and "A change of group" in text


def test_the_statements_give_no_number_for_all_without_saying_so(grouped):
    items = {item.key: item.text for item in grouped.statement}
    assert "For every record the weakest alone holds" in grouped.formal_statement
    assert "for the weakest group; by group" in grouped.plain_statement
    assert "for the weakest group" in items["without_amplification"]
    assert "both are of one group" in items["adjacency"]
    assumed = {item.key: item.text for item in grouped.assumptions}
    assert "never took part" in assumed["public_groups"]
    assert {"group_labels", "group_changes"} <= {item.key for item in grouped.exclusions}
    assert any(ground.key == "groups" for ground in grouped.basis)
    assert any(ground.key == "pld_poisson_gaussian" for ground in grouped.basis)
    assert "1 for group 'strict', 2 for group 'usual'" in grouped.to_markdown()  # the budget


def test_the_json_has_the_groups_and_follows_the_schema(grouped, good, conforms):
    value = json.loads(json.dumps(grouped.to_json(), allow_nan=False))
    conforms(value)
    assert [each["name"] for each in value["guarantee"]["groups"]] == list(NAMES)
    assert value["guarantee"]["groups"] == value["costs"]["groups"]
    assert "'open|wide', the weakest of 3" in value["guarantee"]["note"]
    assert "groups" not in good.to_json()["guarantee"]  # older certificates can be verified


def test_no_group_has_a_number_where_there_is_no_guarantee(make, conforms):
    ledger = make(event=STEP, plan=GROUP_PLAN, extra=[NonPrivate("a test")], registered=0)
    void = report(ledger, DELTA)
    value = json.loads(json.dumps(void.to_json(), allow_nan=False))
    conforms(value)
    for each in value["guarantee"]["groups"]:
        assert each["epsilon"] is each["guess"] is each["true_positives"] is None
    assert "NOT PRIVATE: the numbers below are no guarantee" in void.to_markdown()


def test_rates_that_change_are_not_shown_as_one(make):
    other = Individual(NAMES, (0.01, 0.05, 0.1), BOUNDS, GROUPS.shares)
    ledger = make(event=STEP, taken=1, registered=0, extra=[Sampled(other, STEP.queries)])
    strict, usual, _ = group_costs(account(ledger), DELTA)
    assert (strict.rate, strict.bound, usual.rate) == (None, 0.5, 0.05)


def test_stopping_early_claims_the_registered_epsilon_of_each_group(make):
    early = report(make(event=STEP, taken=3, plan=GROUP_PLAN), DELTA)
    assert early.costs.headline.scope == "registered"
    assert [each.interval for each in early.costs.groups] == [
        alone(name).epsilon(DELTA) for name in NAMES
    ]


def test_a_certificate_of_groups_is_verified(folder, capsys):
    assert command(str(folder), "--verify") in (0, None)
    stated = json.loads((folder / "report.json").read_text())
    stated["guarantee"]["groups"][0]["epsilon"] /= 2
    found = differences(Ledger.read(folder / "ledger.dpl"), stated)
    assert found and "guarantee.groups[0].epsilon" in found[0]
    capsys.readouterr()
    assert command(str(folder)) in (0, None)  # δ is that of the groups' budgets
    assert "Each group by itself, at δ = 1e-5" in capsys.readouterr().out
