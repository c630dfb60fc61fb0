"""What a report says is what the ledger says: numbers, verdict, tier, and every item of the guide's
list.
"""

import math

import pytest

import dpfy
from dpfy.accounting import account
from dpfy.errors import InvalidArgument, LedgerError, UnsupportedEvent
from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import NonPrivate, Poisson, Repeated, Sampled, SumQuery
from dpfy.reporting import RunFacts, report

DELTA, STEPS = 1e-5, 40


def texts(items):
    return {item.key: item.text for item in items}


def status(result):
    return {item.key: item.status for item in result.assumptions}


def test_every_item_of_the_guide_is_answered(good):
    # Ponomareva et al. 2023, §5.3.3: 1, 2(a) to 2(d), 3(a) to 3(c), 4, and footnote b.
    assert {item.guide for item in good.statement} == {
        "1",
        "2a",
        "2b",
        "2c",
        "2d",
        "3a",
        "3b",
        "3c",
        "4",
    }
    said = texts(good.statement)
    assert "Central" in said["dp_setting"]
    assert f"{STEPS} steps" in said["data_accesses"] and "fixed in advance" in said["data_accesses"]
    assert "every iterate" in said["output"] and "the final model" in said["output"]
    assert "Record" in said["unit"] and "one admission" in said["unit"]
    assert "Add-or-remove-one" in said["adjacency"]
    assert "PLD" in said["accounting"] and "Zhu, Dong & Wang 2022" in said["accounting"]
    assert (
        good.record.head_hash in said["verifiability"] and dpfy.__version__ in said["verifiability"]
    )
    assert "fixed in advance" in said["tuning_statement"]


def test_the_numbers_are_those_of_the_accountant(good, make):
    ledger = make()
    for method in ("pld", "rdp"):
        expected = account(ledger, method).epsilon(DELTA)
        assert {claim.interval for claim in good.costs.claims if claim.method == method} == {
            expected
        }
    assert (
        f"({math.ceil(account(ledger).claim(DELTA) * 1000) / 1000:.3f}, 1e-5)"
        in good.formal_statement
    )


def test_without_amplification_is_the_same_noise_at_rate_one(good):
    # Closed form: forty full-batch sums are one Gaussian mechanism of mu = sqrt(40)/1.5.
    one = Sampled(Poisson(1.0), (SumQuery(1.0, 1.5 / math.sqrt(STEPS)),))
    assert good.costs.without_sampling.interval.upper == pytest.approx(
        account(one).claim(DELTA), rel=1e-9
    )
    assert good.costs.without_sampling.interval.upper > good.costs.headline.interval.upper


def test_the_guess_is_the_total_variation_bound(good):
    # δ(0) bounds the total variation distance, and (e^ε + δ)/(1 + e^ε) bounds the same accuracy
    # from ε alone.
    epsilon = good.costs.headline.interval.upper
    assert 0.5 < good.costs.guess < (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))
    assert good.costs.guess == pytest.approx(
        (1 + account(Repeated(step(), STEPS)).delta(0.0).upper) / 2
    )


def test_stopping_early_claims_the_registered_epsilon(make):
    ledger = make(taken=10)
    result = report(ledger, DELTA)
    whole, part = account(ledger).envelope.claim(DELTA), account(ledger).claim(DELTA)
    assert part < whole == result.costs.headline.interval.upper
    assert {claim.interval.upper for claim in result.costs.claims if claim.method == "pld"} == {
        part,
        whole,
    }
    assert "after looking" in texts(result.assumptions)["registered"]


def test_a_ledger_that_registered_nothing_is_told_so(make):
    result = report(make(registered=0), DELTA)
    assert status(result)["registered"] == "not known"
    assert result.verdict.private


