"""The bar in a notebook, without one: a stand-in takes the messages that a kernel would send.

The real kernel is in tests/integrations/notebook.
"""

import sys
from types import SimpleNamespace

import pytest

import dpfy
from dpfy.ensembles.bars import telling
from dpfy.run.callbacks import Evaluation, Step


@pytest.fixture
def cell(monkeypatch):
    """Pretend to be a notebook, and return what its cell shows, oldest first."""
    shown = []

    def display(bundle, raw, display_id):
        assert raw and display_id
        shown.append(bundle)
        return SimpleNamespace(update=lambda bundle, raw: shown.append(bundle))

    shell = SimpleNamespace(kernel=object())
    python = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return shown


def test_the_bar_of_a_notebook_needs_neither_rich_nor_widgets(cell, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert dpfy.ProgressBar.is_seen()
    bar = dpfy.ProgressBar()
    bar.on_start(4, 1)
    bar.on_step(Step(2, 4, 0.1, 0.5, {"<b>": 0.5}))
    bar.on_step(Step(3, 4, 0.1, 0.75, {"<b>": 0.5}, {"strict": 0.2, "open": 0.75}))
    bar.on_evaluation(Evaluation(3, 1.0, 0.75, 0.875))
    bar.on_end()
    first, second, *_, last = [each["text/plain"] for each in cell]
    assert first == "training 1/4  ε 0.00"
    assert second.startswith("training 2/4  ε 0.50  <b> ≈ 0.50  ") and second.endswith("left")
    assert "3/4  ε 0.75 (weakest of 2 groups)  accuracy 87.5%" in last
    page = cell[-1]["text/html"]
    assert 'max="4" value="3"' in page and "&lt;b&gt;" in page and "<b>" not in page


def test_a_long_run_sends_few_messages_and_the_last_state(cell):
    bar = dpfy.ProgressBar()
    bar.on_start(100_000, 0)
    for step in range(1, 100_001):
        bar.on_step(Step(step, 100_000, 0.1, 1.0))
    bar.on_end()
    assert len(cell) <= 203 and "100,000/100,000" in cell[-1]["text/plain"]
    assert "left" not in cell[-1]["text/plain"]


def test_a_bar_that_was_not_begun_ends(cell):
    dpfy.ProgressBar().on_end()


def test_what_is_counted_elsewhere_is_shown_in_the_cell_too(cell):
    with telling(None, "teachers") as tell:
        tell(1, 2)
        tell(2, 2)
    assert [each["text/plain"] for each in cell][-1] == "teachers 2/2"


def test_a_program_that_loads_ipython_is_no_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    monkeypatch.setattr("rich.console.Console.is_terminal", False)
    assert not dpfy.ProgressBar.is_seen()
