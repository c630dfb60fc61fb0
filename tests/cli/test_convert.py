"""``dpfy convert``: the registered steps in other words, and never the realised list of a
filter.
"""

import json

import pytest

from dpfy.accounting import GaussianFilter, account
from dpfy.accounting.conversions import dominating_mu, group_claim, membership_advantage, tpr_at_fpr
from dpfy.accounting.group import group_epsilon
from dpfy.cli.app import main
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.ledger.individual import Individual

STEP = Sampled(Poisson(0.1), (SumQuery(1.0, 2.0),))
REGISTERED = (Repeated(STEP, 30),)


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main(["convert", *(str(argument) for argument in arguments)])
        output = capsys.readouterr()
        return stopped.value.code or 0, output.out, output.err

    return call


def book(path, **header):
    with Ledger.open(path, header=Header(envelope=REGISTERED, **header)) as ledger:
        ledger.reserve(STEP)
    return path


def test_numbers_are_those_of_the_registered_steps(run, tmp_path):
    code, out, err = run(
        book(tmp_path / "run.dpl"), "--delta", "1e-5", "--fpr", "0.01", "--group", "3", "--json"
    )
    values, guarantee = json.loads(out), account(REGISTERED)
    assert (code, err) == (0, "")
    assert values["steps"] == 30 and values["epsilon"] == guarantee.claim(1e-5)
    assert values["mu"] == dominating_mu(guarantee, 1e-5).mu
    assert values["membership_advantage"] == membership_advantage(guarantee)
    assert values["tpr"] == tpr_at_fpr(guarantee, 0.01)
    assert values["group_epsilon"] == group_epsilon(REGISTERED, 3, 1e-5)


def test_groups_of_replaced_records_follow_from_the_curve(run, tmp_path):
    _, out, _ = run(
        book(tmp_path / "run.dpl", relation="replace_one"),
        "--delta",
        "1e-5",
        "--group",
        "2",
        "--json",
    )
    expected = group_claim(account(REGISTERED, relation="replace_one"), 2, 1e-5)
    assert json.loads(out)["group_epsilon"] == expected


def test_each_group_of_records_is_converted_by_itself(run, tmp_path):
    groups = Individual(("strict", "open"), (0.02, 0.1), (1.0, 1.0), (0.5, 0.5))
    steps = (Repeated(Sampled(groups, STEP.queries), 30),)
    with Ledger.open(tmp_path / "run.dpl", header=Header(envelope=steps)):
        pass
    values = json.loads(run(tmp_path / "run.dpl", "--delta", "1e-5", "--json")[1])
    for name, each in account(steps).groups.items():
        assert values["groups"][name] == {
            "epsilon": each.claim(1e-5),
            "mu": dominating_mu(each, 1e-5).mu,
            "membership_advantage": membership_advantage(each),
            "tpr": tpr_at_fpr(each, 0.001),
        }
    open_ = values["groups"]["open"]
    assert {name: values[name] for name in open_} == open_  # the weakest, whatever is asked
    out = run(tmp_path / "run.dpl", "--delta", "1e-5")[1]
    assert "of the weakest group" in out and "\n  strict  epsilon 0." in out


def test_a_filter_is_converted_by_its_limit(run, tmp_path):
    rule = GaussianFilter(0.5)
    with Ledger.open(tmp_path / "run.dpl", rule.guard(), Header(filter=rule.to_json())) as ledger:
        ledger.reserve(STEP)
    _, out, _ = run(tmp_path / "run.dpl", "--delta", "1e-5", "--group", "2", "--json")
    values = json.loads(out)
    assert values["mu"] == pytest.approx(0.5, rel=0.01)
    assert values["group_epsilon"] > 2 * values["epsilon"] > 3  # of the limit, not of the one step


def test_sentences_and_errors(run, tmp_path):
    code, out, _ = run(
        book(tmp_path / "run.dpl", key_source="insecure test key"),
        "--delta",
        "1e-5",
        "--group",
        "2",
    )
    assert code == 0 and out.startswith("NOT PRIVATE") and "Groups of 2" in out and "mu = " in out
    for wrong in (["--fpr", "2"], ["--group", "0"], ["--group", "100000"], ["--delta", "2"]):
        code, out, err = run(tmp_path / "run.dpl", "--delta", "1e-5", *wrong)
        assert (code, out) == (2, "") and err.startswith("Error: Expected")
