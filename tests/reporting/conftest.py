"""Small ledgers to report on, and a validator of the part of JSON Schema that the report's schema
uses.
"""

import json
import os
from importlib.resources import files

import pytest

from dpfy.ledger import Header, Ledger
from dpfy.ledger.events import Poisson, Repeated, Sampled, SumQuery
from dpfy.reporting import RunFacts, report

DELTA = 1e-5
STEPS = 40
PLAN = {
    "records": 1000,
    "divisor": 100.0,
    "steps": STEPS,
    "noise_multiplier": 1.5,
    "unit": "record",
    "sampling": {"type": "poisson", "rate": 0.1},
    "budget": {"epsilon": 5.0, "delta": DELTA},
    "query": {
        "type": "query",
        "leaves": [{"type": "clipped_sum", "bound": 0.5, "name": "gradient"}],
    },
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Nothing here kills a process, so nothing has to reach the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def step_of(noise=1.5, rate=0.1, numerical_delta=0.0):
    return Sampled(Poisson(rate), (SumQuery(1.0, noise),), numerical_delta)


@pytest.fixture(scope="session")
def make():
    """Return a function that fills a ledger, on disk if it gets a path and else in memory."""

    def fill(path=None, taken=STEPS, registered=STEPS, event=None, extra=(), **header):
        event = event or step_of()
        envelope = (Repeated(event, registered),) if registered else ()
        declared = Header(
            **{
                "plan": PLAN,
                "envelope": envelope,
                "created": "2026-01-01T00:00:00+00:00",
                "key_source": "operating system",
                **header,
            }
        )
        opened = (
            Ledger.in_memory(header=declared)
            if path is None
            else Ledger.open(path, header=declared)
        )
        with opened as ledger:
            for item in (*[event] * taken, *extra):
                ledger.reserve(item)
        return ledger

    return fill


@pytest.fixture(scope="session")
def facts():
    return RunFacts(
        name="wards",
        title="Length of stay",
        dataset="admissions of 2025",
        record="one admission",
        records_per_user_at_most_one=True,
        released="the final model",
        model="a small network",
        engine="vmap",
        isolation="by construction",
        hyperparameters={"learning rate": 0.5},
        metric="accuracy",
        hyperparameter_selection="fixed in advance",
        public_data="a synthetic test set",
        history=[(10, 0.5), (20, 0.7), (40, 0.8)],
    )


@pytest.fixture(scope="session")
def good(make, facts, tmp_path_factory):
    """The report of a complete, durable run."""
    path = tmp_path_factory.mktemp("good") / "ledger.dpl"
    make(path)
    return report(path, DELTA, facts)


@pytest.fixture(scope="session")
def conforms():
    """Return a function that raises where a value breaks the schema."""
    schema = json.loads((files("dpfy.reporting") / "schema.json").read_text(encoding="utf-8"))
    return lambda value, rules=schema: check(value, rules, schema, "report")


TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
CHECKED = {
    "$schema",
    "$defs",
    "$ref",
    "title",
    "description",
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
}


def check(value, rules, schema, where):
    assert set(rules) <= CHECKED, f"{where}: the validator does not know {set(rules) - CHECKED}"
    if "$ref" in rules:
        return check(value, schema["$defs"][rules["$ref"].removeprefix("#/$defs/")], schema, where)
    if "type" in rules:
        names = rules["type"] if isinstance(rules["type"], list) else [rules["type"]]
        actual = (
            ["boolean"]
            if isinstance(value, bool)
            else [n for n in TYPES if isinstance(value, TYPES[n])]
        )
        assert set(actual) & set(names), f"{where}: {value!r} is not {names}"
    assert "const" not in rules or value == rules["const"], where
    assert "enum" not in rules or value in rules["enum"], f"{where}: {value!r}"
    if isinstance(value, str | list):
        kind = "Length" if isinstance(value, str) else "Items"
        assert rules.get(f"min{kind}", 0) <= len(value) <= rules.get(f"max{kind}", len(value)), (
            where
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert rules.get("minimum", value) <= value <= rules.get("maximum", value), (
            f"{where}: {value!r}"
        )
    if isinstance(value, list) and "items" in rules:
        for index, item in enumerate(value):
            check(item, rules["items"], schema, f"{where}[{index}]")
    if isinstance(value, dict):
        check_object(value, rules, schema, where)
    return None


def check_object(value, rules, schema, where):
    assert set(rules.get("required", ())) <= set(value), (
        f"{where} lacks {set(rules['required']) - set(value)}"
    )
    known, others = rules.get("properties", {}), rules.get("additionalProperties", True)
    for name, item in value.items():
        assert name in known or others is not False, f"{where} has an unknown {name}"
        check(
            item,
            known.get(name, others if isinstance(others, dict) else {}),
            schema,
            f"{where}.{name}",
        )
