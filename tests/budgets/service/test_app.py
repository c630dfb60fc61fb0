"""The service of a book: who may ask what, and what a request cannot do."""

import json
import re
from dataclasses import replace

import pytest
import teams
from teams import PLAN, Team

from dpfy.budgets.declarations import Declaration
from dpfy.budgets.service.endpoints import ENDPOINTS
from dpfy.errors import BookError
from dpfy.ledger.events import envelope_to_json
from dpfy.web.limits import Limits

ADMISSIONS = Declaration.make("admissions", unit="record", epsilon=3.0, delta=1e-5)


@pytest.fixture
def team(tmp_path):
    found = Team(tmp_path)
    assert found.ask("root", "POST", "/datasets", ADMISSIONS.to_json())[0] == 200
    yield found
    found.close()


def request(**changes):
    return {
        "dataset": "admissions",
        "envelope": envelope_to_json(PLAN.envelope),
        "filter": None,
        "unit": "record",
        "relation": "add_or_remove_one",
        "purpose": "a test",
        "holder": "somebody",
        "part": None,
        "key": "k1",
        **changes,
    }


def reserve(team, name="anna", **changes):
    return team.ask(name, "POST", "/grants", request(**changes))


def code(answer):
    status, found = answer
    return status, found["error"]["code"]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: f"{each.method} {each.path}")
def test_nobody_asks_without_a_token_and_only_its_role_may(team, endpoint):
    """Fails if an endpoint forgets to look at who asks, or looks after it has acted."""
    path = re.sub(r"{\w+}", "admissions", endpoint.path)
    value = None if endpoint.body is None else b"x" if endpoint.takes_bytes else {}
    before = [entry.hash for entry in team.book("carl").log()]
    assert code(team.ask(None, endpoint.method, path, value)) == (401, "unauthorized")
    for name, role in teams.NAMES.items():
        if role not in endpoint.roles:
            assert code(team.ask(name, endpoint.method, path, value)) == (403, "forbidden")
    assert [entry.hash for entry in team.book("carl").log()] == before


def test_roles_are_those_that_are_promised():
    """Fails if a change of the table lets trainers declare, or auditors spend."""
    may = {
        role: {(each.method, each.path) for each in ENDPOINTS if role in each.roles}
        for role in ("steward", "trainer", "auditor")
    }
    assert (
        may["auditor"]
        < may["trainer"]
        < may["steward"]
        == {(each.method, each.path) for each in ENDPOINTS}
    )
    assert all(method == "GET" for method, _ in may["auditor"])
    stewards = {path for _, path in may["steward"] - may["trainer"]}
    assert stewards == {"/datasets", "/datasets/{name}/tranches", "/tokens", "/tokens/{name}"}


def test_a_token_that_was_revoked_is_not_accepted(team):
    assert team.ask("anna", "GET", "/datasets")[0] == 200
    assert team.ask("root", "DELETE", "/tokens/anna")[0] == 200
    assert code(team.ask("anna", "GET", "/datasets")) == (401, "unauthorized")
    assert team.ask("root", "DELETE", "/tokens/anna")[1]["revoked"]  # twice is once
    listed = team.ask("root", "GET", "/tokens")[1]["tokens"]
    assert [each["name"] for each in listed if each["revoked"]] == ["anna"]


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic root", "Bearer \xff", "Bearer wrong", "x" * 99],
)
def test_what_is_no_token_is_refused(team, authorization):
    found = teams.asgi.call(
        team.app, "GET", "/v1/datasets", headers={"authorization": authorization}
    )
    assert code(found) == (401, "unauthorized")


def test_a_trainer_holds_what_they_reserve_and_touches_nothing_else(team):
    """Fails if a trainer can spend in another's name, or end another's grant."""
    grant = reserve(team)[1]["id"]
    assert team.ask("carl", "GET", f"/grants/{grant}")[1]["holder"] == "anna"
    acts = {
        "forfeit": {"reason": "envy"},
        "withdrawal": {},
        "anchors": {"count": 1, "hash": "0" * 64},
        "activations": {
            "header": "0" * 64,
            "ledger": "x",
            "head": {"count": 1, "hash": "0" * 64},
            "ended": 0,
            "key": "k",
        },
        "settlement": b"x",
        "reopening": b"x",
    }
    for act, value in acts.items():
        assert code(team.ask("bert", "POST", f"/grants/{grant}/{act}", value)) == (403, "forbidden")
    assert team.ask("carl", "GET", f"/grants/{grant}")[1]["state"] == "reserved"
    assert team.ask("root", "POST", f"/grants/{grant}/withdrawal", {})[1]["state"] == "withdrawn"


