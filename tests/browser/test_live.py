"""What happens in other processes is seen on open pages, without loading them again."""

import os
import subprocess
import sys

import pytest
from playwright.sync_api import expect
from run_folders import begun, open_ledger, plan_of, take
from served_pages import served

from dpfy.ledger import Ledger

PATIENCE = 120_000


@pytest.fixture
def training(tmp_path):
    """A training of digits in another process; it would take an hour."""
    (tmp_path / "runs").mkdir()
    settings = "--epochs 20000 --batch-size 400 --evaluate-every 5 --checkpoint-every 50"
    command = ["-m", "dpfy", "train", "--out", str(tmp_path / "runs"), "--name", "mine"]
    started = subprocess.Popen(
        [sys.executable, *command, *settings.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    yield started
    started.kill()
    started.wait()


def test_a_training_appears_moves_and_is_killed(tmp_path, open_page, training):
    with served(tmp_path / "runs") as server:
        page = open_page(server.address)
        page.evaluate("window.loadedOnce = true")
        row = page.get_by_role("row", name="mine")
        expect(row).to_contain_text("running", timeout=PATIENCE)
        spent = row.get_by_role("cell").nth(2)
        expect(spent).to_contain_text("0.", timeout=PATIENCE)
        expect(spent).not_to_have_text(spent.inner_text(), timeout=PATIENCE)
        expect(row).to_contain_text("accuracy", timeout=PATIENCE)
        other = open_page(f"{server.address}{row.get_by_role('link').get_attribute('href')}")
        expect(other.locator("[data-live=curves] svg").first).to_be_visible(timeout=PATIENCE)
        training.kill()
        training.wait()
        expect(row).to_contain_text("not running", timeout=PATIENCE)
        paid = Ledger.read(tmp_path / "runs" / "mine" / "ledger.dpl").count
        expect(row).to_contain_text(f"{paid:,} of", timeout=PATIENCE)
        assert page.evaluate("window.loadedOnce")
        main = other.locator("main")
        expect(main).to_contain_text("What it paid stays paid", timeout=PATIENCE)
        expect(main).to_contain_text("What it rests on", timeout=PATIENCE)


def test_what_somebody_has_chosen_stays_chosen_while_the_page_changes(tmp_path, open_page):
    plan = plan_of()
    begun(tmp_path, "other")
    path = tmp_path / "moving" / "ledger.dpl"
    with served(tmp_path) as server, open_ledger(path, plan) as ledger:
        page = open_page(server.address)
        page.get_by_label("Compare other").check()
        page.get_by_role("link", name="other").focus()
        take(ledger, plan, 2)
        row = page.get_by_role("row", name="moving")
        expect(row).to_contain_text("2 of 20", timeout=PATIENCE)
        expect(page.get_by_label("Compare other")).to_be_checked()
        expect(page.get_by_role("link", name="other")).to_be_focused()


def test_a_page_says_that_its_server_is_gone(tmp_path, open_page):
    with served(tmp_path) as server:
        page = open_page(server.address)
        expect(page.get_by_role("status")).to_have_text("live", timeout=PATIENCE)
    expect(page.get_by_role("status")).to_contain_text("out of date", timeout=PATIENCE)
