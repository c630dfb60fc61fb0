"""Pages can be read by everybody: in the dark, on a telephone, on paper, by keyboard and by ear."""

import contextlib
import gzip
import json
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect
from run_folders import begun, checkpoint, open_ledger, plan_of, progress, take
from served_pages import served

from dpfy.planning import solve

PATIENCE = 120_000
AXE = gzip.decompress((Path(__file__).parent / "vendor" / "axe.min.js.gz").read_bytes()).decode()
SHOWN = os.environ.get("DPFY_SCREENSHOTS")
SHOTS_FOLDER = Path(SHOWN).resolve() if SHOWN else None
NASTY = "<script>alert(1)<:script>"
PAGES = ("runs", "run", "refused", "compare", "budgets", "plan")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """A folder of runs in all states and a book of budgets, served; pages by their names."""
    folder = tmp_path_factory.mktemp("data")
    root, plan = folder / "runs", plan_of(40)
    for name in ("adult-logistic", NASTY):
        path = begun(root, name)
        progress(path.parent, 20, 20, NASTY if name == NASTY else "accuracy", ended=True)
    killed = begun(root, "ward-3", taken=7)
    progress(killed.parent, 20, 7)
    checkpoint(killed.parent, 4)
    damaged = begun(root, "damaged")
    damaged.write_bytes(damaged.read_bytes() + b"{}\n")
    url = f"sqlite:///{folder / 'team.db'}"
    written(url)
    with open_ledger(root / "digits-mlp" / "ledger.dpl", plan) as ledger:
        take(ledger, plan, 22)
        progress(root / "digits-mlp", 40, 22)
        # by short paths, as people give them
        with contextlib.chdir(folder), served(Path("runs"), url) as server:
            listed = server.until("/", "ward-3")
            keys = dict(re.findall(r'/runs/(\w+)" id="[^"]*"><bdi>(.*?)</bdi>', listed))
            key_of = {name: key for key, name in keys.items()}
            report = server.until(f"/runs/{key_of['digits-mlp']}", "What it rests on")
            assert report
            chosen = "&".join(f"run={key}" for key in keys)
            yield {
                "runs": server.address,
                "run": f"{server.address}/runs/{key_of['digits-mlp']}",
                "refused": f"{server.address}/runs/{key_of['damaged']}",
                "compare": f"{server.address}/compare?{chosen}",
                "budgets": f"{server.address}/budgets",
                "plan": f"{server.address}/plan",
            }


def written(url):
    """Write a book with two data sets, a grant of each kind, and a name that is no name."""
    from dpfy.budgets import BudgetBook

    with BudgetBook.open(url, actor="ada") as book:
        limit = {"unit": "record", "reference": plan_of()}
        book.create("ward", epsilon=8.0, delta=1e-5, description="Ward 3, 2026", **limit)
        book.create("census", epsilon=1.0, delta=1e-6, description=NASTY, **limit)
        book.reserve("ward", plan_of(), purpose="first model", holder="ada")
        taken = book.reserve("ward", plan_of(epsilon=1.0), purpose=NASTY, holder=NASTY)
        book.withdraw(taken)


