"""Reports of predictions: the inference budget is the headline, and only answers are protected."""

import json

import numpy as np
import pytest

import dpfy
from dpfy import Ledger, PrivatePredictor
from dpfy.reporting import report as report_of
from dpfy.reporting.modes import mode_of


class Agreeing:
    parts, key_source, unit = 40, "operating system", "record"

    def answers(self, x):
        return np.ones((40, len(x)))


@pytest.fixture
def report(tmp_path):
    settings = {"classes": 3, "noise": 8.0, "epsilon": 3.0, "delta": 1e-6}

    def written(**more):
        service = PrivatePredictor(Agreeing(), ledger=tmp_path / "a.dpl", **settings, **more)
        service.predict_each([[0.0], [1.0], [0.0]])
        return [path.read_text(encoding="utf-8") for path in service.report(tmp_path)]

    return written


def test_headline_is_the_inference_budget(report):
    markdown, _, html = report()
    claim = "Inference budget: 13 answers, 2 paid for so far. ε = 3.000 at δ = 1e-6"
    assert claim in markdown and claim in html


def test_report_names_the_row_of_predictions_and_protects_no_weights(report):
    found = json.loads(report()[1])
    protection = {item["key"]: item["text"] for item in found["protection"]}
    assert protection["table_1"].startswith("Mode of access: model predictions.")
    assert "model weights and training data may not" in protection["table_1"]
    assert protection["threat_level"].startswith("B6, for a limited number of predictions")
    assert found["formal_statement"].startswith("The prediction service, whose output is")
    texts = {item["key"]: item["text"] for item in found["statement"]}
    assert "final model" not in texts["output"] and "the 2 inputs" in texts["data_accesses"]
    assert found["guarantee"]["epsilon"] <= 3.0


def test_only_the_key_of_noise_is_said_not_to_be_saved(report):
    markdown, text, _ = report()
    texts = {item["key"]: item["text"] for item in json.loads(text)["assumptions"]}
    for found in (texts["secret_key"], markdown):
        assert "folder of the teachers" in found
    assert "noise is drawn" in texts["secret_key"] and "key of noise came from" in markdown


def test_plan_is_among_the_constants(report):
    markdown = report(threshold=2.0, check_noise=50.0)[0]
    assert "| Teachers | 40 |" in markdown and "| Noise of an answer | 8 |" in markdown
    assert "at least 13 answers" in markdown


def test_inputs_without_consensus_are_counted_once(report):
    assert "2 paid for so far" in report(threshold=40.0, check_noise=8.0)[0]


def test_other_plans_release_models():
    assert mode_of(None, ()) is None and mode_of({"steps": 3}, ()) is None


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 1.0},
        {"mechanism": "lnmax", "epsilon": 1.0},
        {"groups": {"strict": (1.0, 0.5), "open": (3.0, 0.5)}},
    ],
    ids=["confident", "lnmax", "groups"],
)
def test_a_report_of_labels_says_who_sees_what(options, conforms, tmp_path):
    plan = dpfy.pate(classes=2, parts=20, delta=1e-5, **options)
    ledger = Ledger.in_memory(plan.guard, plan.header())
    with ledger:
        ledger.reserve(plan.check or plan.answer)
    found = report_of(ledger, 1e-5)
    conforms(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    text = found.write(tmp_path)[0].read_text(encoding="utf-8")
    assert f"up to {plan.most_answers} labels" in text
    assert "the student sees public inputs" in text
    assert "B5, and therefore B6, for the student" in text