def test_a_key_reserves_once_and_for_its_token_only(team):
    """Fails if a request whose answer was lost spends twice, or if a key reveals what others do."""
    first, again, other = reserve(team), reserve(team), reserve(team, "bert")
    assert first == again and first[0] == 200 and other[1]["id"] != first[1]["id"]
    assert code(reserve(team, purpose="another")) == (409, "grant_refused")
    assert len(team.book("carl").show("admissions").grants) == 2


def test_a_key_of_one_request_does_not_do_another(team):
    """Fails if a run begins without its activation, or if the service calls itself unavailable."""
    first, second = reserve(team)[1]["id"], reserve(team, key="k2")[1]["id"]
    begun = {
        "header": "0" * 64,
        "ledger": "x",
        "head": {"count": 1, "hash": "0" * 64},
        "ended": 0,
        "key": "k3",
    }
    for grant, key in ((first, "k1"), (first, "k2")):
        found = team.ask("anna", "POST", f"/grants/{grant}/activations", begun | {"key": key})
        assert code(found) == (409, "grant_refused")
    assert team.ask("anna", "POST", f"/grants/{first}/activations", begun) == (200, {"run": 1})
    assert team.ask("anna", "POST", f"/grants/{first}/activations", begun) == (200, {"run": 1})
    assert code(team.ask("anna", "POST", f"/grants/{second}/activations", begun))[0] == 409


def test_costs_are_those_of_the_service(team):
    """Fails if a client can say what its run costs, or raise a budget by its filters."""
    assert code(reserve(team, cost=[0])) == (400, "invalid_argument")
    granted = reserve(team)[1]
    assert granted["cost"] == list(ADMISSIONS.cost(PLAN.envelope))
    raised = [rule.to_json() | {"epsilon": 30.0} for rule in ADMISSIONS.filters]
    for changes in ({"filters": raised}, {"filters": []}, {"epsilon": 30.0}):
        forged = ADMISSIONS.to_json() | {"name": "forged"} | changes
        assert code(team.ask("root", "POST", "/datasets", forged)) == (400, "invalid_argument")


def test_the_budget_ends_under_its_own_name(team):
    envelope = envelope_to_json((replace(PLAN.envelope[0], times=100_000),))
    found = reserve(team, envelope=envelope)
    assert code(found) == (409, "budget_exhausted")
    assert "Nothing was read" in found[1]["error"]["message"]


@pytest.mark.parametrize(
    "changes",
    [
        {"purpose": "\0"},
        {"purpose": "\ud800"},
        {"purpose": 3},
        {"envelope": []},
        {"envelope": {}},
        {"envelope": {"events": [], "runs": []}},
        {"envelope": envelope_to_json(PLAN.envelope) | {"runs": [[1, 1]]}},
        {"envelope": envelope_to_json(PLAN.envelope) | {"runs": [[0, -1]]}},
        {"envelope": envelope_to_json(PLAN.envelope) | {"runs": [[0, 10**12]]}},
        {"envelope": envelope_to_json(PLAN.envelope) | {"runs": [[0, 0.5]]}},
        {"envelope": envelope_to_json(PLAN.envelope) | {"runs": [0]}},
        {"envelope": envelope_to_json(PLAN.envelope) | {"events": [{"type": "sampled"}]}},
        {"envelope": {"a": 1}},
        {"envelope": [[]]},
        {"filter": {"type": "renyi_filter"}},
        {"filter": [1]},
        {"unit": "family"},
        {"relation": 7},
        {"key": ""},
        {"key": "x" * 65},
        {"holder": None},
        {"part": "none"},
        {"dataset": "nothing"},
        {"dataset": ["admissions"]},
        {"times": 10**30},
    ],
    ids=str,
)
def test_requests_of_another_form_are_refused_by_name(team, changes):
    """Fails if a request makes the service fail, or if it is granted all the same."""
    status, found = reserve(team, **changes)
    assert status in (400, 409), found
    assert found["error"]["message"].endswith(".")
    assert not team.book("carl").show("admissions").grants


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"{", b"\xff", b'{"a": NaN}', b'{"a": 1e999}', b"[" * 100_000]
)
def test_bodies_that_are_no_json_object_are_refused(team, body):
    assert team.ask("root", "POST", "/datasets", body)[0] == 400


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=0", "limit=1001", "after=" + "9" * 30]
)
def test_pages_of_the_log_have_bounds(team, query):
    assert code(team.ask("carl", "GET", f"/log?{query}")) == (400, "invalid_argument")