@pytest.mark.parametrize("key", ["insecure test key", "a key source of tomorrow"])
def test_a_key_that_is_not_known_to_be_secret_voids_everything(make, key):
    result = report(make(key_source=key), DELTA, RunFacts(records_per_user_at_most_one=True))
    assert not result.verdict.private and key in result.verdict.reasons[0]
    assert status(result)["secret_key"] == "does not hold"
    assert result.tier.number is None
    assert "NOT PRIVATE" in result.formal_statement and "ε" not in result.formal_statement
    assert (
        result.to_json()["guarantee"]["epsilon"] is result.to_json()["guarantee"]["guess"] is None
    )


def test_no_noise_is_no_guarantee(make):
    result = report(make(event=step(noise=0.0)), DELTA)
    assert not result.verdict.private and math.isinf(result.costs.headline.interval.upper)
    assert "no protection" in result.to_json()["guarantee"]["why_null"]
    assert "no finite bound" in texts(result.statement)["without_amplification"]


def test_a_recorded_exposure_is_named(make):
    result = report(
        make(taken=1, registered=0, extra=[NonPrivate("gradients were printed")]), DELTA
    )
    assert any("gradients were printed" in reason for reason in result.verdict.reasons)


def test_numerical_delta_that_uses_up_delta_leaves_no_guarantee(make):
    result = report(make(event=step(numerical_delta=1e-6), taken=20, registered=20), DELTA)
    assert result.costs.numerical_delta == pytest.approx(2e-5)
    assert not result.verdict.private
    assert "2.01e-5" in texts(result.assumptions)["arithmetic"]


@pytest.mark.parametrize(
    ("taken", "extra", "missing"),
    [
        (STEPS, [], 0),
        (3, [], 0),
        (STEPS, ["same"], 1),
        (3, ["other"], 1),
        (3, ["other", "same"], 2),
    ],
)
def test_steps_that_were_not_registered_void_the_claim(make, taken, extra, missing):
    events = {"same": step(), "other": step(noise=3.0)}
    result = report(make(taken=taken, extra=[events[name] for name in extra]), DELTA)
    assert result.record.unregistered == missing
    assert result.verdict.private == (missing == 0)


def test_skipping_registered_steps_keeps_the_claim(make):
    envelope = (Repeated(step(), 2), Repeated(step(noise=3.0), 2), Repeated(step(), 2))
    result = report(
        make(taken=1, extra=[step(noise=3.0), step(), step()], envelope=envelope), DELTA
    )
    assert result.record.unregistered == 0 and result.verdict.private
    swapped = report(
        make(taken=0, extra=[step(noise=3.0), step(), step(), step()], envelope=envelope), DELTA
    )
    assert swapped.record.unregistered == 1


def test_memory_is_not_durable(make, good):
    result = report(make(), DELTA)
    assert status(result)["durable"] == "does not hold" and "NOT DURABLE" in result.to_markdown()
    assert status(good)["durable"] == "holds" and "NOT DURABLE" not in good.to_markdown()


def test_a_torn_line_is_counted_and_told(make, tmp_path):
    path = tmp_path / "ledger.dpl"
    make(path, taken=STEPS - 1)
    with path.open("ab") as file:
        file.write(b'{"use":')
    result = report(path, DELTA)
    assert result.record.steps_reserved == STEPS and result.record.torn_bytes == 7
    assert result.costs.claims[1].interval == account(Repeated(step(), STEPS)).epsilon(DELTA)
    assert "torn" in result.to_markdown().split("##")[0]


def test_a_torn_line_beyond_the_plan_costs_more_but_voids_nothing(make, tmp_path):
    path = tmp_path / "ledger.dpl"
    make(path)
    with path.open("ab") as file:
        file.write(b"{")
    result = report(path, DELTA)
    assert result.verdict.private
    assert result.costs.headline.interval.upper == account(Repeated(step(), STEPS + 1)).claim(DELTA)


