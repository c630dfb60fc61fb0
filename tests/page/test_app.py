"""Every page answers, whatever the folder holds, and shows names as text."""

import http.client
import os
import re
import threading

import pytest
from run_folders import begun, checkpoint, open_ledger, plan_of, progress, take
from served_pages import PATIENCE, served

from dpfy.accounting import account
from dpfy.ledger import Ledger
from dpfy.reporting.numbers import epsilon_text

NASTY = "<script>alert(1)</script>&\"'"
NAMES = (
    "plain",
    NASTY.replace("/", ":"),
    os.fsdecode(b"caf\xe9"),
    "a b%20c?x#y",
    "../x".strip("./"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name in NAMES:
        path = begun(root, name, taken=12)
        progress(path.parent, 20, 12, metric=NASTY)
    damaged = begun(root, "damaged")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    killed = begun(root, "killed", taken=7)
    progress(killed.parent, 20, 7)
    checkpoint(killed.parent, 4)
    return root


@pytest.fixture(scope="module")
def page(folder):
    with served(folder) as found:
        yield found


def keys(page):
    listed = page.until("/", "not running")
    return dict(re.findall(r'/runs/([0-9a-f]{12})" id="[^"]*"><bdi>(.*?)</bdi>', listed))


def key_of(page, name):
    return next(key for key, found in keys(page).items() if found == name)


def test_every_run_is_listed_and_its_page_answers(page):
    found = keys(page)
    assert len(found) == len(NAMES) + 2
    for key in found:
        status, _, text = page.ask(f"/runs/{key}")
        assert status == 200 and found[key] in text
    assert page.ask("/compare?" + "&".join(f"run={key}" for key in found))[0] == 200


def test_names_are_text_everywhere(page):
    named = ["/", "/compare?run=" + "&run=".join(keys(page))]
    for address in (*named, *map("/runs/{}".format, keys(page))):
        _, _, text = page.ask(address)
        scripts = re.findall(r"<script[^>]*>", text)
        assert all(re.fullmatch(r'<script src="/static/\w+\.js" defer>', each) for each in scripts)
        assert "<script>alert" not in text
        assert address not in named or "&lt;script&gt;alert(1)&lt;" in text


def test_the_report_of_a_run_is_on_its_page(page, folder):
    text = page.until(f"/runs/{key_of(page, 'killed')}", "What it rests on")
    claim = account(Ledger.read(folder / "killed" / "ledger.dpl")).envelope.claim(1e-5)
    assert f"ε = {epsilon_text(claim)}" in text
    assert text.count("<h1>") == 1


def test_a_killed_run_shows_what_it_paid_and_lost(page, folder):
    text = page.until(f"/runs/{key_of(page, 'killed')}", "What it rests on")
    spent = account(Ledger.read(folder / "killed" / "ledger.dpl")).claim(1e-5)
    assert "not running" in text and "7 of 20" in text and epsilon_text(spent) in text
    assert re.search(r"<dt>Steps lost</dt><dd>3<", text)


def test_a_damaged_ledger_shows_its_refusal(page):
    text = page.until(f"/runs/{key_of(page, 'damaged')}", "refused")
    assert "damaged/ledger.dpl, line" in text and "Nothing may be claimed" in text
    assert "ε so far" not in text


def test_only_reading_is_answered_and_nothing_is_written(page, folder):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in (
            "/",
            "/plan",
            "/events",
            "/static/page.js",
            *map("/runs/{}".format, keys(page)),
        ):
            assert page.ask(path, method)[0] == 405
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_answers_keep_a_page_to_itself(page):
    for path in ("/", "/plan", "/static/page.js", "/missing"):
        _, headers, _ = page.ask(path)
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_another_host_name_is_refused(page):
    # A page of the internet whose name was made to lead here could else read what is shown.
    assert page.ask("/", host="evil.example")[0] == 400
    assert page.ask("/", host=f"localhost:{page.port}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/runs/0123456789ab", "/runs/..%2f..%2fetc", "/static/app.py", "/x"]
)
def test_what_is_not_there_is_not_found(page, path):
    status, _, text = page.ask(path)
    assert status == 404 and "Not found" in text


def test_no_page_names_another_host(page):
    report = page.until(f"/runs/{key_of(page, 'killed')}", "What it rests on")
    texts = [
        report,
        *(page.ask(path)[2] for path in ("/", "/plan", "/static/page.css", "/static/page.js")),
    ]
    for text in texts:
        assert not re.search(r"(src|href)=\"?(https?:)?//|url\(\s*['\"]?(https?:)?//|@import", text)


def test_a_folder_that_is_not_there_yet_is_looked_for(tmp_path):
    with served(tmp_path / "runs") as page:
        assert "There is no ledger yet" in page.ask("/")[2]
        begun(tmp_path / "runs", "first")
        page.until("/", "<bdi>first</bdi>")


def read_event(page, topic, since, heard):
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
    connection.request("GET", f"/events?topic={topic}&since={since}")
    answer = connection.getresponse()
    assert answer.getheader("content-type").startswith("text/event-stream")
    while not (line := answer.fp.readline()).startswith(b"data:"):
        assert line
    heard.set()
    connection.close()


def test_a_step_is_told_to_open_pages_and_changes_the_page(tmp_path):
    plan, heard = plan_of(), threading.Event()
    with served(tmp_path) as page, open_ledger(tmp_path / "a" / "ledger.dpl", plan) as ledger:
        take(ledger, plan, 3)
        first = page.until("/", f">{epsilon_text(account(ledger).claim(1e-5))}<")
        since = re.search(r'data-version="([^"]*)"', first)[1]
        thread = threading.Thread(target=read_event, args=(page, "runs", since, heard))
        thread.start()
        take(ledger, plan, 2)
        assert heard.wait(PATIENCE)
        thread.join(PATIENCE)
        text = page.until("/", f">{epsilon_text(account(ledger).claim(1e-5))}<")
        assert "running" in text and "5 of 20" in text


def test_a_page_of_an_earlier_server_is_out_of_date_at_once(page):
    heard = threading.Event()
    read_event(page, "runs", "0000.1", heard)
    assert heard.is_set()


def test_looking_at_a_ledger_never_keeps_a_run_from_starting(tmp_path):
    # A look that tried the lock would make the run that opens its ledger then refuse to start.
    plan = plan_of()
    with served(tmp_path) as page:
        for place in range(100):
            with open_ledger(tmp_path / "a" / "ledger.dpl", plan) as ledger:
                if place % 10 == 0:
                    take(ledger, plan, 1)
                page.ask("/")
            page.ask("/")
