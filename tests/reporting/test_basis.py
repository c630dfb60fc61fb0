"""The report says what a guarantee rests on, from the ledger and from nobody else; only theorems
hold.
"""

import json

import pytest

from dpfy.errors import InvalidArgument
from dpfy.ledger import Header, Ledger
from dpfy.ledger.basis import Ground, Kind
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.reporting import RunFacts, report
from dpfy.reporting.certificate import differences

DELTA = 1e-5
STEP = Sampled(Poisson(0.1), (SumQuery(1.0, 1.5),))
ISOLATION = Ground(Kind.CHECK, "isolation", "Records do not mix", "Engine bookkeeping, looked at.")
MEMORY = Ground(Kind.CHECK, "no_memory", "Nothing is kept", "Looked at.")
ALLOWANCE = Ground(Kind.ALLOWANCE, "last_bits", "Last bits", "Up to 92 others.")
PROOF = Ground(Kind.THEOREM, "last_bits", "Last bits", "Equal.")
MACHINE = {"torch": "2.0", "threads": 2, "libraries": ["MKL 1", "DNN 2"], "autocast": False}


@pytest.fixture
def ledger(tmp_path):
    """Return a function that writes a ledger in which a run recorded these grounds."""

    def write(*grounds, strict=False, **facts):
        header = Header(
            plan={"records": 1000}, envelope=(Repeated(STEP, 40),), key_source="os", strict=strict
        )
        with Ledger.open(tmp_path / "run.dpl", header=header) as opened:
            opened.reserve(STEP)
            if grounds or facts:
                opened.record_basis(
                    {
                        "engine": "bookkeeping",
                        "environment": MACHINE,
                        "grounds": [each.to_json() for each in grounds],
                        **facts,
                    }
                )
        return Ledger.read(tmp_path / "run.dpl")

    return write


def by_key(result):
    return {item.key: item for item in result.assumptions}


def test_a_ledger_from_before_is_reported_and_says_that_nothing_was_recorded(ledger, conforms):
    result = report(ledger(), DELTA, RunFacts(engine="vmap", isolation="by construction"))
    conforms(result.to_json())
    assert result.verdict.private and result.to_json()["ledger"]["basis"] == []
    assert (
        by_key(result)["rounding"].status == "not known"
        and by_key(result)["isolation"].status == "declared"
    )
    for text in (result.to_markdown(), result.to_html()):
        assert "Not recorded: no run has written" in text and "Where it was computed" not in text


def test_the_section_separates_what_is_proved_from_the_rest(ledger, conforms):
    result = report(ledger(ALLOWANCE, MEMORY, ISOLATION), DELTA)
    conforms(result.to_json())
    kinds = [ground.kind for ground in result.basis]
    assert kinds == sorted(kinds, key=list(Kind).index) and set(kinds) == set(Kind) - {
        Kind.DECLARATION
    }
    said = {ground.key: ground for ground in result.basis}
    assert said["last_bits"].status == "allowed for, not proved"
    assert said["isolation"].status == "checked on synthetic input"
    assert (
        said["pld_poisson_gaussian"].kind is Kind.CITATION
        and "2022" in said["pld_poisson_gaussian"].text
    )
    assert said["noise"].status == "holds" and "docs/proofs/" in said["noise"].text
    for text in (result.to_markdown(), result.to_html()):
        assert (
            "What it rests on" in text
            and "allowed for, not proved" in text
            and "MKL 1; DNN 2" in text
        )


def test_holds_is_said_of_theorems_only(ledger):
    # A key that the operating system drew, a ledger that was read and a model that was probed are
    # no theorems.
    result = report(ledger(ALLOWANCE, MEMORY, ISOLATION), DELTA)
    assert {ground.kind for ground in result.basis if ground.status == "holds"} == {Kind.THEOREM}
    found = by_key(result)
    assert {key for key, item in found.items() if item.status == "holds"} == {
        "sampling",
        "registered",
        "arithmetic",
        "small_delta",
        "durable",
    }
    assert (found["secret_key"].status, found["intact"].status) == (
        "recorded",
        "checked when it was read",
    )
    assert (found["isolation"].status, found["rounding"].status) == (
        "checked on synthetic input",
        "allowed for, not proved",
    )


def test_what_the_caller_says_about_the_engine_gives_way_to_the_ledger(ledger):
    result = report(
        ledger(ALLOWANCE, ISOLATION), DELTA, RunFacts(engine="loop", isolation="by construction")
    )
    said = by_key(result)["isolation"]
    assert (
        "Engine bookkeeping" in said.text and "loop" not in said.text and said.status != "declared"
    )


@pytest.mark.parametrize(
    ("grounds", "strict", "line"),
    [
        ((PROOF, MEMORY), True, "- strict: no allowance is part of this guarantee\n"),
        (
            (ALLOWANCE, MEMORY),
            True,
            "- strict: declared, but the ledger records allowances: Last bits\n",
        ),
        ((), True, "- strict: declared; no run has recorded yet"),
        ((PROOF,), False, None),
    ],
    ids=["strict", "broken", "not begun", "not strict"],
)
def test_strict_is_a_line_of_its_own_and_only_where_it_is_so(ledger, grounds, strict, line):
    result = report(ledger(*grounds, strict=strict), DELTA)
    text = result.to_markdown()
    assert line in text if line else "- strict:" not in text
    assert result.to_json()["ledger"]["strict"] is strict
    assert ("no allowance is part" in result.to_model_card()) == (
        "no allowance is part" in (line or "")
    )
    assert ("no allowance is part" in result.to_html()) == ("no allowance is part" in (line or ""))


def test_runs_on_two_machines_are_both_told(ledger):
    found = ledger(ALLOWANCE)
    with Ledger.open(found.path) as opened:
        opened.record_basis(
            {"engine": "vmap", "environment": {**MACHINE, "torch": "2.1"}, "grounds": []}
        )
    text = report(found.path, DELTA).to_markdown()
    assert "| engine | bookkeeping / vmap |" in text and "| torch | 2.0 / 2.1 |" in text


def test_any_recorded_text_stays_text(ledger, conforms):
    hostile = Ground(Kind.ALLOWANCE, "x", "<script>alert(1)</script>", "a | b\n# c")
    result = report(ledger(hostile, environment={"<b>": "<script>"}), DELTA)
    assert "<script>" not in result.to_html() and "\n# c" not in result.to_markdown()
    conforms(result.to_json())


@pytest.mark.parametrize(
    "facts", [{"grounds": 3, "environment": 4}, {"grounds": ["x", {}], "engine": None}, {"x": 1}]
)
def test_facts_of_another_version_are_read(ledger, facts, conforms):
    conforms(report(ledger(**facts), DELTA).to_json())


def test_a_certificate_that_leaves_an_allowance_out_is_noticed(ledger):
    found = ledger(ALLOWANCE, MEMORY)
    certificate = json.loads(json.dumps(report(found, DELTA).to_json()))
    assert differences(found, certificate) == []
    certificate["basis"] = [each for each in certificate["basis"] if each["kind"] != "allowance"]
    assert any(where.startswith("$.basis") for where in differences(found, certificate))
    with pytest.raises(InvalidArgument, match="schema_version"):
        differences(found, {**certificate, "schema_version": 2})