def test_the_log_is_read_in_pages(team):
    everything = team.ask("carl", "GET", "/log?limit=1000")[1]["entries"]
    page = team.ask("carl", "GET", "/log?after=1&limit=2")[1]["entries"]
    assert page == everything[1:3] and everything[0]["number"] == 1
    assert team.ask("carl", "GET", "/log?dataset=admissions")[1]["entries"] == everything[-1:]


def test_names_in_paths_are_taken_as_they_are(team):
    for name in ("%00", "a%2fb", "..", "%f0%9f%92%a5", "a" * 1000):
        assert team.ask("carl", "GET", f"/datasets/{name}")[0] in (400, 404, 409)


def test_a_tranche_is_opened_once_by_a_request_that_comes_twice(team):
    """Fails if a steward whose connection breaks opens two."""
    declared = Declaration.make(
        "visits", unit="record", epsilon=3.0, delta=1e-5, tranches=(1.0, 1.0, 1.0)
    )
    team.ask("root", "POST", "/datasets", declared.to_json())
    for _ in range(2):
        found = team.ask("root", "POST", "/datasets/visits/tranches", {"opened": 2})
        assert found[0] == 200 and found[1]["opened"] == 2
    for wrong in (1, 4, True, "3", None):
        found = team.ask("root", "POST", "/datasets/visits/tranches", {"opened": wrong})
        assert code(found) == (400, "invalid_argument")


def test_a_run_is_settled_by_its_ledger(team, tmp_path):
    """Fails if the ledger that is sent is not the one that is kept, or not what is charged."""
    book = team.book("anna")
    grant = book.reserve("admissions", PLAN, purpose="a run")
    path = teams.run(grant, tmp_path / "run.dpl", steps=40)
    settled = team.ask("anna", "POST", f"/grants/{grant.id}/settlement", path.read_bytes())[1]
    assert settled["state"] == "settled" and 0 < settled["epsilon"] < 3.0
    found = teams.asgi.send(
        team.app, "GET", f"/v1/grants/{grant.id}/ledger", headers=teams.bearer("carl")
    )
    assert found[2] == path.read_bytes()
    assert team.ask("carl", "GET", "/verification")[1]["entries"] > 5
    edited = path.read_bytes().replace(b"a", b"b", 1)
    other = book.reserve("admissions", PLAN, purpose="another run")
    teams.run(other, tmp_path / "other.dpl", steps=1)
    for wrong in (b"", b"x", edited, path.read_bytes()):
        assert team.ask("anna", "POST", f"/grants/{other.id}/settlement", wrong)[0] == 409


def test_limits_hold_for_each_token(tmp_path):
    team = Team(tmp_path, limits=Limits(body=1000, rate=3.0, seconds=0.2))
    try:
        assert code(team.ask("root", "POST", "/datasets", b" " * 1001)) == (413, "too_large")
        slow = teams.asgi.call(
            team.app, "POST", "/v1/datasets", headers=teams.bearer("root"), parts=[b"{"]
        )
        assert code(slow) == (408, "slow_request")
        assert team.ask("root", "GET", "/datasets")[0] == 200
        assert code(team.ask("root", "GET", "/datasets")) == (429, "too_many_requests")
        assert team.ask("anna", "GET", "/datasets")[0] == 200
    finally:
        team.close()


def test_what_fails_inside_is_not_shown(team, monkeypatch, caplog):
    """Fails if the text of an unexpected error reaches a client or the log."""

    def broken(*_):
        raise RuntimeError("the private text")

    monkeypatch.setattr("dpfy.budgets.database.Database.datasets", broken)
    found = team.ask("carl", "GET", "/datasets")
    assert code(found) == (500, "internal")
    assert (
        "private text" not in json.dumps(found[1]) + caplog.text and "RuntimeError" in caplog.text
    )


def test_paths_and_methods_that_do_not_exist_are_named(team):
    for path in ("", "/grants/", "/nothing", "/datasets/admissions/"):
        assert code(team.ask("root", "GET", path)) == (404, "not_found")
    status, headers, _ = teams.asgi.send(
        team.app, "DELETE", "/v1/datasets", headers=teams.bearer("root")
    )
    assert status == 405 and headers["allow"] == "GET, POST"


def test_health_and_the_description_need_no_token(team):
    assert team.ask(None, "GET", "/health") == (200, {"status": "ok"})
    assert team.ask(None, "GET", "/openapi.json")[1]["openapi"].startswith("3.")


def test_names_have_one_token_at_a_time(team):
    with pytest.raises(BookError, match="Revoke it"):
        team.tokens.issue("anna", "steward", "0" * 64)