def settled(page, name):
    """Wait until a page shows all that it is going to show."""
    if name == "plan":
        expect(page.locator("#contours svg").first).to_be_visible(timeout=PATIENCE)
    elif name == "run":
        expect(page.locator("main")).to_contain_text("What it rests on", timeout=PATIENCE)
    elif name != "refused":
        expect(page.locator("main")).not_to_contain_text("being", timeout=PATIENCE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_no_barriers_and_enough_contrast(addresses, open_page, name, scheme):
    page = open_page(addresses[name], scheme=scheme)
    settled(page, name)
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    barriers = {
        each["id"]: [node["html"][:200] for node in each["nodes"]] for each in found["violations"]
    }
    assert not barriers, json.dumps(barriers, indent=1)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    assert dark == (scheme == "dark")


@pytest.mark.parametrize("name", PAGES)
def test_a_narrow_screen_needs_no_scrolling_sideways(addresses, open_page, name):
    page = open_page(addresses[name], width=360)
    settled(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("name", PAGES)
def test_paper_gets_the_content_in_black_on_white(addresses, open_page, name):
    page = open_page(addresses[name], scheme="dark")
    settled(page, name)
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.get_by_role("navigation")).to_be_hidden()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.pdf().startswith(b"%PDF")


ALL_STOPS = "a[href], button, input:not([hidden]), [tabindex='0']"
FOCUSED = """(stops) => {
  const each = document.activeElement, all = [...document.querySelectorAll(stops)];
  return [all.indexOf(each), getComputedStyle(each).outlineStyle !== "none"];
}"""


@pytest.mark.parametrize("name", ["runs", "budgets", "plan", "compare"])
def test_the_keyboard_reaches_everything_in_reading_order(addresses, open_page, name):
    page = open_page(addresses[name])
    settled(page, name)
    order = []
    for _ in range(page.locator(ALL_STOPS).count()):
        page.keyboard.press("Tab")
        place, visible = page.evaluate(FOCUSED, ALL_STOPS)
        assert visible
        order.append(place)
    assert order == list(range(len(order)))


def test_the_first_stop_leads_to_the_content(addresses, open_page):
    page = open_page(addresses["runs"])
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


@pytest.mark.parametrize("name", PAGES)
def test_names_are_text(addresses, open_page, name):
    page = open_page(addresses[name])  # which fails on a dialog
    settled(page, name)
    assert page.locator("main script").count() == 0
    if name in ("runs", "compare", "budgets"):
        expect(page.get_by_text(NASTY).first).to_be_visible()


def test_the_planner_is_answered_by_the_accountant(addresses, open_page):
    page = open_page(addresses["plan"])
    settled(page, "plan")
    slider = page.get_by_label("Budget ε, slider")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_label("Budget ε", exact=True)).to_have_value("2")
    found = solve(records=60_000, epsilon=2.0, delta=1e-5, batch_size=6000.0, epochs=60.0)
    answer = page.locator("#answer")
    expect(answer).to_contain_text(f"{found.noise_multiplier:.6g}", timeout=PATIENCE)
    expect(answer).to_contain_text("--epsilon 2 ")
    expect(page.locator("#contours")).to_contain_text("ε = 2", timeout=PATIENCE)
    assert "epsilon=2" in page.url
    page.get_by_label("Expected batch size", exact=True).fill("100000")
    expect(answer).to_contain_text("Expected batch=100000", timeout=PATIENCE)


def test_budgets_change_on_an_open_page(tmp_path, open_page):
    from dpfy.budgets import BudgetBook

    url = f"sqlite:///{tmp_path / 'team.db'}"
    written(url)
    with served(tmp_path, url) as server, BudgetBook.open(url) as book:
        page = open_page(f"{server.address}/budgets")
        expect(page.locator("main")).to_contain_text("first model", timeout=PATIENCE)
        book.reserve("ward", plan_of(epsilon=2.0), purpose="second model", holder="bob")
        expect(page.locator("main")).to_contain_text("second model", timeout=PATIENCE)
        free = book.show("ward").free
        expect(page.locator(".dataset").first).to_contain_text(f"{free:.2f}"[:-1])


SHOTS = {"runs": 560, "run": 760, "budgets": 620, "plan": 860}


@pytest.mark.parametrize("name", SHOTS)
def test_pictures_of_the_how_to_are_drawn(addresses, open_page, name, tmp_path):
    """``DPFY_SCREENSHOTS=docs/_static/page`` keeps them there."""
    from PIL import Image

    page = open_page(addresses[name], width=1000, height=SHOTS[name])
    settled(page, name)
    page.evaluate(
        """(nasty) => {  // a name for those who read, not for those who attack
      for (const each of document.querySelectorAll("main *"))
        if (!each.children.length) each.textContent = each.textContent.replaceAll(nasty, "survey");
    }""",
        NASTY,
    )
    raw = tmp_path / "raw.png"
    page.screenshot(path=raw)
    folder = SHOTS_FOLDER or tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.png"
    Image.open(raw).convert("RGB").quantize(128).save(target, optimize=True)
    assert 5_000 < target.stat().st_size < 60_000
