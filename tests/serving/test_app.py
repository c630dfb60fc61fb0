"""The service over HTTP: who may ask, how much, and what comes back."""

import json
import logging

import asgi
import numpy as np
import pytest

from dpfy import PrivatePredictor
from dpfy.errors import LedgerDamaged, LedgerLocked
from dpfy.serving import Limits, make_app
from dpfy.web.tokens import digest_of

SECRET = 417.25  # what the teachers know, and nothing may show
BEARER = {"authorization": "Bearer right"}


class Teachers:
    parts, key_source, unit = 40, "operating system", "record"

    def answers(self, x):
        return np.ones((40, len(x)))


@pytest.fixture
def predictor():
    settings = {"classes": 3, "noise": 8.0, "epsilon": 3.0, "delta": 1e-6, "shape": (2,)}
    return PrivatePredictor(Teachers(), **settings)


@pytest.fixture
def app(predictor):
    return make_app(predictor, digest_of("right"), Limits(body=4096, rows=5, seconds=0.2))


def call(app, method, path, body=b"", headers=BEARER, parts=None):
    return asgi.call(app, method, path, body, headers, parts)


def predict(app, inputs, **options):
    return call(app, "POST", "/predict", json.dumps({"inputs": inputs}).encode(), **options)


def test_inputs_are_answered_and_equal_ones_equally(app, predictor):
    status, found = predict(app, [[0, 0], [1, 0], [0, 0]])
    assert status == 200 and set(found) == {"answers"}
    assert found["answers"][0] == found["answers"][2] and predictor.ledger.count == 2
    assert all(answer in (0, 1, 2) for answer in found["answers"])


def test_empty_budget_refuses_and_says_so(app, predictor):
    answers = [predict(app, [[each, start] for each in range(5)])[1] for start in range(3)]
    assert answers[2]["answers"].count(None) == 2  # 13 answers in all
    assert predict(app, [[9, 9]]) == (
        403,
        {
            "error": {
                "code": "budget_exhausted",
                "message": "The privacy budget is used up. Only inputs that were answered before "
                "are answered.",
            }
        },
    )
    assert predict(app, [[0, 0]])[0] == 200 and predictor.ledger.count == 13


def test_budget_says_what_is_left(app):
    before = call(app, "GET", "/budget")[1]
    assert before == {"epsilon": 3.0, "delta": 1e-6, "left": 1.0, "answers_left": 13}
    predict(app, [[0, 0]])
    assert call(app, "GET", "/budget")[1]["answers_left"] == 12


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Basic right"},
        {"authorization": "right"},
        {"authorization": "Bearer right "[:-2]},
    ],
)
def test_nobody_asks_without_the_token(app, predictor, headers):
    for status, found in (
        predict(app, [[0, 0]], headers=headers),
        call(app, "GET", "/budget", headers=headers),
    ):
        assert status == 401 and found["error"]["code"] == "unauthorized"
    assert predictor.ledger.count == 0


@pytest.mark.parametrize("path", ["/budget/", "/predict/", "/health/", "//budget"])
def test_no_other_path_is_answered(app, path):
    status, found = call(app, "GET", path, headers={})
    assert status == 404 and found["error"]["code"] == "not_found"


def test_health_needs_no_token_and_tells_nothing(app):
    assert call(app, "GET", "/health", headers={}) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"[[0, 0]]", 400, "invalid_json"),
        (b'{"inputs": 3}', 400, "invalid_json"),
        (b'{"inputs": [[0, 0]], "epsilon": 100}', 400, "invalid_json"),
        (b'{"inputs": ' + b"[" * 3000, 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"inputs": [[0]]}', 400, "invalid_inputs"),
        (b'{"inputs": [[0, NaN]]}', 400, "invalid_inputs"),
        (b'{"inputs": [[0, 1e999]]}', 400, "invalid_inputs"),
        (b'{"inputs": [[0, 1e39]]}', 400, "invalid_inputs"),
        (b'{"inputs": [[0, "1"]]}', 400, "invalid_inputs"),
        (b'{"inputs": [[0, 0], [0]]}', 400, "invalid_inputs"),
        (b'{"inputs": [[0, 0], null]}', 400, "invalid_inputs"),
        (b'{"inputs": [[0, ' + b"9" * 400 + b"]]}", 400, "invalid_inputs"),
        (json.dumps({"inputs": [[0, 0]] * 6}).encode(), 413, "too_many_rows"),
        (b" " * 4097, 413, "too_large"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_spent(app, predictor, body, status, code):
    found = call(app, "POST", "/predict", body)
    assert (found[0], found[1]["error"]["code"]) == (status, code)
    assert predictor.ledger.count == 0


def test_request_without_end_is_not_waited_for(app, predictor):
    found = call(app, "POST", "/predict", parts=[b'{"inputs": [[0, 0]]}'])
    assert (found[0], found[1]["error"]["code"]) == (408, "slow_request")
    found = call(app, "POST", "/predict", parts=[b" " * 3000] * 9)
    assert found[0] == 413 and predictor.ledger.count == 0


def test_more_requests_than_the_rate_are_refused(predictor):
    app = make_app(predictor, digest_of("right"), Limits(rate=4.0), workers=2)
    statuses = [call(app, "GET", "/budget")[0] for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert call(app, "GET", "/budget", headers={})[0] == 401
    assert call(app, "GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/predict", 405)]
)
def test_other_paths_and_methods_are_json_errors(app, method, path, status):
    found = call(app, method, path)
    assert found[0] == status and set(found[1]["error"]) == {"code", "message"}


@pytest.mark.parametrize(
    ("error", "status", "code", "logged"),
    [
        (ValueError(f"a teacher said {SECRET}"), 500, "internal", "ValueError"),
        (LedgerDamaged("line 3 was cut"), 500, "internal", "line 3 was cut"),
        (LedgerLocked("by others"), 503, "busy", None),
    ],
)
def test_errors_show_nothing_private(
    app, predictor, monkeypatch, caplog, error, status, code, logged
):
    def fail(inputs):
        raise error

    monkeypatch.setattr(predictor, "predict_each", fail)
    with caplog.at_level(logging.DEBUG):
        found = predict(app, [[0, 0]])
    assert (found[0], found[1]["error"]["code"]) == (status, code)
    assert str(SECRET) not in str(found) + caplog.text
    assert logged is None or logged in caplog.text


def test_answers_and_inputs_are_not_logged(app, caplog, capfd):
    with caplog.at_level(logging.DEBUG, logger="dpfy"):
        predict(app, [[12345.5, 0]])
        predict(app, [[12345.5]])
    assert "12345" not in caplog.text + "".join(capfd.readouterr())
