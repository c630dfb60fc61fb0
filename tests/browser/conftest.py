"""A browser for the tests of the page: Debian's Chromium, that asks nobody but the page."""

import os

import pytest
from programs import need

try:
    from playwright.sync_api import sync_playwright
except ModuleNotFoundError:
    if "chromium" in os.environ.get("DPFY_REQUIRE", "").split(","):
        raise
    collect_ignore_glob = ["test_*.py"]

QUIET = [
    f"--{option}"
    for option in (
        "no-sandbox",
        "disable-gpu",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "no-first-run",
    )
]
GONE = ("ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_REFUSED")  # once a test ends its server
PATIENCE = 120_000  # milliseconds until something that must happen counts as missing


def pytest_collection_modifyitems(items):
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    need("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Open pages; at the end, none of them may have asked another host or met an error."""
    contexts, asked, errors = [], [], []

    def opened(address, *, width=1200, scheme="light", height=800):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-GB"
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: (errors.append("a dialog"), dialog.dismiss()))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert asked and not [each for each in errors if not any(end in each for end in GONE)]
    outside = [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:"))]
    assert not outside