@pytest.mark.parametrize(
    ("declared", "unit", "relation", "number"),
    [
        (True, "record", "add_or_remove_one", 2),
        (None, "record", "add_or_remove_one", None),
        (False, "record", "add_or_remove_one", None),
        (None, "user", "zero_out", 2),
        (True, "user", "replace_one", None),
    ],
)
def test_a_tier_needs_users_and_the_guides_adjacency(make, declared, unit, relation, number):
    facts = RunFacts(record="all rows of one user", records_per_user_at_most_one=declared)
    result = report(make(unit=unit, relation=relation), DELTA, facts)
    assert result.tier.number == number
    assert number is not None or result.tier.text.startswith("Not applicable: ")


def test_users_without_a_declaration_of_what_an_item_holds_have_no_tier(make):
    assert report(make(unit="user"), DELTA).tier.number is None


@pytest.mark.parametrize(("noise", "number"), [(8.0, 1), (1.5, 2), (0.6, 3)])
def test_tiers(make, noise, number):
    result = report(
        make(event=step(noise=noise)), DELTA, RunFacts(records_per_user_at_most_one=True)
    )
    assert result.tier.number == number


def test_replacing_one_has_no_renyi_rule_and_the_report_says_so(make):
    result = report(make(relation="replace_one"), DELTA)
    claim = next(claim for claim in result.costs.claims if claim.method == "rdp")
    assert claim.interval is None and "rdp" in claim.note
    assert "no rule" in result.to_markdown()


def test_threat_level_and_table_one(good, make):
    said = texts(good.protection)
    assert said["threat_level"].startswith("B4") and "model weights" in said["table_1"]
    for level in ("b4", "b5", "b6"):
        assert said[level].startswith("Protected")
    for level in ("b1", "b2", "b3"):
        assert said[level].startswith("Not protected")
    assert (
        "None of B1 to B6"
        in texts(report(make(key_source="test"), DELTA).protection)["threat_level"]
    )


def test_what_is_not_covered(good):
    assert set(texts(good.exclusions)) >= {
        "timing",
        "tuning",
        "curation",
        "other_ledgers",
        "rollback",
    }


@pytest.mark.parametrize(
    ("delta", "expected"), [(1e-5, "holds"), (8e-4, "holds"), (1e-2, "does not hold")]
)
def test_delta_is_compared_with_the_number_of_records(make, delta, expected):
    assert status(report(make(taken=1, registered=1), delta))["small_delta"] == expected


def test_the_curve_ends_at_the_claim_and_never_falls(good):
    curve = good.costs.curve
    assert curve.steps[0] == 0 and curve.steps[-1] == STEPS and {10, 20, 40} <= set(curve.steps)
    for values in curve.epsilons.values():
        assert list(values) == sorted(values)
    assert curve.epsilons["pld"][-1] == good.costs.headline.interval.upper
    assert curve.at(11, "pld") >= account(Repeated(step(), 11)).claim(DELTA)
    assert curve.at(10**6, "pld") == curve.epsilons["pld"][-1]


def test_many_measurements_cost_few_computations(make):
    facts = RunFacts(history=[(number, 0.5) for number in range(1, STEPS + 1)])
    assert len(report(make(), DELTA, facts).costs.curve.steps) <= 28


def test_nothing_reserved_yet(make):
    result = report(make(taken=0), DELTA)
    assert result.costs.headline.interval.upper == account(Repeated(step(), STEPS)).claim(DELTA)
    assert result.costs.curve.steps == (0,)
    assert (
        result.to_html().count("<svg") == 1
    )  # what the registered steps will leave to an attacker


def test_refusals(make):
    with pytest.raises(InvalidArgument, match="delta"):
        report(make(), 0.0)
    with pytest.raises(LedgerError, match="header"):
        report(Ledger.in_memory(), DELTA)
    with pytest.raises(UnsupportedEvent, match="filter"):
        report(Ledger.in_memory(header=Header(filter={"name": "some filter"})), DELTA)


def step(noise=1.5, rate=0.1, numerical_delta=0.0):
    return Sampled(Poisson(rate), (SumQuery(1.0, noise),), numerical_delta)
