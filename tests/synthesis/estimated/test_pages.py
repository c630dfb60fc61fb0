"""The pages on synthetic tables run, as all pages do."""

import pytest
from tests.test_readme import ROOT, SYNTHETIC, run_page


def test_pages_are_known():
    assert [page.name for page in SYNTHETIC] == ["synthetic-tables.md"]


@pytest.mark.parametrize("page", SYNTHETIC, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, monkeypatch)
