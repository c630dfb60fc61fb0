"""Requests drawn from the service's own description, and valid ones that were spoilt: no 5xx."""

import json

import hypothesis
import pytest
import requests  # which schemathesis brings
import schemathesis
import teams
from budget_services import Served
from hypothesis import strategies as st
from schemathesis import GenerationMode
from teams import PLAN, Team

from dpfy.budgets import BudgetBook
from dpfy.budgets.declarations import Declaration
from dpfy.budgets.service import description
from dpfy.budgets.service.endpoints import ENDPOINTS
from dpfy.ledger.events import envelope_to_json

EXAMPLES = 8  # for each endpoint and mode
_SCHEMA = schemathesis.openapi.from_dict(description())
OPERATIONS = {found.label: found for found in (each.ok() for each in _SCHEMA.get_all_operations())}
ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


class Target:
    """A service that is running, with a data set and a run that goes on."""

    def __init__(self, folder):
        team = Team(folder)
        self.address = f"sqlite:///{folder / 'team.db'}"
        steward, anna = team.book("root"), team.book("anna")
        steward.create("admissions", unit="record", epsilon=8.0, delta=1e-5, tranches=(4.0, 4.0))
        self.grants = [anna.reserve("admissions", PLAN, purpose="a run").id for _ in range(3)]
        self.ledger = teams.run(
            anna.grant(self.grants[1]), folder / "run.dpl", steps=3
        ).read_bytes()
        team.close()
        self.served = Served(self.address, "--rate", 1e9)

    def check(self, case, name):
        """Send a request; return the status of an answer that is as it was described."""
        response = case.call(base_url=self.served.url, headers=teams.bearer(name))
        status = response.status_code
        assert status < 500, (response.request.method, response.request.url, response.text)
        known = description()["paths"].get(case.operation.path, {})
        if status >= 400:
            assert str(status) in known[case.method.lower()]["responses"] or status == 405
            assert set(json.loads(response.text)["error"]) == {"code", "message"}
        return status


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    found = Target(tmp_path_factory.mktemp("fuzz"))
    yield found
    assert found.served.close()[1] == ""
    with BudgetBook.open(found.address) as book:  # whatever was asked, it holds
        assert book.verify() > 5


def fuzz(strategy, number, check):
    @hypothesis.settings(
        max_examples=number, suppress_health_check=list(hypothesis.HealthCheck), database=None
    )
    @hypothesis.given(strategy)
    def each(value):
        check(value)

    each()


def described(target, label, number):
    operation = OPERATIONS[label]
    may = next(each.roles for each in ENDPOINTS if f"{each.method} /v1{each.path}" == label)
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        fuzz(operation.as_strategy(mode), number, lambda case: target.check(case, "root"))
    for name, role in teams.NAMES.items():
        if role not in may:
            fuzz(
                operation.as_strategy(GenerationMode.POSITIVE),
                max(1, number // 4),
                lambda case, name=name: _expect_403(target.check(case, name)),
            )


def _expect_403(status):
    assert status in (403, 404), status  # 404: the path was of no endpoint


@pytest.mark.parametrize("label", OPERATIONS)
def test_requests_of_the_description_and_against_it(target, label):
    """Fails if a request makes the service fail, or if a role gets further than 403."""
    described(target, label, EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("label", OPERATIONS)
def test_a_thousand_requests_of_each_kind(target, label):
    described(target, label, 1000)


def valid(target):
    """Return requests that the service would grant, by their paths."""
    declared = Declaration.make("new", unit="record", epsilon=1.0, delta=1e-5)
    head = {"count": 1, "hash": "0" * 64}
    return {
        "/datasets": declared.to_json(),
        "/datasets/admissions/tranches": {"opened": 2},
        "/grants": {
            "dataset": "admissions",
            "envelope": envelope_to_json(PLAN.envelope),
            "filter": None,
            "unit": "record",
            "relation": "add_or_remove_one",
            "purpose": "a test",
            "holder": "root",
            "part": None,
            "key": "k",
        },
        f"/grants/{target.grants[0]}/activations": {
            "header": "0" * 64,
            "ledger": "l",
            "head": head,
            "ended": 0,
            "key": "k",
        },
        f"/grants/{target.grants[1]}/anchors": head,
        f"/grants/{target.grants[2]}/forfeit": {"reason": "lost"},
        "/tokens": {"name": "dora", "role": "auditor", "sha256": "d" * 64},
    }


def places(value, path=()):
    """Yield the path of everything in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, key))


def replaced(value, path, other):
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], other)
    return copy


def spoilt(target, number):
    """Ask for what would be granted, with one value in it replaced by another."""
    client = Client(target.served.url)
    for path, value in valid(target).items():
        strategy = st.tuples(st.sampled_from(list(places(value))), ANY)
        fuzz(strategy, number, lambda drawn, p=path, v=value: client.post(p, replaced(v, *drawn)))
    cut = st.tuples(st.integers(0, len(target.ledger)), st.binary(max_size=40))
    for act in ("settlement", "reopening"):
        fuzz(
            cut,
            number,
            lambda drawn, act=act: client.post(
                f"/grants/{target.grants[1]}/{act}", target.ledger[: drawn[0]] + drawn[1]
            ),
        )


class Client:
    def __init__(self, url):
        self.url, self.session = f"{url}/v1", requests.Session()

    def post(self, path, value):
        body = value if isinstance(value, bytes) else json.dumps(value)
        answer = self.session.post(self.url + path, data=body, headers=teams.bearer("root"))
        assert answer.status_code < 500, (path, body, answer.text)


def test_valid_requests_with_one_value_spoilt(target):
    """Fails if something that is almost right makes the service fail."""
    spoilt(target, 5 * EXAMPLES)


@pytest.mark.slow
def test_a_thousand_valid_requests_of_each_kind_with_one_value_spoilt(target):
    spoilt(target, 1000)
